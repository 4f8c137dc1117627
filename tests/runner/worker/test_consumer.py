"""What a consumer tells of itself before anything runs."""

from __future__ import annotations

from launchopt.command import Dtype
from launchopt.queue.ring import Ring
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer


def test_a_consumer_tells_versions_ceilings_and_the_seconds_of_its_set_up() -> None:
    stream = gemv(16, 1, 64, 96, Dtype.fp32, 32)
    arms = Arm("baseline", 1, 1e6, None), Arm("batched", 16, 1e6, None)
    with Ring.create(128) as ring, Consumer(job(stream, ring, "cpu", arms)) as consumer:
        about = consumer.about()
        assert set(about) == {"versions", "ceilings", "set_up_seconds"}
        assert list(about["set_up_seconds"]) == ["memory", "operands", "modes", "ceilings", "loops"]
