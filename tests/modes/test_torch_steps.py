"""PyTorch's ways to run whole steps: the same operands, the same outputs, each call counted.

On the CPU a compiler that generates no code stands in for Inductor, and lists of calls for CUDA graphs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.modes.torch_runs import (
    LAYERS,
    MOST,
    PROGRAMS,
    REPLICAS,
    cuda_device,
    in_each_dtype,
    needs_torch,
    unique_graphs,
    use_stand_ins,
    users,
)
from support.steps.step_runs import StepRun, batches

from launchopt.arrivals.requests import Requests
from launchopt.command import COMMAND_DTYPE, Dtype, Records
from launchopt.errors import RunError
from launchopt.modes import mode_class
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import Program

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's warnings do not concern this program


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


in_each_program = pytest.mark.parametrize("name", PROGRAMS)
GREEDY = Sampling(SamplingKind.greedy)


def stream_of(program: Program, dtype: Dtype, vocab: int | None = None) -> ChainStream:
    """Return a stream of requests whose prompts have one chunk, two chunks, one token, or no token."""
    prompts, outputs = np.array([7, 7, 7, 0, 3, 0, 0, 1]), np.array([2, 3, 2, 3, 1, 4, 4, 3])
    requests = Requests(np.arange(len(prompts)), prompts, outputs)
    return ChainStream(program, LAYERS, requests, dtype, REPLICAS, ChainSettings(vocab, 4, 5))


def submitting() -> Any:
    """Return a context of PyTorch that counts calls of operators that submit work: those that return no view."""
    import torch

    class Counting(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: Counter[str] = Counter()

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            result = function(*args, **kwargs)
            name = function.__name__
            writes = "out" in kwargs or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
            given = args[0][0] if isinstance(args[0], list | tuple) else args[0]
            is_new = (
                isinstance(result, torch.Tensor)
                and isinstance(given, torch.Tensor)
                and result.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
            )
            if writes or is_new:
                self.calls[name] += 1
            return result

    return Counting()


@needs_torch
@in_each_dtype
@in_each_program
def test_eager_steps(name: str, dtype: Dtype) -> None:
    run = StepRun("torch_eager", stream_of(PROGRAMS[name], dtype), MOST)
    for seed in (None, 1, 2):
        run.run(seed)
        run.check()
        assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.torch}
    run.close()


@needs_torch
@in_each_program
def test_every_operator_that_submits_work_is_counted(name: str) -> None:
    run = StepRun("torch_eager", stream_of(PROGRAMS[name], Dtype.fp32), MOST)
    run.run()  # makes all views
    counting = submitting()
    submit = run.prepared.submit_steps

    def counted(*given: Any) -> None:
        with counting:
            submit(*given)

    run.prepared.submit_steps = counted  # type: ignore[method-assign]
    run.run()
    assert run.recorder.launch_calls == sum(counting.calls.values()), counting.calls
    run.close()


@needs_torch
def test_requests_in_step_are_a_launch_a_row_and_one_for_attention() -> None:
    stream = users(PROGRAMS["layer"], Dtype.fp32, 4, 3)
    run = StepRun("torch_eager", stream, 4)
    run.run()
    run.check()
    ops = [node.op.name for node in PROGRAMS["layer"].layer]
    at = ops.index("QK")
    calls = [("SLOT_MAP", 4), *([*((op, 4) for op in ops[:at]), ("", 12), *((op, 4) for op in ops[at + 3 :])] * LAYERS)]
    shapes = ["" if index < 0 else stream.shapes[index].op.name for index in run.launches(LaunchColumn.SHAPE)]
    assert list(zip(shapes, run.launches(LaunchColumn.SIZE), strict=True)) == calls * 3
    run.close()


@needs_torch
def test_gemms_whose_weights_are_side_by_side_are_one_launch() -> None:
    stream = users(PROGRAMS["qkv"], Dtype.bf16, 4, 3)
    run = StepRun("torch_eager", stream, 4)
    run.run()
    run.check()
    assert run.launches(LaunchColumn.SIZE) == [12, 4, 4, 4] * LAYERS * 3
    run.close()


@needs_torch
@pytest.mark.parametrize("name", ["layer", "qkv"])
def test_sampled_tokens(name: str) -> None:
    run = StepRun("torch_eager", stream_of(PROGRAMS[name], Dtype.fp32, vocab=300), MOST, sampling=GREEDY)
    run.run(3)
    run.check()
    run.close()


@needs_torch
def test_a_step_is_made_once() -> None:
    run = StepRun("torch_eager", stream_of(PROGRAMS["paged"], Dtype.fp32), MOST)
    run.run()
    prepared: Any = run.prepared
    made = dict(prepared._steps._steps)
    run.run()
    run.check()
    assert dict(prepared._steps._steps) == made
    run.close()


@needs_torch
def test_a_record_that_reads_elsewhere_is_refused() -> None:
    run = StepRun("torch_eager", users(PROGRAMS["qkv"], Dtype.fp32, 2, 2), 2)
    batch = next(batches(run.stream, 2))
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    records["slot_b"][2 * batch.size] += 1
    with pytest.raises(RunError, match="row 2 of a step reads B"):
        run.prepared.submit_steps(batch, 0)
    run.close()


@needs_torch
@pytest.mark.parametrize(("name", "dtype"), [("paged", Dtype.fp16), ("layer", Dtype.fp32), ("qkv", Dtype.bf16)])
@pytest.mark.usefixtures("stand_ins")
def test_compiled_steps_are_a_call_each_and_compiled_ahead(name: str, dtype: Dtype) -> None:
    run = StepRun("torch_compile", stream_of(PROGRAMS[name], dtype), MOST)
    compiled = unique_graphs()
    for seed in (None, 1):
        run.run(seed)
        run.check()
    assert unique_graphs() == compiled
    assert run.prepared.counters().graph_replays
    assert set(run.launches(LaunchColumn.SHAPE)) == {-1}
    rows = set(np.diff(run.stream.kind_stops, prepend=0).tolist())
    assert all(any(size % count == 0 for count in rows) for size in run.launches(LaunchColumn.SIZE))
    run.close()


@needs_torch
@in_each_program
@pytest.mark.usefixtures("stand_ins")
def test_graphs_of_steps(name: str) -> None:
    run = StepRun("torch_graph", stream_of(PROGRAMS[name], Dtype.fp32), MOST)
    replays = []
    for seed in (None, 4, 4, 4):
        run.run(seed)
        run.check()
        replays.append(run.prepared.counters().graph_replays or 0)
    # A step is recorded when it comes for the second time, so no run after the third records any.
    assert replays[1] < replays[2] == replays[3] == run.recorder.launch_count
    assert run.prepared.counters().costs_ns["capture"] > 0
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_all_in_step_is_recorded_ahead() -> None:
    stream = users(PROGRAMS["layer"], Dtype.fp32, 4, 5)
    run = StepRun("torch_graph", stream, 4)
    run.run()
    run.check()
    # The first step reads scattered rows of the embedding table, and does not come again.
    assert run.prepared.counters().graph_replays == 4
    attention = 2 * LAYERS  # commands that are launched with another one
    assert len(run.launches(LaunchColumn.SIZE)) == stream.commands_per_step - attention + 4
    assert run.launches(LaunchColumn.SIZE)[-4:] == [4 * stream.commands_per_step] * 4
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("mode", ["torch_graph", "torch_compile"])
def test_a_warm_up_run_captures_every_step(mode: str) -> None:
    run = StepRun(mode, stream_of(PROGRAMS["paged"], Dtype.fp32), MOST)
    start = run.prepared.start
    run.prepared.start = lambda warm_up=False: start(True)  # type: ignore[method-assign]
    run.run(4)
    run.prepared.start = start  # type: ignore[method-assign]
    captured = run.prepared.counters().costs_ns["capture"]
    run.run(4)
    run.check()
    assert run.prepared.counters().graph_replays == run.recorder.launch_count
    assert run.prepared.counters().costs_ns["capture"] == captured
    run.close()


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_versions_settings_and_the_time_to_compile_are_in_the_result() -> None:
    import torch

    for mode, words in (("torch_eager", "SDPA"), ("torch_compile", "coordinate descent in all directions")):
        run = StepRun(mode, users(PROGRAMS["epilogue"], Dtype.fp32, 2, 2), 2)
        library = run.prepared.library or ""
        assert library.startswith(f"torch {torch.__version__}")
        assert words in library
        assert ("compile" in run.prepared.counters().costs_ns) == (mode == "torch_compile")
        run.close()


@needs_torch
@in_each_program
def test_a_compiled_step_keeps_inside_only_what_its_layer_reads_whole(name: str) -> None:
    program = PROGRAMS[name]
    inside = mode_class("torch_compile").unwritten_of(users(program, Dtype.fp32, 1, 1))
    for node in program.layer:
        if node.name in inside:
            parts, reader = next(
                (parts, each) for each in program.layer if node.name in (parts := program.sources(each))
            )
            assert reader.k == sum(program.node(part).m for part in parts)
    assert program.layer[-1].name not in inside
    assert {"add1", "kv_write"}.isdisjoint(inside)
    assert {"q", "k", "v"} & inside == ({"q", "k", "v"} if name == "apart" else set())


@needs_torch
@pytest.mark.parametrize(("cached", "kept"), [(1, REPLICAS), (3, 3)])
@pytest.mark.usefixtures("stand_ins")
def test_no_more_graphs_are_kept_than_asked_for_or_copies_of_the_weights(cached: int, kept: int) -> None:
    mode = mode_class("torch_graph")(cached=cached)
    run = StepRun(mode, stream_of(PROGRAMS["elementwise"], Dtype.fp32), MOST)
    prepared: Any = run.prepared
    for seed in (1, 1, 1):
        run.run(seed)
        run.check()
        assert len(prepared._graphs._kept) == kept
    run.close()


COMPILED = [("paged", Dtype.fp16), ("epilogue", Dtype.bf16), ("layer", Dtype.fp32)]  # each takes a while
OTHERS = [(name, dtype) for name in PROGRAMS for dtype in Dtype]
ON_GPU = [("torch_compile", *each) for each in COMPILED]
ON_GPU += [(mode, *each) for mode in ("torch_eager", "torch_graph") for each in OTHERS]


@pytest.mark.gpu
@needs_torch
@pytest.mark.parametrize(("mode", "name", "dtype"), ON_GPU)
def test_steps_on_a_gpu(mode: str, name: str, dtype: Dtype) -> None:
    run = StepRun(mode, stream_of(PROGRAMS[name], dtype), MOST, cuda_device())
    for seed in (None, 1, 1, 1):
        run.run(seed)
        run.check()
    if mode == "torch_compile":
        assert set(run.launches(LaunchColumn.SHAPE)) == {-1}
    if mode == "torch_graph":
        assert run.prepared.counters().graph_replays == run.recorder.launch_count
        assert run.prepared.counters().costs_ns["capture"] > 0
    run.close()
