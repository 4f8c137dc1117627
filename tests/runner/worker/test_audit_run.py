"""The audit run of the consumer, in this process and on the CPU: what it finds fails every repeat of its arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from support.steps.programs import stream_of

from launchopt.devices.feedback.flights import Flights
from launchopt.producing.production import RunKind
from launchopt.queue.ring import Ring
from launchopt.recording.results import Row
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer
from runner.worker.messages import RepeatResult
from runner.worker.producer import open_producer

SIZES = [(0, 6), (3, 4), (0, 5)]
KINDS = (RunKind.WARM_UP, RunKind.AUDIT, RunKind.RUN, RunKind.RUN)


def rows_of(
    stream: ChainStream, mode: str, prepare: Callable[[Consumer, RunKind], None] = lambda consumer, kind: None
) -> list[Row]:
    """Return the rows of two timed repeats behind a warm-up run and an audit run. prepare: called before each run."""
    return [each.row for each in results_of(stream, mode, prepare)]


def results_of(
    stream: ChainStream,
    mode: str,
    prepare: Callable[[Consumer, RunKind], None] = lambda consumer, kind: None,
    kinds: Sequence[RunKind] = KINDS,
    ended: Callable[[Consumer, int], None] = lambda consumer, repeat: None,
) -> list[RepeatResult]:
    """Return the results of the timed repeats. prepare: called before each run. ended: called behind each repeat."""
    found: list[RepeatResult] = []
    with Ring.create(4096) as ring, Ring.create(4096) as back, ThreadPoolExecutor(1) as pool:
        sampling = Sampling(SamplingKind.none if stream.vocab is None else SamplingKind.greedy)
        todo = job(stream, ring, "cpu", (Arm(mode, 4, 1e6, None),))
        todo = replace(todo, back_name=back.name, sampling=sampling)
        with Consumer(todo) as consumer, open_producer(todo) as producer:
            for kind in kinds:
                ring.reset()
                back.reset()
                prepare(consumer, kind)
                consumer.arm(0, kind)
                produced = pool.submit(producer.produce, todo.arms[0], kind)
                consumer.consume()
                produced.result()
                producer.prepare()
                if kind is RunKind.RUN:
                    ended(consumer, len(found))
                    found.append(consumer.result(0, len(found)))
    return found


@pytest.mark.parametrize("mode", ["baseline", "batched", "coalesced", "graph"])
@pytest.mark.parametrize("vocab", [None, 100], ids=["outputs", "ids"])
def test_one_layer_of_each_step_is_compared_and_repeats_give_the_same_tokens(mode: str, vocab: int | None) -> None:
    for row in rows_of(stream_of("layer", SIZES, layers=4, vocab=vocab), mode):
        assert (row["status"], row["verified"], row["as_audited_share"]) == ("ok", True, 1.0)
        # One of the 4 layers of a decode step and what is outside of them; of a prompt these and the last layer.
        assert row["audited_share"] == pytest.approx((14 + 2) / (15 * 5), abs=0.01)


@pytest.mark.parametrize("runs", [(RunKind.AUDIT,), (RunKind.RUN,)], ids=["in the audit run", "in timed runs"])
def test_a_fault_of_a_step_fails_every_repeat(runs: tuple[RunKind, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the audit run by what is compared behind a step, in a timed run by its tokens."""
    stream = stream_of("linear", SIZES, layers=2)

    def prepare(consumer: Consumer, kind: RunKind) -> None:
        feed_back = type(consumer.device).feed_back
        flat = consumer.device.arenas.arrays[stream.activations].reshape(-1)

        def spoiled(flights: Flights, count: int) -> None:
            if kind in runs:
                flat[stream.spared_bytes // flat.itemsize :] *= 1.25  # all that steps have written
            feed_back(consumer.device, flights, count)

        monkeypatch.setattr(consumer.device, "feed_back", spoiled)
        if consumer._chains:
            consumer._chains._plain = replace(consumer._chains._plain, feed_back=spoiled)

    for row in rows_of(stream, "coalesced", prepare):
        assert not row["verified"]
        text = "outputs wrong in the audit run (first: " if RunKind.AUDIT in runs else "outputs wrong (first: "
        assert text in row["status"]


def test_without_an_audit_run_its_columns_are_empty() -> None:
    stream = stream_of("linear", SIZES, layers=2)
    with Ring.create(4096) as ring, Ring.create(4096) as back, ThreadPoolExecutor(1) as pool:
        todo = replace(job(stream, ring, "cpu", (Arm("batched", 4, 1e6, None),)), back_name=back.name)
        with Consumer(todo) as consumer, open_producer(todo) as producer:
            consumer.arm(0)
            produced = pool.submit(producer.produce, todo.arms[0])
            consumer.consume()
            produced.result()
            row = consumer.result(0, 0).row
    assert (row["audited_share"], row["as_audited_share"], row["status"]) == (None, None, "ok")


def test_a_repeat_with_the_bits_of_an_earlier_one_names_it_and_has_its_findings() -> None:
    found = results_of(stream_of("layer", SIZES, layers=3, vocab=None), "coalesced", kinds=[*KINDS, RunKind.RUN])
    assert [each.extra["compared_run"] for each in found] == ["coalesced, repeat 0"] * 3
    assert len({(each.row["checked_commands"], each.row["max_rel_error"], each.row["status"]) for each in found}) == 1


@pytest.mark.parametrize("of", ["caches", "activations", "history"])
def test_a_wrong_repeat_between_right_ones_fails_alone(of: str) -> None:
    stream = stream_of("layer", SIZES, layers=3, vocab=None)
    arena = {"caches": stream.cache, "activations": stream.activations, "history": stream.history}[of]

    def ended(consumer: Consumer, repeat: int) -> None:
        if repeat == 1:
            flat = consumer.device.arenas.arrays[arena].reshape(-1)
            written = np.flatnonzero(np.isfinite(flat) & (flat != 0))
            flat[written[written >= (stream.spared_bytes // flat.itemsize if of == "activations" else 0)]] *= -1

    found = results_of(stream, "coalesced", kinds=[*KINDS, RunKind.RUN], ended=ended)
    assert [each.row["verified"] for each in found] == [True, False, True]
    assert [each.extra["compared_run"] for each in found] == [f"coalesced, repeat {each}" for each in (0, 1, 0)]


def test_outputs_of_changed_weights_are_not_known_to_later_repeats() -> None:
    """Repeat 0 ends with changed weights. Repeat 1 has the same outputs, but its weights are right again at its end."""
    stream, timed = stream_of("layer", SIZES, layers=3, vocab=None), list[RunKind]()

    def scale_weights(consumer: Consumer, factor: float) -> None:
        for arena, array in consumer.device.arenas.arrays.items():
            if arena.role == "a":
                array *= array.dtype.type(factor)

    def prepare(consumer: Consumer, kind: RunKind) -> None:
        if kind is RunKind.RUN:
            timed.append(kind)
            if len(timed) == 1:
                scale_weights(consumer, 2.0)  # exact, and so is its inverse

    def ended(consumer: Consumer, repeat: int) -> None:
        if repeat == 1:
            scale_weights(consumer, 0.5)

    found = results_of(stream, "coalesced", prepare, ended=ended)
    assert [each.row["verified"] for each in found] == [False, False]
    assert "operands are not what the seed gives" in found[0].row["status"]
    assert "outputs wrong" in found[1].row["status"]
    assert found[1].extra["compared_run"] == "coalesced, repeat 1"
