"""PyTorch's ways to run commands and steps: the same operands, the same outputs, each call counted.

On the CPU a compiler that generates no code stands in for Inductor, and lists of calls for CUDA graphs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import Run, streams
from support.steps.step_runs import StepRun, batches

from launchopt.arrivals.requests import Requests
from launchopt.batching.batcher import Batcher, FlushRules
from launchopt.command import COMMAND_DTYPE, Dtype, Records, as_words
from launchopt.devices.base import Counters
from launchopt.devices.cpu.device import CpuDevice
from launchopt.errors import RunError
from launchopt.modes import mode_class
from launchopt.modes.base import Mode, Takes
from launchopt.recording import recorder as rec
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chain import ChainSettings, ChainStream
from launchopt.streams.model import ModelShape
from launchopt.streams.program import (
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    qkv_program,
)
from launchopt.streams.stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import verify
from launchopt.workloads.gemv import gemv

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own affairs
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)

NAMES = ("torch_eager", "torch_compile", "torch_graph")
MODEL = ModelShape("tiny", 64, 2, 4, 2, 16, 96)
PROGRAMS = {
    "layer": layer_program(MODEL, 16),
    "paged": layer_program(MODEL, 19, 4),
    "one_head": layer_program(ModelShape("tiny", 64, 2, 2, 1, 32, 96, gated=False), 16),
    "qkv": qkv_program(ModelShape("tiny", 128, 2, 4, 2, 64, 128)),
    "epilogue": linear_epilogue_program(70),
    "elementwise": elementwise_program(33),
}
in_each_program = pytest.mark.parametrize("name", PROGRAMS)
MOST, REPLICAS, LAYERS = 4, 2, 2
GREEDY = Sampling(SamplingKind.greedy)


def stream_of(program: Program, dtype: Dtype, vocab: int | None = None) -> ChainStream:
    """Prompts of one chunk, of two, of one token, and none."""
    prompts, outputs = np.array([7, 7, 7, 0, 3, 0, 0, 1]), np.array([2, 3, 2, 3, 1, 4, 4, 3])
    requests = Requests(np.arange(len(prompts)), prompts, outputs)
    return ChainStream(program, LAYERS, requests, dtype, REPLICAS, ChainSettings(vocab, 4, 5))


def users(program: Program, dtype: Dtype, requests: int, tokens: int) -> ChainStream:
    """Requests without a prompt, all alike."""
    asked = Requests(np.arange(requests), np.zeros(requests, np.int64), np.full(requests, tokens))
    return ChainStream(program, LAYERS, asked, dtype, REPLICAS, ChainSettings(seed=5))


class Listed:
    """In place of CUDA graphs: a list of one call."""

    def __init__(self, counters: Counters) -> None:
        counters.spend("capture", 1)

    def make(self, record: Callable[[], None]) -> Any:
        return type("Replay", (), {"replay": staticmethod(record)})()


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.modes.torch_compile.BACKEND", "aot_eager")
    monkeypatch.setattr("launchopt.devices.pytorch.graphs.Graphs", Listed)


# What they say of themselves, for which no PyTorch is needed


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


def unique_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def batched_run(name: str, stream: GemmStream, most: int) -> Run:
    """Everything is compiled ahead."""
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
def test_batches_that_lie_in_a_row_and_scattered(name: str, shuffle: bool, dtype: Dtype) -> None:
    run = batched_run(name, gemv(6, 2, 10, 45, dtype, 12, CommandOrder(shuffle)), 8)
    assert sum(run.launches(LaunchColumn.SIZE)) == 45
    looked_up = [bool(copied) for copied in run.launches(LaunchColumn.PACKED_BYTES)]
    if name == "torch_compile":
        assert shuffle in looked_up
    else:
        assert all(looked_up)


@needs_torch
@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.usefixtures("stand_ins")
def test_batches_of_several_shapes_and_one_weight(name: str) -> None:
    for linears, replicas in [([(3, 5), (16, 3), (5, 16)], 7), ([(4, 4)], 1)]:
        stream = GemmStream(linears, 1, [Segment(3, 5), Segment(1, 9)], Dtype.fp32, replicas)
        batched_run(name, stream, 6)


@needs_torch
@pytest.mark.usefixtures("stand_ins")
def test_padding_is_counted_and_never_scattered() -> None:
    stream = gemv(6, 1, 10, 13, Dtype.fp32, 5)
    run = batched_run("torch_graph", stream, 8)
    assert run.launches(LaunchColumn.SIZE) == [8, 5]
    assert run.prepared.counters().padded_commands == 3
    assert run.prepared.counters().graph_replays == 2
    # Slots uploaded before each; behind the one that was filled up, a scatter of its own.
    assert run.recorder.launch_calls == 2 + 2 + 1
    assert run.prepared.counters().costs_ns["update"] > 0


def test_sizes_are_powers_of_two_and_the_limit() -> None:
    pytest.importorskip("torch")
    from launchopt.devices.pytorch.graphs import padded_sizes

    assert [padded_sizes(limit) for limit in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


# Whole steps


def submitting() -> Any:
    """A mode of PyTorch's that counts the operators called which submit work: those that give no view."""
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
            is_new = (
                isinstance(result, torch.Tensor)
                and isinstance(args[0], torch.Tensor)
                and result.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr()
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
    run.run()  # from now on all views are there
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
def test_requests_in_step_are_a_launch_a_row_whatever_their_number() -> None:
    stream = users(PROGRAMS["layer"], Dtype.fp32, 4, 3)
    run = StepRun("torch_eager", stream, 4)
    run.run()
    run.check()
    assert run.launches(LaunchColumn.SIZE) == [4] * (3 * stream.commands_per_step)
    shapes = [stream.shapes[index].op.name for index in run.launches(LaunchColumn.SHAPE)[: stream.commands_per_step]]
    assert shapes == ["SLOT_MAP", *[node.op.name for node in PROGRAMS["layer"].layer] * LAYERS]
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
    # The third time all is recorded that the second had seen for the first time.
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
    # The first step reads the table, whose rows lie scattered; it is not seen again.
    assert run.prepared.counters().graph_replays == 4
    assert run.launches(LaunchColumn.SIZE) == [4] * stream.commands_per_step + [4 * stream.commands_per_step] * 4
    run.close()


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


# On a GPU


@pytest.fixture
def gpu() -> Any:
    from launchopt.devices.cuda.device import CudaDevice

    return CudaDevice(0)


COMPILED = [("paged", Dtype.fp16), ("epilogue", Dtype.bf16), ("layer", Dtype.fp32)]  # each takes a while
OTHERS = [(name, dtype) for name in PROGRAMS for dtype in Dtype]
ON_GPU = [("torch_compile", *each) for each in COMPILED]
ON_GPU += [(mode, *each) for mode in ("torch_eager", "torch_graph") for each in OTHERS]


@pytest.mark.gpu
@needs_torch
@pytest.mark.parametrize(("mode", "name", "dtype"), ON_GPU)
def test_steps_on_a_gpu(gpu: Any, mode: str, name: str, dtype: Dtype) -> None:
    run = StepRun(mode, stream_of(PROGRAMS[name], dtype), MOST, gpu)
    for seed in (None, 1, 1, 1):
        run.run(seed)
        run.check()
    if mode == "torch_compile":
        assert set(run.launches(LaunchColumn.SHAPE)) == {-1}
    if mode == "torch_graph":
        assert run.prepared.counters().graph_replays == run.recorder.launch_count
        assert run.prepared.counters().costs_ns["capture"] > 0
    run.close()


def run_commands(device: Any, mode: Mode, stream: GemmStream, most: int) -> None:
    """As the consumer does it, and check."""
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
    found = verify(stream, device.arenas, 64)
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
def test_commands_on_a_gpu(gpu: Any, mode: str, shuffle: bool, dtype: Dtype) -> None:
    run_commands(gpu, mode_class(mode)(), gemv(64, 1, 256, 300, dtype, 48, CommandOrder(shuffle)), 32)
