"""Every mode on the CPU: with any stream, each command runs once and its output is right."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import ALWAYS_PACK, NEVER_PACK, Run, streams
from support.steps.launching import recorded
from support.steps.straight import records_of

from launchopt.batching.batch import Batch, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, Records, as_words
from launchopt.devices.cpu.device import CALLS_PER_PACK
from launchopt.errors import ConfigError, RunError
from launchopt.modes import MODES, check_mode, mode_class
from launchopt.modes.batched import Batched
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.streams.operands import arenas_of
from launchopt.workloads.gemv import gemv

properties = settings(deadline=None, max_examples=40)


def runs_in(batch: Batch, moves: tuple[int, int, int]) -> int:
    """Return the number of evenly spaced runs in a batch."""
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    slots = np.stack([records[f"slot_{role}"].astype(np.int64) for role in "abc"], axis=1)
    return 1 + int((np.diff(slots, axis=0) != moves).any(axis=1).sum())


@properties
@given(streams, st.integers(1, 40))
def test_baseline_is_one_launch_a_command_in_order_of_arrival(stream: GemmStream, chunk: int) -> None:
    run = Run("baseline", stream)
    batcher = Batcher(stream.shapes, list(run.limits.values()), FlushRules(0))
    records, shape_of = records_of(stream), np.zeros(chunk, np.int32)
    for first in range(0, len(records), chunk):
        part = records[first : first + chunk]
        run.prepared.submit_each(as_words(part), batcher.classify(part, shape_of), flush_ns=first)
    run.finish()
    everything = list(range(stream.commands))
    assert run.recorder.launch_calls == stream.commands
    assert recorded(run.recorder).commands[:, CommandColumn.SEQ].tolist() == everything
    assert run.launches(LaunchColumn.BATCH) == everything
    assert set(run.launches(LaunchColumn.SIZE)) == {1}
    assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.single}
    assert run.launches(LaunchColumn.FLUSH_NS) == [seq - seq % chunk for seq in everything]


@properties
@given(streams, st.integers(1, 40), st.integers(1, 12))
def test_baseline_takes_batches_apart(stream: GemmStream, chunk: int, most: int) -> None:
    run = Run("baseline", stream)
    run.limits = dict.fromkeys(stream.shapes, most)
    for batch in run.batches(chunk):
        run.prepared.submit(batch, flush_ns=0)
    run.finish()
    assert run.recorder.launch_calls == stream.commands


@properties
@given(streams, st.integers(1, 40), st.integers(1, 12))
def test_batched_is_one_launch_a_run_of_evenly_spaced_slots(stream: GemmStream, chunk: int, most: int) -> None:
    run = Run("batched", stream, most)
    strides = stream.strides()
    pieces = []
    for batch in run.batches(chunk):
        pieces.append(runs_in(batch, strides[stream.shapes[batch.shape_index]]))
        run.prepared.submit(batch, flush_ns=0)
    run.finish()
    assert run.launches(LaunchColumn.BATCH) == [number for number, count in enumerate(pieces) for _ in range(count)]
    assert run.recorder.launch_calls == sum(pieces)
    strategies = {1: Strategy.single}
    assert run.launches(LaunchColumn.STRATEGY) == [
        strategies.get(size, Strategy.strided) for size in run.launches(LaunchColumn.SIZE)
    ]
    assert not any(run.launches(LaunchColumn.PACKED_BYTES))


@properties
@given(streams, st.integers(1, 40), st.integers(1, 12))
def test_batched_packs_what_is_scattered_where_that_pays(stream: GemmStream, chunk: int, most: int) -> None:
    run = Run("batched", stream, most, ALWAYS_PACK)
    strides = stream.strides()
    packed, sizes = [], []
    for batch in run.batches(chunk):
        shape = stream.shapes[batch.shape_index]
        packed.append(runs_in(batch, strides[shape]) > 1)
        sizes.append(len(batch) * shape.bytes)
        run.prepared.submit(batch, flush_ns=0)
    run.finish()
    assert [strategy == Strategy.packed for strategy in run.launches(LaunchColumn.STRATEGY)] == packed
    assert run.launches(LaunchColumn.PACKED_BYTES) == [
        size if was else 0 for size, was in zip(sizes, packed, strict=True)
    ]
    assert run.recorder.launch_calls == len(packed) + CALLS_PER_PACK * sum(packed)


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
def test_a_shuffled_gemv_is_packed(dtype: Dtype) -> None:
    """So the property above also holds for scattered batches, which its examples may lack."""
    run = Run("batched", gemv(2, 1, 2, 64, dtype, 32, CommandOrder(shuffle=True)), 16, ALWAYS_PACK)
    for batch in run.batches(64):
        run.prepared.submit(batch, flush_ns=0)
    run.finish()
    assert run.launches(LaunchColumn.STRATEGY) == [Strategy.packed] * 4
    assert run.launches(LaunchColumn.PACKED_BYTES) == [16 * (4 + 2 + 2) * dtype.itemsize] * 4
    assert run.recorder.launch_calls == 4 * (1 + CALLS_PER_PACK)


def test_few_cuts_are_cheaper_than_packing() -> None:
    """The batch uses 24 weights in turn, so it has two runs. Packing pays only if it costs less than a launch."""
    slot_bytes = sum(arena.slot_bytes for arena in arenas_of(gemv(2, 1, 2, 1, Dtype.fp32, 1).shapes[0]))
    for pack_bytes, strategy in [(slot_bytes * 32, Strategy.strided), (slot_bytes * 32 + 1, Strategy.packed)]:
        run = Run("batched", gemv(2, 1, 2, 32, Dtype.fp32, 24), 32, pack_bytes)
        for batch in run.batches(32):
            run.prepared.submit(batch, flush_ns=0)
        run.finish()
        assert set(run.launches(LaunchColumn.STRATEGY)) == {strategy}


def test_scratch_is_for_the_largest_batch_that_may_be_packed() -> None:
    stream = GemmStream([(16, 16), (64, 64)], 1, [Segment(1, 20)], Dtype.fp32, 1)
    small, large = stream.shapes
    of_one = {shape: sum(arena.slot_bytes for arena in arenas_of(shape)) for shape in (small, large)}
    limits = {small: 20, large: 8}
    assert Batched.scratch_bytes(stream, limits, ALWAYS_PACK) == max(20 * of_one[small], 8 * of_one[large])
    assert Batched.scratch_bytes(stream, limits, of_one[small] + 1) == 20 * of_one[small]
    assert Batched.scratch_bytes(stream, limits, NEVER_PACK) == 0
    assert Batched.scratch_bytes(stream, {small: 1, large: 1}, ALWAYS_PACK) == 0  # a batch of one is never scattered
    assert mode_class("baseline").scratch_bytes(stream, limits, ALWAYS_PACK) == 0


def test_batched_refuses_single_commands() -> None:
    run = Run("batched", gemv(2, 1, 2, 4, Dtype.fp32, 4))
    with pytest.raises(RunError, match="mode=batched takes batches"):
        run.prepared.submit_each(np.zeros((1, 8), np.uint64), np.zeros(1, np.int32), 0)


@pytest.mark.parametrize("name", MODES)
def test_a_mode_says_what_it_is(name: str) -> None:
    kind: Any = mode_class(name)
    assert kind.name == name
    assert kind.__module__ == f"launchopt.modes.{name}"
    check_mode(name)


def test_an_unknown_mode_lists_the_known() -> None:
    for ask in (check_mode, mode_class):
        with pytest.raises(ConfigError) as caught:
            ask("batchd")
        modes = ", ".join(sorted(MODES))
        assert str(caught.value) == f"mode=batchd: no such mode; allowed: {modes}; did you mean mode=batched?"


def test_listing_modes_imports_no_cuda_and_no_compiler() -> None:
    code = "import sys, launchopt.modes as modes; modes.check_mode('batched'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "launchopt" in loaded
    assert not loaded & {"cupy", "numba", "nvmath", "cuda", "numpy"}
