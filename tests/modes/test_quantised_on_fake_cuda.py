"""Quantised weights on a fake of CUDA: the plans, tables and graphs of our kernels. Every output is checked."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda.fake_cuda import fake_cuda
from support.modes.batch_runs import ALWAYS_PACK, NEVER_PACK, Run
from support.quantised import PACKINGS, WHOLE, quantised_gemv
from support.steps.launching import recorded
from support.steps.programs import requests_of
from support.steps.step_runs import StepRun
from support.steps.straight import records_of

from launchopt.batching.batch import FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import Dtype, as_words
from launchopt.modes import mode_class
from launchopt.modes.stack import stack_of
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import layer_program
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import Routing, RoutingKind, draw
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.gemm_stream import CommandOrder
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.workloads.gemv import gemv

FP8, INT4 = Packing(WeightFormat.fp8, Scales.channel), Packing(WeightFormat.int4, Scales.block)
EXPERTS = ExpertLayer(256, 128, 4, 2, 3)
OWN = {"kernels": "own"}


def linear(packing: Packing, requests: int = 3, prompt: int = 0, k: int = 128) -> ChainStream:
    asked = requests_of([(prompt, 3)] * requests)
    return ChainStream([(256, k), (k, 256)], 2, asked, Dtype.bf16, 2, ChainSettings(packing=packing))


@pytest.mark.parametrize("options", [OWN, {"kernels": "own", "pdl": True}], ids=["own", "own+pdl"])
@pytest.mark.parametrize("mode", ["coalesced", "graph"])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_decode_steps_of_our_own_gemm(packing: Packing, mode: str, options: dict[str, object]) -> None:
    with fake_cuda() as device:
        own = mode_class(mode, options)()
        run = StepRun(own, linear(packing), 3, device)
        for _ in range(2):
            run.run(seed=4)  # also steps of some requests, whose operands may be scattered
            run.check()
        run.run()
        run.check()
        run.close()


def test_scattered_requests_get_our_gemv() -> None:
    with fake_cuda() as device:
        run = StepRun(mode_class("coalesced", OWN)(), linear(FP8, requests=9), 9, device)
        run.run(seed=1)
        run.check()
        strategies = set(run.launches(LaunchColumn.STRATEGY))
        assert strategies == {Strategy.kernel, Strategy.fused}
        run.close()


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (linear(FP8, prompt=4), "our GEMM of decode steps has no prompts with quantised weights"),
        (linear(FP8, requests=17), "takes up to 16 requests with quantised weights, and this workload has 17"),
        (linear(FP8, k=96), "our GEMM of decode steps: k=96 must be a multiple of 64"),
        (linear(Packing(WeightFormat.int4, Scales.channel), k=160), "k=160 must be a multiple of 128"),
    ],
    ids=["prompt", "requests", "fp8", "int4"],
)
def test_what_our_gemm_cannot_read_is_refused(stream: ChainStream, why: str) -> None:
    found = mode_class("graph", OWN).refusal("cuda", stream)
    assert found is not None
    assert why in found
    assert "\n" not in found


def test_modes_that_read_no_codes_say_so() -> None:
    asked = requests_of([(0, 3)] * 4)
    layer = ChainStream(layer_program(WHOLE, 4), 1, asked, Dtype.bf16, 1, ChainSettings(512, packing=INT4))
    why = mode_class("megakernel").refusal("cuda", layer)
    assert why == (
        "copies weights as bf16 into shared memory, and unpacks no int4: "
        "use mode=graph mode.kernels=own, or workload.weights=none"
    )
    experts = ExpertStream(
        EXPERTS, Routing("drawn", 4, draw(RoutingKind.balanced, 0, (2, 3, 2), 4, 1)), Dtype.bf16, 1, FP8
    )
    why = mode_class("triton_experts").refusal("cuda", experts)
    assert why == (
        "reads weights as bf16 in Triton, and unpacks no fp8: use mode=graph or expert_kernel, or workload.weights=none"
    )


def test_whole_layers_run_on_our_kernels_only() -> None:
    asked = requests_of([(0, 3)] * 4)
    stream = ChainStream(layer_program(WHOLE, 4), 1, asked, Dtype.bf16, 1, ChainSettings(512, packing=INT4))
    fused = {"kernels": "own", "pdl": True, "submit": "graph", "fuse": ["norm", "silu", "epilogue"]}
    assert mode_class("engine", fused).refusal("cuda", stream) is None
    for name in ("engine", "graph", "coalesced", "megakernel", "persistent", "torch_compile"):
        why = mode_class(name).refusal("cuda", stream)
        assert why is not None
        assert "mode.kernels=own" in why
    assert stack_of("engine", fused).choices


@pytest.mark.parametrize("pack_bytes", [NEVER_PACK, ALWAYS_PACK])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("packing", [FP8, INT4], ids=str)
def test_batches_of_our_gemv(packing: Packing, shuffle: bool, pack_bytes: int) -> None:
    with fake_cuda() as device:
        run = Run("batched", quantised_gemv(packing, Dtype.bf16, 2, shuffle), 8, pack_bytes, device)
        run.submit_all(5)
        run.finish()
        sizes = run.launches(LaunchColumn.SIZE)
        assert sum(sizes) == run.stream.commands
        assert max(sizes) > 1


def test_weights_of_many_rows_get_tensor_cores() -> None:
    stream = gemv(2112, 1, 256, 6, Dtype.bf16, 2, CommandOrder(packing=FP8))
    with fake_cuda() as device:
        run = Run("batched", stream, 2, device=device)
        run.submit_all(2)
        run.finish()


def test_more_columns_than_our_gemv_has_are_refused() -> None:
    for name in ("baseline", "batched", "kernel", "pdl"):
        why = mode_class(name).refusal("cuda", quantised_gemv(FP8, Dtype.bf16, n=9))
        assert why is not None
        assert "8 columns" in why


@pytest.mark.parametrize("mode", ["baseline", "kernel", "multistream", "pdl"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("packing", [FP8, INT4], ids=str)
def test_independent_commands_of_our_gemv(packing: Packing, mode: str, n: int) -> None:
    with fake_cuda() as device:
        run = Run(mode, quantised_gemv(packing, Dtype.fp16, n, shuffle=True), 8, device=device)
        records, shape_of = records_of(run.stream), np.zeros(run.stream.commands, np.int32)
        batcher = Batcher(run.stream.shapes, list(run.limits.values()), FlushRules(0))
        indices = batcher.classify(records, shape_of)
        run.prepared.submit_each(as_words(records), indices, flush_ns=0)
        run.finish()
        assert set(recorded(run.recorder).launches[:, LaunchColumn.STRATEGY]) == {Strategy.kernel}
