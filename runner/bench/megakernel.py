"""Measures the time of a decode step in mode=megakernel: bytes, achieved bandwidth, wait and work of each op.

Each case is an experiment of conf/experiment/resident. It runs once as a normal job, and every output is checked. Then
its last step is launched alone, many times (`devices.megakernel.timing`): unchanged, with time stamps, and without one
stage. The outputs without a stage are wrong and unused. Figures go to bench.parquet, and the time of each op
(`account`) to megakernel.parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from launchopt.devices.base import gpu_of
from launchopt.devices.megakernel.step_account import account, floor_of
from launchopt.errors import RunError
from launchopt.modes.megakernel import MegakernelMode, PreparedMegakernel
from launchopt.queue.ring import Ring
from launchopt.recording.results import Row, write_rows
from launchopt.scratch import scratch
from runner.bench import account as table
from runner.bench.account import Measured
from runner.bench.figures import Figure
from runner.plan.job import Job
from runner.run.children import Child
from runner.worker.consumer import Consumer
from runner.worker.messages import Failure, Order, OrderKind, Reply, ReplyKind

CASES = {
    "decode fp16, 1 request": ("table=resident_decode_1",),
    "decode fp16, 16 requests": ("table=resident_decode_16",),
    "Llama 3.2 1B bf16, 1 request": ("table=resident_llama_1",),
    "Llama 3.2 1B bf16, 16 requests": ("table=resident_llama_16",),
}
ALONE = ("against=[]", "timing=host", "device=cuda", "record.launches=none")
LAUNCHES = 10  # launches of each kernel in one repeat
WRONG = "outputs wrong"


def suite(repeats: int, device: str, folder: Path) -> Iterator[Figure]:
    """Yield the figures of each case and write the account to `folder`. Needs a GPU."""
    if device != "cuda":
        return
    rows: list[Row] = []
    for case, overrides in CASES.items():
        with checked(overrides) as consumer:
            found = _measured(consumer, LAUNCHES * repeats)
        rows += table.rows_of(case, found)
        write_rows(
            folder / table.FILE, table.ACCOUNT, rows, {"cases": {name: list(each) for name, each in CASES.items()}}
        )
        yield from figures(case, found)


def figures(case: str, found: Measured) -> Iterator[Figure]:
    """Yield the figures of one case, without goals."""
    floor = found.floor
    achieved = [floor.achieved_gb_per_s(us) for us in found.kernel_us]
    for what, unit, samples, is_rate in (
        ("the kernel alone", "us", found.kernel_us, False),
        (f"no weights fetched ({WRONG})", "us", found.without_weights_us, False),
        (f"nobody waited for ({WRONG})", "us", found.without_waits_us, False),
        ("least, all weights at the measured bandwidth", "us", [floor.us], False),
        ("weights read", "MB", [floor.weight_bytes / 1e6], False),
        ("weights over the kernel's time", "GB/s", achieved, True),
        ("of the measured bandwidth", "x", [rate / floor.gb_per_s for rate in achieved], True),
    ):
        yield Figure("megakernel", f"{case}: {what}", unit, samples, higher_is_better=is_rate)


def _measured(consumer: Consumer, launches: int) -> Measured:
    from launchopt.devices.instructions.words import names_of, weight_bytes
    from launchopt.devices.megakernel import timing as mt

    device, prepared = gpu_of(consumer.device), consumer.prepared[0]
    assert isinstance(prepared, PreparedMegakernel)
    timing = mt.StepTiming(device, prepared.steps)
    plain, stamped, no_weights, no_waits = (
        timing.programs(macros) for macros in (mt.PLAIN, mt.WITH_STAMPS, mt.WITHOUT_WEIGHTS, mt.WITHOUT_WAITS)
    )
    timing.require_same(stamped, plain, no_weights)
    kernel_us, no_weights_us, no_waits_us = (
        timing.launches_us(programs, launches) for programs in (plain, no_weights, no_waits)
    )
    nvml_clock_mhz = timing.nvml_clock_mhz(plain)
    with_stamps = sorted(timing.stamped(stamped, plain, launches), key=lambda launch: launch.us)
    chosen = with_stamps[len(with_stamps) // 2]
    instructions = timing.lists[0]
    floor = floor_of(weight_bytes(instructions, device.work.dtype.itemsize), consumer.about()["ceilings"])
    parts = account(chosen.stamps, names_of(instructions), chosen.clock_mhz)
    return Measured(kernel_us, no_weights_us, no_waits_us, chosen.us, chosen.clock_mhz, nvml_clock_mhz, floor, parts)


@contextmanager
def checked(overrides: Sequence[str]) -> Iterator[Consumer]:
    """Yield a consumer that has run a config's stream once, with one launch per step and every output right."""
    with (
        scratch() as folder,
        Ring.create((plain := _job(overrides, folder)).capacity) as ring,
        Ring.create(plain.back_capacity) as back,
        _producer(job := replace(plain, ring_name=ring.name, back_name=back.name), ring) as producer,
        Consumer(job) as consumer,
    ):
        _expect(producer, ReplyKind.READY)
        consumer.arm(0)
        producer.pipe.send(Order(OrderKind.RUN))
        consumer.consume()
        _expect(producer, ReplyKind.PRODUCED)
        found = consumer.result(0, 0)
        if (status := found.row["status"]) != "ok":
            raise RunError(f"{' '.join(overrides)}: {status}")
        if MegakernelMode.own_strategy not in found.extra["commands_by_strategy"]:
            raise RunError(f"{' '.join(overrides)}: no step was one launch")
        yield consumer


def _job(overrides: Sequence[str], folder: Path) -> Job:
    """Return the job that `python -m runner` makes from the overrides."""
    from hydra import compose

    from runner.config.loading import hydra_of
    from runner.plan.plan import plan_of

    with hydra_of():
        config = compose("config", [*overrides, *ALONE])
    return plan_of(config).job(folder)


@contextmanager
def _producer(job: Job, ring: Ring) -> Iterator[Child]:
    """Start the process that issues the job's commands."""
    producer = Child("producer")
    try:
        producer.send_job(job)
        yield producer
    finally:
        ring.stop()
        producer.end()


def _expect(producer: Child, kind: ReplyKind) -> None:
    """Receive the producer's next message; RunError if it is another one, or the producer has ended."""
    try:
        reply: Reply = producer.pipe.recv()
    except (EOFError, OSError):
        raise RunError("the producer ended") from None
    if reply.kind is not kind:
        raise RunError(f"producer: {reply.value.text if isinstance(reply.value, Failure) else reply.kind}")
