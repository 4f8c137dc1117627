"""Outputs of a layer with experts: those of a correct device pass, and any fault is found and named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from support.steps.expert_layers import LayerRun, layer_stream, streams

from launchopt.command import Dtype, Op, Records
from launchopt.streams.experts.layout import ExpertLayer, Region
from launchopt.streams.experts.stream import ExpertStream

LAYER = ExpertLayer(hidden=64, inner=32, experts=8, top_k=2, columns=5)
OUTPUTS = [name for name in Region._fields if name != "units"]


@settings(deadline=None, max_examples=40)
@given(streams)
def test_a_correct_run_passes(stream: ExpertStream) -> None:
    found = LayerRun(stream).check()
    assert found.ok, found.first_wrong
    assert found.checked == found.commands == stream.commands


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_changed_output_is_found(name: str, dtype: Dtype) -> None:
    stream = layer_stream(LAYER, 3, dtype)
    run = LayerRun(stream)
    region = stream.layout.region
    first = getattr(region, name)
    stop = region[region.index(first) + 1]
    words = run.device.arenas.arrays[stream.layout.activations][region.units + first : region.units + stop].view(
        np.uint16
    )
    words[0, 1 if dtype is Dtype.fp32 else 0] ^= 0x0040  # a bit of the first element, above any rounding
    found = run.check()
    assert not found.ok
    assert found.first_wrong is not None
    assert found.first_wrong.startswith("step 1, ")


def swapped(first: int, second: int) -> Callable[[Records], Records]:
    """Two commands of the first step change places."""

    def change(records: Records) -> Records:
        order = np.arange(len(records))
        order[[first, second]] = second, first
        return records[order]

    return change


STEP = ["router", "top_k", "map", "permute", "gate_up"]


@pytest.mark.parametrize("at", range(len(STEP)), ids=STEP)
def test_a_command_before_its_inputs_is_found(at: int) -> None:
    stream = layer_stream(LAYER, 2)
    active = int(stream.active[0])
    places = [0, 1, 2, 3, 4, 4 + active, 5 + active]
    found = LayerRun(stream, swapped(places[at], places[at + 1])).check()
    assert not found.ok
    assert "step 0" in str(found.first_wrong)


def test_a_weight_of_another_expert_is_found() -> None:
    def change(records: Records) -> Records:
        at = np.flatnonzero((records["op"] == Op.GEMM) & (records["k"] == LAYER.inner))[0]
        records["slot_a"][at] ^= 1
        return records

    found = LayerRun(layer_stream(LAYER, 1), change).check()
    assert found.wrong == 1
    assert "down of expert" in str(found.first_wrong)


def test_a_command_that_did_not_run_is_found() -> None:
    for at in range(6):
        found = LayerRun(layer_stream(LAYER, 1), lambda records, at=at: np.delete(records, at)).check()  # type: ignore[misc]
        assert not found.ok


def test_columns_that_are_not_compared_must_have_been_written() -> None:
    stream = layer_stream(ExpertLayer(32, 16, 2, 1, 40), 1)
    run = LayerRun(stream)
    region, layout = stream.layout.region, stream.layout
    rows = run.device.arenas.arrays[layout.activations][region.down : region.down + 40 * layout.units(32)]
    rows.view(np.uint8)[:] = 0xFF
    found = run.check(max_columns=3)
    assert not found.ok
    assert found.wrong >= 2


def test_with_little_time_a_part_of_the_steps_is_checked() -> None:
    stream = layer_stream(LAYER, 50)
    found = LayerRun(stream).check(budget_s=1e-9)
    assert found.ok
    assert 0 < found.checked < stream.commands // 2
    assert found.compared_share == pytest.approx(found.checked / found.commands)
