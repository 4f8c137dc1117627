"""Fused launches of a layer with experts on a GPU: every output is right, launched and captured, early or not."""

from __future__ import annotations

import pytest
from support.modes.batch_runs import Run
from support.steps.expert_layers import layer_stream

from launchopt.command import Dtype
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import RoutingKind
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat

pytestmark = pytest.mark.gpu

ALL = ("route", "activate", "combine")
PACKINGS = [
    PLAIN,
    Packing(WeightFormat.fp8, Scales.channel),
    Packing(WeightFormat.fp8, Scales.block),
    Packing(WeightFormat.int8, Scales.tensor),
    Packing(WeightFormat.int4, Scales.channel),
    Packing(WeightFormat.int4, Scales.block),
]


def check(layer: ExpertLayer, mode: str, stack: dict[str, object], packing: Packing = PLAIN, steps: int = 24) -> None:
    from launchopt.devices.cuda.device import CudaDevice

    device = CudaDevice()
    stream = layer_stream(layer, steps, Dtype.bf16, 2, RoutingKind.power_law, packing=packing)
    run = Run(mode, stream, layer.experts, device=device, stack=stack)
    run.submit_all(10_000)
    run.finish()


@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 200])
@pytest.mark.parametrize("is_early", [False, True])
def test_all_fusions_in_a_graph(is_early: bool, tokens: int) -> None:
    check(ExpertLayer(2048, 768, 64, 8, tokens), "graph", {"fuse": [*ALL], "pdl": is_early})


@pytest.mark.parametrize("fuse", [ALL[:0], ALL[:1], ALL[1:2], ALL[2:], ALL[:2], ALL[1:]], ids=str)
@pytest.mark.parametrize("mode", ["expert_kernel", "graph"])
def test_some_fusions(mode: str, fuse: tuple[str, ...]) -> None:
    stack = {"fuse": [*fuse], **({"pdl": True} if mode == "graph" else {})}
    check(ExpertLayer(520, 264, 20, 3, 19), mode, stack)


@pytest.mark.parametrize("fuse", [(), ALL])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("tokens", [1, 16])
def test_quantised_experts(tokens: int, packing: Packing, fuse: tuple[str, ...]) -> None:
    check(ExpertLayer(1024, 256, 32, 4, tokens), "graph", {"fuse": [*fuse], "pdl": True}, packing)


def test_rows_that_no_vector_reads() -> None:
    check(ExpertLayer(75, 33, 6, 6, 4), "graph", {"fuse": [*ALL], "pdl": True})
