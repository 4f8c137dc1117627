"""Fused launches of a layer with experts on the host: each writes what the launches that it replaces would write."""

from __future__ import annotations

import pytest
from support.cuda_on_host import can_build, can_find_races
from support.quantised import PACKINGS
from support.steps.expert_layers import LayerRun, layer_stream
from support.steps.fused_experts import FusedOnHost, How

from launchopt.command import Dtype
from launchopt.stack import Fusion
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import RoutingKind
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

ALL = frozenset({Fusion.route, Fusion.activate, Fusion.combine})
LAYERS = [
    ExpertLayer(64, 32, 8, 2, 1),
    ExpertLayer(96, 40, 33, 3, 5),
    ExpertLayer(264, 136, 5, 2, 23),
    ExpertLayer(75, 33, 6, 6, 4),
    ExpertLayer(2048, 256, 4, 2, 3),
]


def steps_of(
    layer: ExpertLayer,
    fuse: frozenset[Fusion],
    dtype: Dtype = Dtype.bf16,
    packing: Packing = PLAIN,
    how: How = How.given,
    multiprocessors: int = 3,
    races: bool = False,
) -> None:
    stream = layer_stream(layer, 2, dtype, 2, RoutingKind.power_law, packing=packing)
    run = LayerRun(stream)
    fused = FusedOnHost(run, fuse, how, multiprocessors)
    for step in range(stream.steps):
        fused.launch(step, at_once=1 + 2 * step, seed=step, races=races)
    fused.check()
    run.device.close()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("dtype", [Dtype.fp16, Dtype.bf16], ids=lambda dtype: dtype.name)
def test_all_fusions_together(layer: ExpertLayer, dtype: Dtype) -> None:
    steps_of(layer, ALL, dtype, how=How.table if dtype is Dtype.bf16 else How.stepped)


@pytest.mark.parametrize("fuse", [ALL - {each} for each in sorted(ALL)] + [frozenset({each}) for each in sorted(ALL)])
def test_each_fusion_without_others(fuse: frozenset[Fusion]) -> None:
    steps_of(LAYERS[2], fuse)


@pytest.mark.parametrize("fuse", [frozenset[Fusion](), ALL], ids=["no fusion", "all"])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_quantised_weights(packing: Packing, fuse: frozenset[Fusion]) -> None:
    steps_of(ExpertLayer(256, 128, 6, 2, 5), fuse, packing=packing)


@pytest.mark.parametrize("scales", Scales)
def test_quantised_rows_of_several_rounds_of_which_the_last_is_not_full(scales: Scales) -> None:
    steps_of(ExpertLayer(2304, 128, 3, 2, 3), ALL, packing=Packing(WeightFormat.int4, scales), how=How.table)


@pytest.mark.skipif(not can_find_races(), reason="needs g++ 11")
def test_blocks_do_not_race() -> None:
    steps_of(ExpertLayer(64, 40, 20, 3, 20), ALL, how=How.stepped, multiprocessors=2, races=True)
