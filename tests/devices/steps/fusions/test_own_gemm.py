"""Stages of our own GEMM: which GEMM each group of rows is, and the operands that its launch takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.cuda.libraries import imported
from support.steps.fake_steps import FakeSteps
from support.steps.programs import stream_of

from launchopt.command import Dtype
from launchopt.devices.steps.fusions.gemm_plan import MOST_COLUMNS
from launchopt.devices.steps.stage_table import Argument, Fused, Place, Role
from launchopt.devices.steps.stages import LtSteps, step_of
from launchopt.stack import Fusion, Kernels, Stack
from launchopt.streams.chains.groups import Kind, groups_of

OWN = Stack(True, frozenset({Fusion.norm, Fusion.silu, Fusion.epilogue}), kernels=Kernels.own)
HIDDEN, INNER, Q = 64, 96, 64  # of the program layer
ITEM = Dtype.bf16.itemsize
ROWS = ["norm1+qkv", "o+add1", "norm2+gate_up+silu_mul", "down+add2"]


@pytest.fixture
def rig() -> FakeSteps:
    return FakeSteps(stream_of("layer", [(0, 3)] * 3, Dtype.bf16, layers=1, replicas=2), 3)


def places(rig: FakeSteps, replica: int = 0, stack: Stack = OWN) -> dict[str, Place]:
    """Return the groups of our own GEMM in a decode step, by the names of their rows."""
    rows, found = rig.stream.rows(0), {}
    for group in groups_of(rig.stream, 0, stack):
        if group.kind is Kind.gemm:
            names = "+".join(row.name for row in rows[group.first : group.stop])
            found[names] = Place(0, replica, group.first, group.stop)
    return found


def test_what_each_group_computes(rig: FakeSteps) -> None:
    own = imported("launchopt.devices.steps.fusions.own_gemm")
    found = {name: own.described(rig.steps, place) for name, place in places(rig).items()}
    assert list(found) == ROWS
    assert [(each.rows, each.k) for each in found.values()] == [
        (128, HIDDEN),
        (HIDDEN, Q),
        (INNER, HIDDEN),
        (HIDDEN, INNER),
    ]
    assert [(each.gain > 0, each.adds, each.gated) for each in found.values()] == [
        *((True, False, False), (False, True, False)),
        *((True, False, True), (False, True, False)),
    ]
    lane = rig.stream.lane_units * rig.stream.activations.slot_bytes
    for each in found.values():
        assert each.refusal is None
        assert each.steps == (each.k * ITEM, lane, lane, lane if each.adds else 0)


def test_each_copy_of_the_weights_has_norms_of_its_own(rig: FakeSteps) -> None:
    own = imported("launchopt.devices.steps.fusions.own_gemm")
    gains = {own.described(rig.steps, places(rig, i)[name]).gain for i in (0, 1) for name in (ROWS[0], ROWS[2])}
    assert len(gains) == 4


def test_operands_of_a_launch(rig: FakeSteps) -> None:
    own, (add,) = imported("launchopt.devices.steps.fusions.own_gemm"), (places(rig)["down+add2"],)
    gemm, last = add.first, add.stop - 1
    expected = (Argument(gemm, Role.A), Argument(gemm, Role.B), Argument(last, Role.C), Argument(last, Role.A))
    assert own.arguments_of(rig.steps, add) == expected
    silu = places(rig)["norm2+gate_up+silu_mul"]
    norm, gemm, last = range(silu.first, silu.stop)
    expected = (Argument(gemm, Role.A), Argument(norm, Role.B), Argument(last, Role.C), Argument(last, Role.REQUEST))
    assert own.arguments_of(rig.steps, silu) == expected


def test_merged_gemms_are_one() -> None:
    own = imported("launchopt.devices.steps.fusions.own_gemm")
    rig = FakeSteps(stream_of("apart", [(0, 3)] * 3, Dtype.bf16, layers=1), 3)
    stack = Stack(True, OWN.fuse | {Fusion.qkv, Fusion.gate_up}, kernels=Kernels.own)
    found = places(rig, stack=stack)
    assert list(found) == ["norm1+q+k+v", "o+add1", "norm2+gate+up+silu_mul", "down+add2"]
    both = [own.described(rig.steps, found[name]) for name in ("norm1+q+k+v", "norm2+gate+up+silu_mul")]
    assert [(each.rows, each.k, each.gated) for each in both] == [(512, 64, False), (128, 64, True)]
    norm, q, k, v = range(found["norm1+q+k+v"].first, found["norm1+q+k+v"].stop)
    expected = (Argument(q, Role.A), Argument(norm, Role.B), Argument(q, Role.C), Argument(v, Role.REQUEST))
    assert own.arguments_of(rig.steps, found["norm1+q+k+v"]) == expected
    assert k == q + 1


def test_batches_of_more_requests_keep_the_library() -> None:
    """A batch of up to 16 requests has our own GEMM. A larger one has one stage for each row that is not fused."""
    fusions, many = imported("launchopt.devices.steps.fusions.makers"), MOST_COLUMNS + 4
    big = FakeSteps(stream_of("layer", [(0, 3)] * many, Dtype.bf16, layers=1), many)
    made: list[Place] = []

    def own(steps: LtSteps, place: Place) -> Fused:
        made.append(place)
        arguments = tuple(Argument(place.first, role) for role in Role)
        return Fused(place.first, place.stop, arguments, 0, 0)

    makers = {kind: (lambda steps, place: "declined") for kind in Kind} | {Kind.gemm: own}
    lacking = fusions.fuse_steps(big.steps, OWN, makers)
    assert [tuple(each) for each in lacking] == [(name, 1, 1, fusions.LARGE) for name in ROWS]
    assert len(made) == len(ROWS)
    rows = len(big.stream.rows(0))
    inner = sum(place.stop - place.first - 1 for place in made)
    sizes = {size: len(big.steps.stages_of(step_of(big.stream, size, 0))) for size in (1, MOST_COLUMNS, many)}
    assert sizes == {1: rows - inner, MOST_COLUMNS: rows - inner, many: rows}


def test_the_add_takes_the_norm_that_our_gemm_declines() -> None:
    """A stack says which launches it lacks, and why. The add and the norm are then one launch, as in other stacks."""
    fusions = imported("launchopt.devices.steps.fusions.makers")
    rig = FakeSteps(stream_of("layer", [(0, 3)] * 3, Dtype.bf16, layers=2), 3)
    rows = rig.stream.rows(0)

    def made(why_not: Callable[[list[str]], str]) -> tuple[list[str], list[tuple[object, ...]]]:
        launched = dict[tuple[int, int], str]()

        def maker(steps: LtSteps, place: Place) -> Fused | str:
            names = [row.name for row in rows[place.first : place.stop]]
            if reason := why_not(names):
                return reason
            launched[place.first, place.stop] = "+".join(names)
            arguments = tuple(Argument(place.first, role) for role in Role)
            return Fused(place.first, place.stop, arguments, 0, 0)

        stack = Stack(True, frozenset({Fusion.norm}), kernels=Kernels.own)
        lacking = fusions.fuse_steps(rig.steps, stack, dict.fromkeys(Kind, maker))
        return [launched[key] for key in sorted(launched)], [tuple(each) for each in lacking]

    gemms = ["norm1+qkv", "o", "norm2+gate_up", "down"]
    assert made(lambda names: "") == (gemms * 2, [])
    no_gemm = made(lambda names: "" if "add" in names[0] else "old GPU")
    assert no_gemm == (["add1+norm2", "add2+norm1", "add1+norm2"], [(name, 2, 2, "old GPU") for name in gemms])
    wide = made(lambda names: "wide norm" if "norm" in names[0] else "")
    own = ["qkv", "o", "add1+norm2", "gate_up", "down"]
    assert wide[0] == [*own, "add2+norm1", *own]
    assert wide[1] == [("norm1+qkv", 2, 2, "wide norm"), ("norm2+gate_up", 2, 2, "wide norm")]
