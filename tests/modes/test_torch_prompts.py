"""Many prompts of one length: PyTorch's modes replay one graph for all of them, in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.modes.torch_runs import LAYERS, REPLICAS, cuda_device, needs_torch, unique_graphs, use_stand_ins
from support.steps.step_runs import StepRun

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.devices.pytorch.prompts import are_shared, shared_bytes
from launchopt.modes import mode_class
from launchopt.recording.launch_rows import LaunchColumn
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import linear_epilogue_program, linear_program

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's warnings do not concern this program

LINEAR = linear_program([(96, 64), (64, 96), (128, 64), (64, 128)])
PROGRAMS = {"linear": LINEAR, "epilogue": linear_epilogue_program(70)}
MOST = 4
in_each_mode = pytest.mark.parametrize("mode", ["torch_graph", "torch_compile"])
of_each_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


def prompts_of(sizes: Sequence[int], name: str = "linear", chunk: int | None = None) -> ChainStream:
    """Return a stream of prompts of these lengths, with one token of output each."""
    requests = Requests(np.arange(len(sizes)), np.array(sizes), np.ones(len(sizes), np.int64))
    return ChainStream(PROGRAMS[name], LAYERS, requests, Dtype.fp32, REPLICAS, ChainSettings(None, chunk, 5))


def run_of(mode: str, stream: ChainStream, cached: int, device: Any = None) -> StepRun:
    return StepRun(mode_class(mode)(cached=cached), stream, MOST, device)


@needs_torch
@in_each_mode
@of_each_program
@pytest.mark.usefixtures("stand_ins")
def test_prompts_of_a_length_share_a_graph(mode: str, name: str) -> None:
    run = run_of(mode, prompts_of([5] * 9, name), 2)
    prepared: Any = run.prepared
    for seed in (None, 1, 2):
        run.run(seed)
        run.check()
        assert prepared.counters().graph_replays == run.recorder.launch_count == 9
        assert len(prepared._graphs._kept) == 1
    run.close()


@needs_torch
@in_each_mode
@pytest.mark.usefixtures("stand_ins")
def test_prompts_of_several_lengths_have_a_graph_for_each(mode: str) -> None:
    run = run_of(mode, prompts_of([5, 6, 5, 7, 6, 5, 7, 7]), 3)
    prepared: Any = run.prepared
    for _ in range(2):
        run.run()
        run.check()
        assert prepared.counters().graph_replays == run.recorder.launch_count == 8
        assert len(prepared._graphs._kept) == 3
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_chunks_of_prompts_share_graphs() -> None:
    run = run_of("torch_graph", prompts_of([7] * 6, chunk=4), 2)
    run.run()
    run.check()
    assert run.prepared.counters().graph_replays == 12
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_copies_around_a_shared_graph_are_counted() -> None:
    run = run_of("torch_graph", prompts_of([5] * 3), 2)
    run.run()
    rows = run.stream.template
    outputs = sum(dict(zip(rows["slot_c"].tolist(), rows["m"].tolist(), strict=True)).values())  # layers share slots
    own = 4 * 5 * (run.stream.hidden + outputs)
    copied = run.launches(LaunchColumn.PACKED_BYTES)
    assert set(copied) == {own}
    assert own <= shared_bytes(run.stream, 2)
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_a_shared_step_is_compiled_ahead() -> None:
    run = run_of("torch_compile", prompts_of([5] * 6), 2)
    compiled = unique_graphs()
    run.run()
    run.check()
    assert unique_graphs() == compiled
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_with_more_lengths_than_graphs_the_first_are_kept() -> None:
    run = run_of("torch_graph", prompts_of([3, 4, 5, 6, 7]), 2)
    prepared: Any = run.prepared
    replays = []
    for _ in range(4):
        run.run()
        run.check()
        replays.append(prepared.counters().graph_replays)
    assert replays[-2:] == [2, 2]
    spent = prepared.counters().costs_ns["capture"]
    run.run()
    assert prepared.counters().costs_ns["capture"] == spent
    run.close()


@pytest.mark.parametrize(
    ("sizes", "bound", "is_shared"),
    [([5] * 9, 8, True), ([5] * 8, 8, False), ([3, 4, 5] * 3, 3, True), ([3, 4, 5] * 3, 2, False)],
)
def test_graphs_are_shared_by_more_prompts_than_graphs_of_no_more_lengths(
    sizes: list[int], bound: int, is_shared: bool
) -> None:
    assert are_shared(prompts_of(sizes), bound) is is_shared
    assert bool(shared_bytes(prompts_of(sizes), bound)) is is_shared


@pytest.mark.gpu
@in_each_mode
@of_each_program
def test_shared_graphs_on_a_gpu(mode: str, name: str) -> None:
    run = run_of(mode, prompts_of([32] * 9, name), 2, cuda_device())
    for _ in range(2):
        run.run()
        run.check()
        assert run.prepared.counters().graph_replays == run.recorder.launch_count == 9
    run.close()
