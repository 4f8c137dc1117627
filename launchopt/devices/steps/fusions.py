"""Fuse the rows of every kind of step as a stack asks: the groups of `streams.groups`, made by the makers in `makers`.

A maker takes an `LtSteps` and a `Place`, and returns a `Fused`: one launch for the rows of a group. It returns None to
decline, for example for a shape that its kernel does not support. Then a smaller group is tried, or rows are launched
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from launchopt.devices.steps.fused import elementwise_kernel, epilogue_gemm, merged_gemm
from launchopt.devices.steps.gemm_plan import MOST_COLUMNS
from launchopt.devices.steps.own_attention import attention
from launchopt.devices.steps.own_elementwise import add_norm, rope_kv
from launchopt.devices.steps.own_gemm import step_gemm
from launchopt.devices.steps.stage_table import Fused, Place
from launchopt.devices.steps.stages import NEVER_APART, LtSteps
from launchopt.stack import Fusion, Kernels, Stack
from launchopt.streams.groups import Group, Kind, groups_of

Maker = Callable[[LtSteps, Place], Fused | None]


Makers = Mapping[Kind, Maker]
NO_MAKERS: Makers = MappingProxyType({})
# The maker of each kind of group. Groups of other kinds are launched row by row.
MAKERS: Makers = {
    Kind.merged: merged_gemm,
    Kind.epilogue: epilogue_gemm,
    Kind.elementwise: elementwise_kernel,
    Kind.add_norm: add_norm,
    Kind.rope_kv: rope_kv,
    Kind.attention: attention,
    Kind.gemm: step_gemm,
}


def fusions_of(steps: LtSteps, kind: int, replica: int, stack: Stack, makers: Makers = MAKERS) -> Sequence[Fused]:
    """Return the fused stages of a kind of step, and of a copy of the weights."""
    made = list[Fused]()

    def accepts(group: Group) -> bool:
        maker = makers.get(group.kind)
        fused = maker(steps, Place(kind, replica, group.first, group.stop, stack.pdl)) if maker else None
        made.extend([fused] if fused else [])
        return fused is not None

    groups_of(steps.stream, kind, stack, accepts)
    return made


def fuse_steps(steps: LtSteps, stack: Stack, others: Makers = NO_MAKERS) -> None:
    """Make the stages of every kind of step, and of every copy of the weights. others: makers in place of MAKERS'."""
    stream, makers = steps.stream, {**MAKERS, **others}
    if not stack.fuse and stack.kernels is not Kernels.own:
        return
    for most, own in _by_requests(stack, steps.most):
        for kind in range(len(stream.kinds)):
            for replica in range(stream.replicas):
                if fused := fusions_of(steps, kind, replica, own, makers):
                    steps.fuse(kind, replica, fused, most)


def _by_requests(stack: Stack, most: int) -> list[tuple[int, Stack]]:
    """Return the stacks to launch with, each with the most requests that it is for.

    most: requests of the largest batch. Our own GEMM takes up to MOST_COLUMNS requests. Larger batches get the
    library's GEMMs, and the fusions that are possible with them.
    """
    if stack.kernels is not Kernels.own or most <= MOST_COLUMNS:
        return [(NEVER_APART, stack)]
    library = stack.replaced({"kernels": Kernels.cublaslt, "fuse": stack.fuse - {Fusion.silu}})
    return [(MOST_COLUMNS, stack), (NEVER_APART, library)]
