"""Whole steps by compiled loops against stand-ins for cuBLASLt and the driver: every command right, launches as few."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_kernels import bias_relu_scale
from support.cuda.fake_lt import FAILURE
from support.steps.fake_steps import FakeSteps, is_even
from support.steps.launching import recorded
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.command import COMMAND_DTYPE, Flag, RecordWord, ShapeKey
from launchopt.devices.cuda.op_kernels import fused_geometry
from launchopt.devices.steps.stage_table import Argument, Fused, Role
from launchopt.devices.steps.stages import LtSteps, step_of
from launchopt.producing.driver import Driver
from launchopt.producing.production import Schedule
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn, Strategy
from launchopt.records import SHAPE_MASK
from launchopt.streams.chains.chain import ChainStream

PATIENCE_S = 120.0
NAMES = ("linear", "qkv", "square", "linear_epilogue", "elementwise")
properties = settings(deadline=None, max_examples=40)
request_sizes = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)).filter(any), min_size=1, max_size=5)


@properties
@given(
    st.sampled_from(NAMES), request_sizes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99)
)
def test_every_command_is_right_whoever_steps_together(
    name: str, sizes: list[tuple[int, int]], layers: int, replicas: int, most: int, seed: int
) -> None:
    stream = stream_of(name, sizes, layers=layers, replicas=replicas)
    rig = FakeSteps(stream, most)
    found = rig.run(seed or None)
    rig.check()
    launches = rig.launches
    assert len(launches) == rig.fake.calls + len(rig.fake.kernels.launches)
    first = 0
    for batch in found:
        own, done = 0, 0
        while done < batch.size * batch.rows:
            done += int(launches[first + own, LaunchColumn.SIZE])
            own += 1
        assert done == batch.size * batch.rows
        if all(is_even(stream, batch)) and int(batch.words[0, RecordWord.MN] >> np.uint64(32)) == 1:
            assert own == batch.rows, "one launch a row"
            assert (launches[first : first + own, LaunchColumn.SIZE] == batch.size).all()
        first += own
    assert first == len(launches)


def test_requests_in_step_are_one_launch_a_row() -> None:
    """So the property above also holds for evenly spaced requests, which its examples may lack."""
    stream = stream_of("linear_epilogue", [(0, 3)] * 4, layers=2)
    rig = FakeSteps(stream, 4)
    rig.run(None)
    rig.check()
    sizes = rig.launches[:, LaunchColumn.SIZE].tolist()
    assert sizes[-12:] == [4] * 12, "two tokens of two layers of three"
    assert rig.fake.calls < stream.commands
    shapes = [stream.shapes[i].op.name for i in rig.launches[-6:, LaunchColumn.SHAPE]]
    assert shapes == ["GEMM", "BIAS", "RELU"] * 2


@properties
@given(
    st.sampled_from(NAMES), request_sizes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 99)
)
def test_parts_are_even_and_make_up_the_batch(
    name: str, sizes: list[tuple[int, int]], layers: int, replicas: int, most: int, seed: int
) -> None:
    stream = stream_of(name, sizes, layers=layers, replicas=replicas)
    rig = FakeSteps(stream, most)
    for batch in batches(stream, most, seed):
        before = batch.words.copy()
        parts = rig.steps.even_parts(batch)
        assert sum(part.size for part in parts) == batch.size
        whole = [part.words.reshape(part.rows, part.size, -1) for part in parts]
        assert (np.concatenate(whole, axis=1).reshape(before.shape) == before).all()
        assert (batch.words == before).all()
        kind = rig.steps.kind_of(batch)
        for part in parts:
            assert all(is_even(stream, part))
            assert part.size == 1 or stream.kinds[kind].n == 1, "of several columns a launch holds one request"
        assert rig.steps.even_rows(batch).tolist() == is_even(stream, batch)
        replicas_used = {rig.steps.replica_of(part, kind) for part in parts}
        tokens = {int(record["token"]) for record in batch.words[-batch.size :].view(COMMAND_DTYPE).reshape(-1)}
        if stream.kinds[kind].ends_token:
            assert replicas_used == {token % replicas for token in tokens}


@properties
@given(
    st.sampled_from([*NAMES, "layer", "paged"]), request_sizes, st.integers(1, 3), st.integers(1, 4), st.integers(1, 99)
)
def test_what_has_the_same_key_has_the_same_addresses(
    name: str, sizes: list[tuple[int, int]], replicas: int, most: int, seed: int
) -> None:
    """All operands of all records have the same addresses, since graphs and stages are looked up by key."""
    stream = stream_of(name, sizes, replicas=replicas)
    limits = dict.fromkeys(stream.shapes, most)
    steps = LtSteps(_Bare(stream), limits, cast(Any, None))
    seen: dict[bytes, bytes] = {}
    columns = [RecordWord.MN, RecordWord.K_OP_DTYPE, RecordWord.SLOTS_AB, RecordWord.SLOT_C_REQUEST]
    for once_more in range(8):
        for batch in batches(stream, most, seed + once_more):
            words = batch.words[:, columns].copy()
            words[:, 1] &= SHAPE_MASK
            assert seen.setdefault(steps.key_of(batch), words.tobytes()) == words.tobytes()


class _Bare:
    """A device with a stream and nothing else."""

    def __init__(self, stream: ChainStream) -> None:
        self.work = stream


@contextmanager
def driven(stream: ChainStream) -> Iterator[tuple[Ring, Ring]]:
    """Run a driver in a thread; yield its two rings."""
    with Ring.create(4096) as ring, Ring.create(1 << stream.requests.bit_length()) as back:
        driver = Driver(stream, Schedule(), spin_us=20, sleep_us=50)
        thread = threading.Thread(target=driver.run, args=(ring, back), daemon=True)
        watch = threading.Timer(PATIENCE_S, ring.set_word, (HeaderWord.STOP, 1))
        watch.start()
        thread.start()
        try:
            yield ring, back
        finally:
            watch.cancel()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("name", [*NAMES, "layer", "paged"])
def test_a_step_ahead_of_time_is_the_drivers_own(name: str) -> None:
    """It equals the driver's from the second token on; the input of a first token is in the embedding table."""
    requests, tokens, replicas = 3, 4, 2
    stream = stream_of(name, [(0, tokens)] * requests, replicas=replicas)
    rows = len(stream.rows_of(stream.decode_kind))
    got = np.zeros(rows * requests, COMMAND_DTYPE)
    with driven(stream) as (ring, back):
        for token in range(tokens):
            taken = 0
            while taken < len(got):
                taken += ring.pop(got[taken:])
                assert not ring.word(HeaderWord.STOP)
            issued = np.sort(got, order=["step", "request"])  # by row of the step, in it by request
            if token:
                expected = step_of(stream, requests, token % replicas)
                assert (expected.rows, expected.size) == (rows, requests)
                ours = expected.words.view(COMMAND_DTYPE).reshape(-1)
                for field in ("m", "n", "k", "op", "dtype", "slot_a", "slot_b", "slot_c", "request"):
                    assert issued[field].tolist() == ours[field].tolist(), field
            ends = got[(got["flags"] & Flag.STEP_END) != 0]
            assert len(ends) == requests
            assert back.push(ends) == requests


def test_a_step_of_the_first_alone_is_the_front_of_all() -> None:
    stream = stream_of("layer", [(0, 3)] * 4, replicas=3)
    for replica in range(3):
        all_of_them, alone = (step_of(stream, requests, replica) for requests in (4, 1))
        assert (all_of_them.words[::4] == alone.words).all()


def fused_elementwise(rig: FakeSteps, start: int) -> Fused:
    """Return the stage of a layer's bias, ReLU and scale as one kernel."""
    fake, shapes = rig.fake, rig.stream.shapes
    index, last = rig.steps.indices(0)[[start, start + 2]].tolist()
    rows = (*fake.row_elements(shapes[index])[:2], fake.row_elements(shapes[last])[2])
    a, b, c = fake.base.strides_bytes(index).tolist()
    function = fake.kernels.kernel(bias_relu_scale)

    def make(size: int) -> tuple[list[int], bytes]:
        return fake.kernel_row(function, fused_geometry(shapes[index], size, rows, (a, b, c))), b""

    plan, _ = fake.base.append(range(1, rig.most + 1), make)
    arguments = (
        Argument(start, Role.A),
        Argument(start + 2, Role.A),
        Argument(start, Role.B),
        Argument(start + 2, Role.C),
    )
    return Fused(start, start + 3, arguments, int(Strategy.fused), plan)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_fused_rows_are_one_launch_and_what_lies_between_is_not_written(seed: int | None) -> None:
    stream = stream_of("elementwise", [(0, 4)] * 3, layers=3, replicas=2)
    rig = FakeSteps(stream, 3)
    for replica in range(2):
        rig.steps.fuse(0, replica, [fused_elementwise(rig, start) for start in range(0, 9, 3)])
    rig.run(seed)
    rig.check(frozenset({"bias", "relu"}))
    assert (rig.launches[:, LaunchColumn.STRATEGY] == Strategy.fused).all()
    assert (rig.launches[:, LaunchColumn.SHAPE] == -1).all()
    parts = len(rig.launches) // 3
    assert len(rig.launches) == 3 * parts
    assert rig.launches[:, LaunchColumn.SIZE].sum() == stream.commands
    with pytest.raises(AssertionError, match="bias"):
        rig.check()  # it skips outputs that stay inside a fused launch


def merged(rig: FakeSteps, start: int) -> Fused:
    """Return the stage of q, k and v as one GEMM; their weights and outputs are side by side."""
    fake, own = rig.fake, rig.stream.rows(0)[start : start + 3]
    shape = rig.stream.shapes[int(rig.steps.indices(0)[start])]
    wide = ShapeKey(sum(row.m for row in own), shape.n, shape.k, shape.dtype)
    plan, _ = fake.base.append([1], lambda size: (fake.plan(wide, size, [0] * 3, fake.row_elements(shape)), b""))
    return Fused(start, start + 3, tuple(Argument(start, role) for role in Role), int(Strategy.fused), plan)


def test_gemms_side_by_side_as_one() -> None:
    stream = stream_of("qkv", [(0, 4)] * 2, layers=2)
    rig, rows = FakeSteps(stream, 1), stream.rows(0)
    rig.steps.fuse(0, 0, [merged(rig, i) for i, row in enumerate(rows) if row.name == "q"])
    rig.run(None)
    rig.check()
    saved = 2 * stream.layers
    assert rig.fake.calls == 2 * 4 * (len(rows) - saved)
    assert rig.launches[: len(rows) - saved, LaunchColumn.SIZE].tolist().count(3) == stream.layers
    seqs = recorded(rig.fake.recorder).commands[:, CommandColumn.SEQ]
    assert seqs.tolist() == list(range(stream.commands)), "in the order of the template"


def test_launches_that_are_recorded_for_a_graph_are_not_noted() -> None:
    stream = stream_of("linear_epilogue", [(0, 3)] * 2)
    rig = FakeSteps(stream, 2)
    step = step_of(stream, 2, 0)
    rig.steps.record(step)
    assert rig.fake.calls + len(rig.fake.kernels.launches) == step.rows
    assert rig.fake.recorder.launch_count == 0
    for _ in range(20):  # whatever it counts as lost instead, it never runs over
        rig.steps.record(step)


def test_what_was_even_is_known_again() -> None:
    stream = stream_of("linear", [(0, 4)] * 3)
    rig = FakeSteps(stream, 3)
    found = rig.run(None)
    knows = [rig.steps.launch_known(batch, 0) for batch in found]
    assert knows == [len(rig.steps.even_parts(batch)) == 1 for batch in found]
    assert knows[-1]
    calls = rig.fake.calls
    rig.steps.launch(found[-1], 0)
    assert rig.fake.calls == calls + found[-1].rows


def test_a_failing_launch_is_told_and_not_noted() -> None:
    rig = FakeSteps(stream_of("linear", [(0, 4)] * 3), 3, fail_at=2)
    with pytest.raises(RuntimeError, match=f"status {FAILURE}"):
        rig.run(None)
    assert rig.fake.recorder.launch_count == 1
