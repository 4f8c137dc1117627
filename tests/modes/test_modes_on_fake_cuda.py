"""Modes on a fake of CUDA that runs on the host: their plans, tables, graphs and copies. Every output is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cuda.fake_cuda import FakeCuda, fake_cuda
from support.modes.batch_runs import Run
from support.steps.programs import stream_of
from support.steps.step_runs import StepRun, batches

from launchopt.command import COMMAND_DTYPE, Dtype
from launchopt.devices.steps.likely import padded_sizes
from launchopt.modes import mode_class
from launchopt.modes.stack import stack_of
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.groups import groups_of
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.workloads.gemv import gemv

properties = settings(deadline=None, max_examples=25)
request_sizes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)).filter(any), min_size=1, max_size=7)
LOOPS = ("graph_loop", "graph_device")
of_steps = [
    *(("coalesced", name) for name in ("linear", "square", "linear_epilogue")),
    *((mode, name) for mode in LOOPS for name in ("linear", "square", "linear_epilogue")),
    *(("graph", name) for name in ("linear", "square", "linear_epilogue", "elementwise")),
    ("fused_qkv", "square"),
    ("fused_qkv", "qkv"),
    ("fused_epilogue", "linear_epilogue"),
    ("fused_elementwise", "elementwise"),
]
products = st.builds(
    GemmStream,
    st.lists(st.tuples(st.sampled_from([1, 4, 16]), st.sampled_from([1, 4, 16])), min_size=1, max_size=3),
    st.integers(1, 2),
    st.lists(st.builds(Segment, st.integers(1, 3), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=3),
    st.just(Dtype.fp32),
    st.integers(1, 5),
    st.builds(CommandOrder, st.booleans(), st.integers(0, 3)),
)


def prepared(mode: str, stream: ChainStream, most: int, device: FakeCuda, **options: Any) -> StepRun:
    return StepRun(mode_class(mode)(**options), stream, most, device)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(of_steps),
    request_sizes,
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 7),
    st.sampled_from([None, 1, 2, 3]),
    st.integers(1, 4),
)
# Two prompts side by side, of which one goes on to tokens: a batch of these holds one.
@example(("fused_qkv", "square"), [(2, 0), (2, 2)], 1, 1, 2, None, 1)
@example(("graph", "square"), [(2, 0), (2, 2)], 1, 1, 2, None, 1)
def test_steps_are_right_whoever_is_together(
    what: tuple[str, str],
    sizes: list[tuple[int, int]],
    layers: int,
    replicas: int,
    most: int,
    seed: int | None,
    cached: int,
) -> None:
    mode, program = what
    stream = stream_of(program, sizes, layers=layers, replicas=replicas)
    with fake_cuda() as device:
        options = {"cached": cached} if mode == "graph" else {"tokens": 1 + cached} if mode in LOOPS else {}
        run = prepared(mode, stream, most, device, **options)
        for _ in range(2):  # what was found out the first time is used the second
            run.run(seed)
            run.check()
            assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
            assert mode in LOOPS or len(device.runtime.executables) <= max(cached, replicas)
        if mode in ("graph", *LOOPS):
            assert run.launches(LaunchColumn.STRATEGY).count(Strategy.graph) == run.prepared.counters().graph_replays
        run.close()


@pytest.mark.parametrize("mode", ["coalesced", "graph", "fused_epilogue"])
def test_requests_in_step_are_as_few_launches_as_can_be(mode: str) -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4, layers=2, replicas=2)
    with fake_cuda() as device:
        run = prepared(mode, stream, 4, device)
        run.run()
        run.check()
        sizes = {"coalesced": [4] * 6, "graph": [4 * 6], "fused_epilogue": [4 * 3] * 2}[mode]
        assert run.launches(LaunchColumn.SIZE)[-5 * len(sizes) :] == sizes * 5, (
            "all but the first token, whose inputs lie apart"
        )
        run.close()


def test_graphs_of_the_likely_steps_are_there_before_a_run() -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4, replicas=3)
    with fake_cuda() as device:
        run = prepared("graph", stream, 4, device)
        assert len(device.runtime.executables) == 2 * 3, "of all and of the first alone, with each copy of the weights"
        before = dict(run.prepared.counters().costs_ns)
        assert all(before[name] > 0 for name in ("capture", "instantiate", "upload"))
        run.run()
        run.check()
        assert run.prepared.counters().costs_ns["instantiate"] == before["instantiate"], (
            "nothing is captured in a run of these"
        )
        assert run.prepared.counters().graph_replays == 5
        run.close()


@pytest.mark.parametrize(("cached", "made"), [(2, 4), (6, 6), (64, 8)])
def test_graphs_are_made_of_the_steps_that_a_run_comes_to_first(cached: int, made: int) -> None:
    """These are steps of all requests, at least one for each copy of the weights that a run uses: four of nine."""
    stream = stream_of("linear_epilogue", [(0, 4)] * 2, replicas=9)
    with fake_cuda() as device:
        run = prepared("graph", stream, 2, device, cached=cached)
        assert len(device.runtime.executables) == made
        assert run.prepared.counters().costs_ns.get("update", 0) == 0, "none is made for nothing"
        run.run()
        run.check()
        assert run.prepared.counters().costs_ns.get("update", 0) == 0, "nor while the clock runs"
        assert run.prepared.counters().graph_replays == 3, "all but the first token"
        run.close()


@pytest.mark.parametrize("cached", [1, 2])
def test_where_graphs_are_too_many_one_is_given_other_addresses(cached: int) -> None:
    stream = stream_of("linear_epilogue", [(0, 6)] * 4, replicas=2)
    with fake_cuda() as device:
        run = prepared("graph", stream, 4, device, cached=cached)
        run.run(1)  # now these requests are together, now those
        run.check()
        assert len(device.runtime.executables) == 2
        assert run.prepared.counters().costs_ns["update"] > 0
        assert device.runtime.updated > 0
        run.close()


def test_scattered_columns_are_gathered_where_pieces_would_be_many() -> None:
    """The inputs of six requests' first tokens are scattered, but each weight still takes one GEMM."""
    stream = stream_of("linear", [(0, 1)] * 6, layers=2)
    with fake_cuda() as device:
        run = prepared("coalesced", stream, 6, device)
        run.run()
        run.check()
        (batch,) = batches(stream, 6)
        records = batch.words[:6].view(COMMAND_DTYPE).reshape(-1)
        assert len(np.unique(np.diff(records["slot_b"].astype(np.int64)))) > 3
        assert run.launches(LaunchColumn.SIZE) == [6] * len(stream.rows(0))
        shape = stream.shape_of(stream.rows(0)[0])
        packed = [6 * 4 * (shape.m + shape.k)] + [0] * (len(stream.rows(0)) - 1)
        assert run.launches(LaunchColumn.PACKED_BYTES) == packed, "only the first row reads from the table"
        assert run.recorder.launch_calls == len(stream.rows(0)) + 3
        run.close()


@pytest.mark.parametrize("submit", ["stream", "graph"])
@pytest.mark.parametrize("name", ["linear_epilogue", "elementwise"])
def test_evenly_spaced_rows_are_fused_beside_scattered_ones(name: str, submit: str) -> None:
    """The inputs of six requests' first tokens are scattered. Only the fused launch that reads them is taken apart."""
    stream = stream_of(name, [(0, 1)] * 6, layers=3)
    stack = stack_of("graph", {"fuse": ["epilogue"], "submit": submit})
    groups = groups_of(stream, 0, stack)
    assert groups[0].first == 0
    with fake_cuda() as device:
        run = StepRun(mode_class("graph", {"fuse": ["epilogue"], "submit": submit})(), stream, 6, device)
        run.run()
        run.check()
        assert run.launches(LaunchColumn.STRATEGY).count(Strategy.fused) == len(groups) - 1
        cut = groups[0].stop * stream.requests
        assert run.prepared.counters().unfused_commands == cut
        run.run()
        assert run.prepared.counters().unfused_commands == cut, "counted in each run"
        run.close()


@pytest.mark.parametrize("submit", ["stream", "graph", "graph_loop"])
def test_a_prepared_stack_says_what_it_did_not_get(submit: str) -> None:
    """Our GEMM takes no fp32: the library's GEMMs stay, and all outputs are right."""
    stream = stream_of("linear", [(0, 2)] * 2, layers=2)
    with fake_cuda() as device:
        run = StepRun(mode_class("coalesced", {"kernels": "own", "submit": submit})(), stream, 2, device)
        run.run()
        run.check()
        rows = [row.name for row in stream.rows(0)]
        why = "our GEMM of a step takes fp16 and bf16"
        assert {tuple(each) for each in run.prepared.left_out} == {
            (name, *[rows.count(name)] * 2, why) for name in rows
        }
        run.close()


@pytest.mark.parametrize(("name", "fusion"), [("linear_epilogue", "epilogue"), ("qkv", "qkv")])
def test_each_of_many_prompts_is_fused_alone(name: str, fusion: str) -> None:
    """A fused GEMM of several columns holds the columns of one request."""
    stream = stream_of(name, [(3, 1)] * 6, layers=2)
    groups = groups_of(stream, 0, stack_of("coalesced", {"fuse": [fusion]}))
    with fake_cuda() as device:
        run = StepRun(mode_class("coalesced", {"fuse": [fusion]})(), stream, 6, device)
        run.run()
        run.check()
        assert groups
        assert run.launches(LaunchColumn.STRATEGY).count(Strategy.fused) == 6 * len(groups)
        assert run.prepared.counters().unfused_commands == 0
        run.close()


@pytest.mark.parametrize("mode", ["coalesced", "graph"])
@pytest.mark.parametrize("seed", range(4))
def test_many_requests_at_different_tokens(mode: str, seed: int) -> None:
    """The requests of a batch form many evenly spaced runs, and use two copies of the weights."""
    stream = stream_of("linear", [(0, 5)] * 14, layers=2, replicas=2)
    with fake_cuda() as device:
        run = prepared(mode, stream, 14, device)
        run.run(seed)
        run.check()
        assert any(run.launches(LaunchColumn.PACKED_BYTES)), "else nothing was gathered"
        run.close()


@properties
@given(products, st.integers(1, 40), st.integers(1, 9), st.sampled_from(["pointer_array", "graph"]))
def test_batches_are_right_wherever_their_operands_lie(stream: GemmStream, chunk: int, most: int, mode: str) -> None:
    with fake_cuda() as device:
        run = Run(mode, stream, most, device=device)
        sizes = [len(shapes) for shapes in run.submit_all(chunk)]
        graph = mode == "graph"
        assert run.launches(LaunchColumn.SIZE) == sizes
        by_table = [size for size in sizes if graph or size > 1]
        assert run.recorder.launch_calls == len(sizes) + len(by_table), "an upload each"
        if graph:
            limits = [min(most, stream.counts[shape]) for shape in stream.shapes]
            made = [
                sorted(padded_sizes(limits[index])) for index in (shapes for shapes in run.launches(LaunchColumn.SHAPE))
            ]
            padded = [next(each for each in of if each >= size) for of, size in zip(made, sizes, strict=True)]
            assert run.prepared.counters().padded_commands == sum(padded) - sum(sizes)
            assert run.launches(LaunchColumn.PACKED_BYTES) == [24 * each for each in padded]
            assert run.prepared.counters().graph_replays == len(sizes)
        run.finish()


@properties
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 70))
def test_commands_of_one_weight_are_one_gemm(commands: int, most: int, chunk: int) -> None:
    with fake_cuda() as device:
        run = Run("coalesced", gemv(4, 1, 8, commands, Dtype.fp32, 1), most, device=device)
        run.submit_all(chunk)
        assert set(run.launches(LaunchColumn.STRATEGY)) <= {Strategy.single, Strategy.coalesced}
        assert not any(run.launches(LaunchColumn.PACKED_BYTES)), "they lie evenly spaced"
        run.finish()


@properties
@given(products, st.integers(1, 40), st.integers(1, 9), st.sampled_from([0, 64]))
def test_ranges_change_no_launch(stream: GemmStream, chunk: int, most: int, pack_bytes: int) -> None:
    """With a profiler attached, Python makes each launch, inside its own NVTX range."""
    made = []
    for attached in (False, True):
        with fake_cuda() as device:
            run = Run("batched", stream, most, pack_bytes, device)
            device.marks.attached = attached
            run.submit_all(chunk)
            made.append([run.launches(column) for column in (LaunchColumn.SIZE, LaunchColumn.STRATEGY)])
            run.finish()
    assert made[0] == made[1]
