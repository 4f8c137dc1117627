"""PyTorch's ways to run commands and batches: the same operands, the same outputs, each call counted.

On the CPU a compiler that generates no code stands in for Inductor, and lists of calls for CUDA graphs.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import Run, streams
from support.modes.torch_runs import (
    MOST,
    NAMES,
    PROGRAMS,
    cuda_device,
    in_each_dtype,
    needs_torch,
    unique_graphs,
    use_stand_ins,
    users,
)

from launchopt.batching.batch import FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import Dtype, as_words
from launchopt.devices.cpu.device import CpuDevice
from launchopt.modes import mode_class
from launchopt.modes.base import Mode, Takes
from launchopt.recording import recorder as rec
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify
from launchopt.workloads.gemv import gemv

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's warnings do not concern this program


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


# What the modes refuse and need; these tests need no PyTorch


@pytest.mark.parametrize("name", NAMES)
def test_what_they_take(name: str) -> None:
    kind = mode_class(name)
    steps, commands = users(PROGRAMS["qkv"], Dtype.fp16, 2, 2), gemv(8, 1, 8, 4, Dtype.fp16, 4)
    assert kind.takes_of(steps) is Takes.steps
    assert kind.takes_of(commands) is (Takes.commands if name == "torch_eager" else Takes.batches)
    assert kind.extra == "torch"
    for stream in (steps, commands):
        assert kind.refusal("cuda", stream) is None
        assert (kind.refusal("cpu", stream) is None) == (name == "torch_eager")
        assert "torch" not in (kind.refusal("cpu", stream) or "")
        limits = {shape: min(MOST, stream.together(shape)) for shape in stream.shapes}
        assert kind.scratch_bytes(stream, limits, 0) > 0


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is here")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_said(name: str) -> None:
    assert str(mode_class(name).lacks()).endswith("pip install -e '.[torch]'")
    assert "torch" not in sys.modules


# Independent commands


def eager_run(stream: GemmStream, chunk: int) -> Run:
    run = Run("torch_eager", stream)
    batcher, shape_of = Batcher(stream.shapes, list(run.limits.values()), FlushRules(0)), np.zeros(chunk, np.int32)
    records = np.concatenate([block.records for block in stream.blocks()])
    for first in range(0, len(records), chunk):
        part = records[first : first + chunk]
        run.prepared.submit_each(as_words(part), batcher.classify(part, shape_of), flush_ns=first)
    run.finish()
    return run


@needs_torch
@settings(deadline=None, max_examples=25)
@given(streams, st.integers(1, 40))
def test_eager_is_an_operator_a_command_in_order_of_arrival(stream: GemmStream, chunk: int) -> None:
    run = eager_run(stream, chunk)
    assert run.recorder.launch_calls == stream.commands
    assert run.launches(LaunchColumn.SIZE) == [1] * stream.commands
    assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.torch}
    assert run.launches(LaunchColumn.FLUSH_NS) == [seq - seq % chunk for seq in range(stream.commands)]


@needs_torch
def test_slots_too_many_to_be_listed_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.devices.pytorch.commands.MOST_LISTED", 3)
    eager_run(gemv(3, 2, 5, 9, Dtype.fp32, 2), 9)


@needs_torch
def test_eager_takes_batches_apart() -> None:
    stream = gemv(3, 2, 5, 9, Dtype.fp32, 2)
    run = Run("torch_eager", stream)
    for batch in run.batches(9):
        run.prepared.submit(batch, 0)
    run.finish()
    assert run.recorder.launch_calls == stream.commands


def batched_run(name: str, stream: GemmStream, most: int) -> Run:
    """Run a stream in batches of up to `most`; nothing is compiled during the run."""
    run = Run(name, stream, most)
    run.prepared.start()
    compiled = unique_graphs()
    for batch in run.batches(stream.commands):
        run.prepared.submit(batch, 0)
    run.finish()
    assert unique_graphs() == compiled
    assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.torch}
    return run


@needs_torch
@in_each_dtype
@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.usefixtures("stand_ins")
def test_each_run_of_evenly_spaced_commands_is_a_launch_in_place(name: str, shuffle: bool, dtype: Dtype) -> None:
    run = batched_run(name, gemv(6, 2, 10, 45, dtype, 12, CommandOrder(shuffle)), 8)
    sizes = run.launches(LaunchColumn.SIZE)
    assert sum(sizes) == 45
    assert (len(sizes) > 20) == shuffle
    if name == "torch_compile" or not shuffle:
        assert run.recorder.launch_calls == len(sizes)
        assert not any(run.launches(LaunchColumn.PACKED_BYTES))


@needs_torch
@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.usefixtures("stand_ins")
def test_batches_of_several_shapes_and_one_weight(name: str) -> None:
    for linears, replicas in [([(3, 5), (16, 3), (5, 16)], 7), ([(4, 4)], 1)]:
        stream = GemmStream(linears, 1, [Segment(3, 5), Segment(1, 9)], Dtype.fp32, replicas)
        batched_run(name, stream, 6)


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_a_batch_of_many_runs_whose_weights_come_again_is_a_replay_between_copies() -> None:
    stream = gemv(6, 1, 10, 25, Dtype.fp32, 2)
    run = Run("torch_graph", stream, 8)
    run.prepared.start(warm_up=True)
    for batch in run.batches(stream.commands):
        run.prepared.submit(batch, 0)
    run.finish()
    # A batch of 8 has 4 runs of 2 commands. The first is captured, and the next two are replayed.
    assert run.launches(LaunchColumn.SIZE) == [2, 2, 2, 2, 8, 8, 1]
    assert run.prepared.counters().graph_replays == 2
    assert run.recorder.launch_calls == 4 + 2 * 3 + 1
    assert run.launches(LaunchColumn.PACKED_BYTES) == [0] * 4 + [8 * (6 + 10) * 4] * 2 + [0]
    assert run.prepared.counters().costs_ns["capture"] > 0


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_no_more_graphs_of_batches_are_kept_than_asked_for() -> None:
    stream = gemv(6, 1, 10, 96, Dtype.fp32, 12, CommandOrder(shuffle=True))
    run = Run("torch_graph", stream, 8, cached=2)
    for warms_up in (True, False):
        run.recorder.reset()
        run.prepared.start(warm_up=warms_up)
        for batch in run.batches(stream.commands):
            run.prepared.submit(batch, 0)
        assert len(run.prepared._graphs._kept) == 2  # type: ignore[attr-defined]
    run.finish()
    assert 0 < (run.prepared.counters().graph_replays or 0) < 96 // 8


def run_commands(device: Any, mode: Mode, stream: GemmStream, most: int) -> None:
    """Submit blocks of commands as the consumer does; check the outputs."""
    recorder = rec.Recorder(stream.commands)
    device.open(stream, recorder, seed=0)
    prepared = mode.prepare(device, dict.fromkeys(stream.shapes, most))
    device.arenas.poison()
    device.synchronize()
    device.use_mode("")
    device.start(0, prepared.path)
    prepared.start()
    device.begin()
    records = np.concatenate([block.records for block in stream.blocks()])
    if mode.takes_of(stream) is Takes.commands:
        prepared.submit_each(as_words(records), np.zeros(len(records), np.int32), 0)
    else:
        batcher = Batcher(stream.shapes, [most], FlushRules(1 << 60))
        for batch in chain(batcher.take(records, 0), batcher.take(records[:0], 0, is_drained=True)):
            prepared.submit(batch, 0)
    device.finish()
    assert list(recorder.faults()) == []
    found = verify(stream, device.arenas, CheckSettings(64))
    assert found.ok, found.first_wrong
    prepared.close()
    device.close()


@needs_torch
@pytest.mark.parametrize("mode", NAMES)
@pytest.mark.usefixtures("stand_ins")
def test_commands_with_no_help_of_a_run(mode: str) -> None:
    run_commands(
        CpuDevice(threads=1), mode_class(mode)(), gemv(6, 1, 25, 30, Dtype.fp32, 12, CommandOrder(shuffle=True)), 8
    )


@pytest.mark.gpu
@needs_torch
@pytest.mark.parametrize(("mode", "dtype"), [(NAMES[1], Dtype.fp16), *[(m, d) for m in NAMES[::2] for d in Dtype]])
@pytest.mark.parametrize("shuffle", [False, True])
def test_commands_on_a_gpu(mode: str, shuffle: bool, dtype: Dtype) -> None:
    run_commands(cuda_device(), mode_class(mode)(), gemv(64, 1, 256, 300, dtype, 48, CommandOrder(shuffle)), 32)
