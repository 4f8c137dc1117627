"""A layer with experts in the modes that run it, on the CPU and on a fake of CUDA: right outputs, counted launches."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cuda.fake_cuda import device_of, fake_cuda
from support.modes.batch_runs import Run
from support.steps.expert_layers import layer_stream, layers

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.command import EXPERT_OPS, Dtype, Op
from launchopt.devices.steps.expert_fusions import MOST_TOKENS
from launchopt.errors import ConfigError
from launchopt.modes import MODES, mode_class
from launchopt.modes.stack import check_stack, shown_on
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.stack import EXPERT_FUSIONS, Fusion
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import RoutingKind
from launchopt.verify.commands import CheckSettings
from launchopt.verify.experts import verify_experts
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.workloads.gemv import gemv

ABLE = {"cpu": ("baseline", "batched", "graph", "grouped", "pointer_array")}
ABLE["cuda"] = (*ABLE["cpu"], "expert_kernel", "kernel", "pdl", "triton_batched", "triton_experts")
# The fake of CUDA has no grouped GEMM; tests/modes/test_modes_gpu.py runs it.
NO_STAND_IN = {("grouped", "cuda"), ("expert_kernel", "cpu")}
FP8, INT4 = Packing(WeightFormat.fp8, Scales.channel), Packing(WeightFormat.int4, Scales.block)
STEP_SINGLES = 6  # commands of a step besides those of experts


@settings(deadline=None, max_examples=30)
@given(
    layer=layers(),
    steps=st.integers(1, 3),
    replicas=st.integers(1, 2),
    routing=st.sampled_from([RoutingKind.balanced, RoutingKind.power_law]),
    most=st.integers(1, 9),
    chunk=st.integers(1, 60),
    mode=st.sampled_from([*ABLE["cpu"], "expert_kernel"]),
    kind=st.sampled_from(["cpu", "cuda"]),
)
def test_outputs_are_right_and_groups_in_order(
    layer: ExpertLayer,
    steps: int,
    replicas: int,
    routing: RoutingKind,
    most: int,
    chunk: int,
    mode: str,
    kind: str,
) -> None:
    assume((mode, kind) not in NO_STAND_IN)
    stream = layer_stream(layer, steps, replicas=replicas, kind=routing)
    with device_of(kind) as device:
        run = Run(mode, stream, most, device=device)
        run.submit_all(chunk)
        assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
        run.finish()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("routing", [RoutingKind.balanced, RoutingKind.power_law])
def test_launches_of_a_step(kind: str, routing: RoutingKind) -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 8), 3, kind=routing)
    pairs = int(2 * stream.active.sum())
    wanted = {"baseline": 3 * STEP_SINGLES + pairs, "grouped": 3 * (STEP_SINGLES + 2)}
    if routing is RoutingKind.balanced:  # all experts have 2 rows
        wanted["batched"] = wanted["pointer_array"] = wanted["grouped"]
    for mode, launches in wanted.items():
        if (mode, kind) in NO_STAND_IN:
            continue
        with device_of(kind) as device:
            run = Run(mode, stream, 64, device=device)
            run.submit_all(500)
            assert len(run.launches(LaunchColumn.SIZE)) == launches, mode
            run.finish()


def test_grouped_launches_gemms_together_and_others_alone() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 8), 1)
    run = Run("grouped", stream, 64)
    run.submit_all(100)
    active = int(stream.active[0])
    assert run.launches(LaunchColumn.SIZE) == [1, 1, 1, 1, active, 1, active, 1]
    grouped, single = Strategy.grouped, Strategy.single
    strategies = [grouped, single, single, single, grouped, single, grouped, single]
    assert run.launches(LaunchColumn.STRATEGY) == strategies
    run.finish()


@pytest.mark.parametrize(
    ("mode", "kind", "strategy"),
    [
        ("expert_kernel", "cuda", Strategy.kernel),
        ("graph", "cuda", Strategy.graph),
        ("graph", "cpu", Strategy.graph),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 500])
def test_a_step_is_one_batch_however_its_commands_come(mode: str, kind: str, strategy: Strategy, chunk: int) -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 6, replicas=2)
    with device_of(kind) as device:
        run = Run(mode, stream, 3, device=device)
        run.submit_all(chunk)
        assert run.launches(LaunchColumn.SIZE) == (STEP_SINGLES + 2 * stream.active).tolist()
        assert set(run.launches(LaunchColumn.STRATEGY)) == {strategy}
        calls = {"expert_kernel": 8, "graph": 2 if kind == "cuda" else 1}[mode]  # a replay, and an upload
        assert run.recorder.launch_calls == calls * stream.steps
        run.finish()


@settings(deadline=None, max_examples=30)
@given(
    layer=layers(),
    fuse=st.sets(st.sampled_from(EXPERT_FUSIONS)),
    mode=st.sampled_from(["expert_kernel", "graph"]),
    is_early=st.booleans(),
)
def test_fused_launches_compute_the_same(layer: ExpertLayer, fuse: set[Fusion], mode: str, is_early: bool) -> None:
    stack = {"fuse": sorted(fuse), **({"pdl": is_early} if mode == "graph" else {})}
    with fake_cuda() as device:
        run = Run(mode, layer_stream(layer, 3, replicas=2), 8, device=device, stack=stack)
        run.submit_all(500)
        run.finish()


@pytest.mark.parametrize("mode", ["expert_kernel", "graph"])
@pytest.mark.parametrize("fuse", [[], ["activate"], ["route", "activate", "combine"]], ids=str)
@pytest.mark.parametrize("packing", [FP8, INT4], ids=str)
def test_quantised_experts(packing: Packing, fuse: list[str], mode: str) -> None:
    stream = layer_stream(ExpertLayer(128, 256, 8, 2, 5), 3, packing=packing)
    with fake_cuda() as device:
        run = Run(mode, stream, 8, device=device, stack={"fuse": fuse})
        run.submit_all(500)
        run.finish()


@pytest.mark.parametrize("mode", ABLE["cpu"])
def test_quantised_experts_on_the_cpu(mode: str) -> None:
    stream = layer_stream(ExpertLayer(128, 256, 8, 2, 5), 3, Dtype.bf16, packing=FP8)
    run = Run(mode, stream, 8)
    run.submit_all(500)
    run.finish()


def test_a_fusion_saves_its_launches() -> None:
    saved = {"route": 3, "activate": 1, "combine": 1}
    for fuse in ([], ["route"], ["activate"], ["combine"], ["activate", "combine"], [*saved]):
        with fake_cuda() as device:
            stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2)
            run = Run("expert_kernel", stream, 8, device=device, stack={"fuse": fuse})
            run.submit_all(500)
            assert run.recorder.launch_calls == (8 - sum(saved[each] for each in fuse)) * stream.steps
            assert not run.prepared.left_out
            run.finish()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_fused_steps_of_a_graph_find_their_operands_by_themselves(is_reversed: bool) -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 5, replicas=2)
    with fake_cuda() as device:
        run = Run("graph", stream, 8, device=device, stack={"fuse": ["route", "activate", "combine"]})
        batches = [Batch(each.shape_index, each.words.copy(), each.reason) for each in run.batches(500)]
        for batch in batches[::-1] if is_reversed else batches:
            run.prepared.submit(batch, flush_ns=0)
        uploads = stream.steps if is_reversed else 1  # of the number of a step that does not follow the last one
        assert run.recorder.launch_calls == stream.steps + uploads
        assert verify_experts(stream, device.arenas, CheckSettings(64)).ok
        run.prepared.close()
        device.close()


def test_steps_of_many_tokens_leave_fusions_out() -> None:
    with fake_cuda() as device:
        stream = layer_stream(ExpertLayer(8, 8, 8, 2, MOST_TOKENS + 1), 2)
        run = Run("graph", stream, 8, device=device, stack={"fuse": ["route", "activate", "combine"]})
        run.submit_all(500)
        rows = [each.rows for each in run.prepared.left_out]
        assert rows == ["router+top_k+map+permute", "down+combine"]
        assert {each.reason for each in run.prepared.left_out} == {"fused launches take up to 256 tokens a step"}
        run.finish()


def test_fusions_of_experts_are_for_our_own_kernels_of_a_layer_with_experts() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2, Dtype.bf16)
    fuse = {"fuse": ["route", "combine"]}
    for mode in ("graph", "expert_kernel"):
        own = mode_class(mode, fuse)
        assert own.label() == f"{mode}+route+combine"
        assert own.refusal("cuda", stream) is None
        assert "needs a GPU" in str(own.refusal("cpu", stream))
    why = str(mode_class("graph", fuse).refusal("cpu", stream))
    assert why == "mode.fuse=[route,combine] needs a GPU, for kernels of our own"
    with pytest.raises(ConfigError, match="only choices are"):
        check_stack("mode", "expert_kernel", {"fuse": ["norm"]})
    with pytest.raises(ConfigError, match="only choices are"):
        check_stack("mode", "expert_kernel", {"pdl": True})
    check_stack("mode", "expert_kernel", {"fuse": ["route"]})


def test_a_launch_that_loads_the_kernels_leaves_outputs_alone() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2)
    for mode in ("expert_kernel", "graph"):
        with fake_cuda() as device:
            run = Run(mode, stream, 3, device=device)
            device.arenas.poison()
            run.prepared.start()
            outputs = device.arenas.arrays[stream.layout.activations]
            assert (outputs.view("u1") == 0xFF).all()
            run.prepared.close()
            device.close()


def test_a_warm_up_run_may_end_within_a_step() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2)
    with fake_cuda() as device:
        run = Run("graph", stream, 3, device=device)
        (first, *_) = run.batches(500)
        run.prepared.submit(Batch(SEVERAL, first.words[:5], first.reason), flush_ns=0)
        for batch in run.batches(500):
            run.prepared.submit(batch, flush_ns=0)
        assert verify_experts(stream, device.arenas, CheckSettings(64)).ok
        run.prepared.close()
        device.close()


def test_our_own_kernels_refuse_fp32_and_other_workloads() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2)
    why = "multiplies the rows of experts by a kernel of our own, which takes fp16 and bf16: use workload.dtype=bf16"
    assert mode_class("graph").refusal("cuda", stream) == why
    assert mode_class("expert_kernel").refusal("cuda", stream) == why
    assert mode_class("graph").refusal("cpu", stream) is None
    assert str(mode_class("expert_kernel").refusal("cpu", stream)).startswith("needs a GPU"), "no dtype would help"
    gemms = gemv(4, 1, 4, 8, Dtype.bf16, 2)
    assert mode_class("expert_kernel").refusal("cuda", gemms) == "launches a layer with experts: use workload=moe"


def test_dependent_launches_are_the_only_choice_of_a_graph() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2, Dtype.bf16)
    early = mode_class("graph", {"pdl": True})
    assert early.label() == "graph+pdl"
    assert early.refusal("cuda", stream) is None
    assert str(early.refusal("cpu", stream)).startswith("mode.pdl needs a GPU")
    fused = mode_class("graph", {"fuse": ["norm"], "pdl": True})
    why = "takes whole steps of requests, and this workload is groups of commands"
    assert str(fused.refusal("cuda", stream)).startswith(f"{why}; use mode=graph as it is")
    assert mode_class("engine").refusal("cpu", stream) == f"{why}: use mode=grouped or graph"
    assert str(early.refusal("cuda", gemv(4, 1, 4, 8, Dtype.bf16, 2))).startswith("takes whole steps")


def test_results_have_the_kernels_that_launch_a_layer_with_experts() -> None:
    stream, gemms = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 2, Dtype.bf16), gemv(4, 1, 4, 8, Dtype.bf16, 2)
    graph = mode_class("graph", {"pdl": True})
    assert shown_on("cuda", graph.stack_on(stream)) == "submit=graph pdl kernels=own"
    assert shown_on("cpu", mode_class("graph").stack_on(stream)) == "submit=graph kernels=numpy"
    assert shown_on("cuda", mode_class("graph").stack_on(gemms)) == "coalesce submit=graph kernels=cublaslt"


@pytest.mark.parametrize("pdl", [False, True])
def test_a_graph_with_dependent_launches_computes_the_same(pdl: bool) -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 5), 3)
    with fake_cuda() as device:
        run = Run("graph", stream, 8, device=device, stack={"pdl": pdl})
        run.submit_all(500)
        assert len(run.launches(LaunchColumn.SIZE)) == stream.steps
        run.finish()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_modes_that_cannot_run_it_say_why(kind: str) -> None:
    stream = layer_stream(ExpertLayer(64, 32, 8, 2, 4), 2, Dtype.bf16)
    assert {shape.op for shape in stream.shapes} >= EXPERT_OPS
    found = {name: mode_class(name).refusal(kind, stream) for name in MODES}
    assert {name for name, why in found.items() if why is None} == set(ABLE[kind])
    assert all(Op.COMBINE in mode_class(name).ops for name in ABLE[kind])
