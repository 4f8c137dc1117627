"""mode=triton_experts: what it takes, its launches over stand-ins for CUDA and Triton, and its outputs on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_cuda import fake_cuda
from support.cuda.fake_triton import fake_triton
from support.modes.batch_runs import Run
from support.steps.expert_layers import layer_stream, layers

from launchopt.batching.batch import Batch
from launchopt.command import Dtype
from launchopt.errors import ConfigError, RunError
from launchopt.modes import mode_class
from launchopt.modes.stack import choices_of
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import RoutingKind
from launchopt.verify.commands import CheckSettings
from launchopt.verify.experts import verify_experts
from launchopt.workloads.gemv import gemv

LAYER = ExpertLayer(64, 32, 8, 2, 5)
STACKS: list[Mapping[str, object]] = [{}, {"submit": "graph"}, {"submit": "graph", "pdl": True}, {"pdl": True}]
CALLS = {"stream": 7, "graph": 1}
in_each_stack = pytest.mark.parametrize(
    "stack", STACKS, ids=lambda stack: "+".join(map(str, stack.values())) or "as is"
)


@settings(deadline=None, max_examples=20)
@given(
    layer=layers(),
    steps=st.integers(1, 3),
    replicas=st.integers(1, 2),
    routing=st.sampled_from([RoutingKind.balanced, RoutingKind.power_law]),
    stack=st.sampled_from(STACKS),
)
def test_outputs_are_right(
    layer: ExpertLayer, steps: int, replicas: int, routing: RoutingKind, stack: Mapping[str, object]
) -> None:
    stream = layer_stream(layer, steps, replicas=replicas, kind=routing)
    with fake_cuda() as device, fake_triton(device):
        run = Run("triton_experts", stream, 3, device=device, stack=stack)
        run.submit_all(7)
        assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
        run.finish()


@in_each_stack
def test_a_step_takes_seven_launches_or_a_replay(stack: Mapping[str, object]) -> None:
    stream = layer_stream(LAYER, 6, replicas=2)
    with fake_cuda() as device, fake_triton(device):
        run = Run("triton_experts", stream, 3, device=device, stack=stack)
        run.submit_all(500)
        submit = str(stack.get("submit", "stream"))
        strategy = Strategy.graph if submit == "graph" else Strategy.triton
        assert set(run.launches(LaunchColumn.STRATEGY)) == {strategy}
        jumps = 1 if submit == "graph" else 0  # to the first step
        assert run.recorder.launch_calls == CALLS[submit] * stream.steps + jumps
        replays = run.prepared.counters().graph_replays
        assert replays == (stream.steps if submit == "graph" else None)
        run.finish()


def test_a_graph_may_jump_to_another_step() -> None:
    stream = layer_stream(LAYER, 4, replicas=2)
    with fake_cuda() as device, fake_triton(device):
        run = Run("triton_experts", stream, 3, device=device, stack={"submit": "graph"})
        steps = [Batch(each.shape_index, each.words.copy(), each.reason) for each in run.batches(500)]
        for number in (2, 3, 0, 1):
            run.prepared.submit(steps[number], flush_ns=0)
        assert run.recorder.launch_calls == 4 + 2  # and an upload for each jump
        run.finish()


def test_loading_and_tuning_leave_outputs_alone() -> None:
    stream = layer_stream(LAYER, 3)
    with fake_cuda() as device, fake_triton(device):
        run = Run("triton_experts", stream, 3, device=device, stack={"submit": "graph"})
        device.arenas.poison()
        run.mode.prepare(device, run.limits).close()
        run.prepared.start()
        assert (device.arenas.arrays[stream.layout.activations].view("u1") == 0xFF).all()
        run.prepared.close()
        device.close()


def test_the_fastest_configuration_of_each_gemm_is_launched() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 4, 2, 20), 2)  # 10 rows an expert: blocks of 16 and of 32
    with fake_cuda() as device, fake_triton(device) as triton:
        triton.ns = lambda what: 1.0 if what == "gate_up, 32x64x64, 4 warps, 4 stages, groups of 16" else 2.0
        run = Run("triton_experts", stream, 3, device=device, stack={"submit": "graph", "pdl": True})
        run.submit_all(500)
        *_, up, down = triton.compiled
        for each in (up, down):
            assert (each["BLOCK_M"], each["INDIRECT"], each["PDL"]) == (32, True, True)
        assert (up["GROUP_M"], down["GROUP_M"]) == (16, 1)
        assert (up["TOP_K"], down["TOP_K"]) == (2, 0)
        run.finish()


@in_each_stack
def test_the_router_is_by_the_faster_of_cublaslt_and_our_own_kernel(stack: Mapping[str, object]) -> None:
    stream = layer_stream(LAYER, 3, replicas=2)
    for of_library, of_own in ((1.0, 2.0), (2.0, 1.0)):
        with fake_cuda() as device, fake_triton(device) as triton:
            ns = {"router, cuBLASLt": of_library, "router, own": of_own}
            triton.ns = lambda what, ns=ns: ns.get(what, 3.0)  # type: ignore[misc]
            run = Run("triton_experts", stream, 3, device=device, stack=stack)
            before = device.cupy.matmul.calls
            run.submit_all(500)
            assert (device.cupy.matmul.calls > before) == (of_library < of_own)
            run.finish()


def test_without_an_algorithm_of_cublaslt_the_router_is_our_own() -> None:
    stream = layer_stream(LAYER, 2)
    with fake_cuda() as device, fake_triton(device) as triton:
        timed: list[str] = []

        def ns(what: str) -> float:
            timed.append(what)
            return 1.0

        triton.ns = ns
        run = Run("triton_experts", stream, 3, device=device)
        run.prepared.close()
        gemms = importlib.import_module("launchopt.devices.triton.expert_gemms")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gemms, "by_strides", refuse)
            timed.clear()
            run.mode.prepare(device, run.limits).close()
        assert not any("router" in what for what in timed)
        device.close()


def refuse(*_: object) -> None:
    raise RunError("cuBLASLt has no algorithm")


def test_copies_that_are_not_written_do_not_count_as_compared() -> None:
    stream = layer_stream(LAYER, 3)
    with fake_cuda() as device, fake_triton(device):
        run = Run("triton_experts", stream, 3, device=device)
        run.submit_all(500)
        found = verify_experts(stream, device.arenas, CheckSettings(64), run.mode.unwritten_of(stream))
        assert found.ok
        assert found.checked == stream.commands - stream.steps
        assert not verify_experts(stream, device.arenas, CheckSettings(64)).ok, "the copies are not there"
        run.prepared.close()
        device.close()


def test_says_what_it_takes() -> None:
    stream, mode = layer_stream(LAYER, 2, Dtype.bf16), mode_class("triton_experts")
    assert mode.refusal("cuda", stream) is None
    assert str(mode.refusal("cpu", stream)).startswith("needs a GPU")
    assert mode.refusal("cuda", layer_stream(LAYER, 2)) == "multiplies fp16 and bf16: use workload.dtype=bf16"
    gemms = gemv(4, 1, 4, 8, Dtype.bf16, 2)
    assert mode.refusal("cuda", gemms) == "launches a layer with experts: use workload=moe"


def test_graph_and_dependent_launches_are_its_only_choices() -> None:
    stream = layer_stream(LAYER, 2, Dtype.bf16)
    for label in ("triton_experts+graph", "triton_experts+pdl", "triton_experts+graph+pdl"):
        mode = mode_class(*choices_of(label))
        assert mode.label() == label
        assert mode.refusal("cuda", stream) is None
    for label in ("+norm", "+coalesce", "+graph_loop", "+own", "+graph+cublaslt"):
        with pytest.raises(ConfigError, match=r"can change mode\.submit=graph and mode\.pdl only"):
            choices_of(f"triton_experts{label}")


@pytest.fixture
def gpu() -> Any:
    pytest.importorskip("triton")
    from launchopt.devices.cuda.device import CudaDevice

    return CudaDevice()


@pytest.mark.gpu
@in_each_stack
@pytest.mark.parametrize("dtype", [Dtype.fp16, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "layer",
    [ExpertLayer(256, 192, 16, 4, 33), ExpertLayer(72, 40, 5, 2, 7), ExpertLayer(128, 64, 4, 2, 90)],
    ids=lambda layer: f"{layer.hidden}-{layer.inner}",
)
def test_outputs_on_a_gpu(gpu: Any, stack: Mapping[str, object], dtype: Dtype, layer: ExpertLayer) -> None:
    run = Run("triton_experts", layer_stream(layer, 9, dtype, replicas=2), 3, device=gpu, stack=stack)
    run.submit_all(50)
    run.finish()
