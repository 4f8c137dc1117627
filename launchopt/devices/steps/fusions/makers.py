"""Fuse the rows of every kind of step as a stack asks: groups of `streams.chains.groups`, made by those in `makers`.

A maker takes an `LtSteps` and a `Place`, and returns a `Fused`: one launch for the rows of a group. It returns the
reason to decline, for example a shape that its kernel does not support. Then a smaller group is tried, or rows are
launched alone. `fuse_steps` returns what was declined, so that a run can say which launches its stack lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType

from launchopt.devices.steps.fusions.fused import elementwise_kernel, epilogue_gemm, merged_gemm
from launchopt.devices.steps.fusions.gemm_plan import MOST_COLUMNS
from launchopt.devices.steps.fusions.own_attention import attention
from launchopt.devices.steps.fusions.own_elementwise import add_norm, rope_kv
from launchopt.devices.steps.fusions.own_gemm import step_gemm
from launchopt.devices.steps.fusions.own_reduce import reduce_add
from launchopt.devices.steps.stage_table import Fused, Place
from launchopt.devices.steps.stages import NEVER_APART, LtSteps
from launchopt.stack import Fusion, Kernels, Stack
from launchopt.streams.chains.groups import Group, Kind, LeftOut, groups_of, left_out

Maker = Callable[[LtSteps, Place], Fused | str]

Makers = Mapping[Kind, Maker]
LARGE = f"our GEMM of a step takes up to {MOST_COLUMNS} requests, and larger batches get cuBLASLt's"
NO_MAKERS: Makers = MappingProxyType({})
# The maker of each kind of group. Groups of other kinds are launched row by row.
MAKERS: Makers = {
    Kind.merged: merged_gemm,
    Kind.epilogue: epilogue_gemm,
    Kind.elementwise: elementwise_kernel,
    Kind.add_norm: add_norm,
    Kind.reduce: reduce_add,
    Kind.rope_kv: rope_kv,
    Kind.attention: attention,
    Kind.gemm: step_gemm,
}


def fusions_of(
    steps: LtSteps, kind: int, replica: int, stack: Stack, makers: Makers = MAKERS
) -> tuple[dict[Group, Fused], dict[Group, str]]:
    """Return the fused stages of a kind of step, and of a copy of the weights; and why other groups were declined."""
    made, declined = dict[Group, Fused](), dict[Group, str]()

    def accepts(group: Group) -> bool:
        maker = makers.get(group.kind)
        place = Place(kind, replica, group.first, group.stop, stack.pdl)
        found = "has no kernel of ours" if maker is None else maker(steps, place)
        if isinstance(found, str):
            declined[group] = found
            return False
        made[group] = found
        return True

    groups_of(steps.stream, kind, stack, accepts)
    return made, declined


def fuse_steps(steps: LtSteps, stack: Stack, others: Makers = NO_MAKERS) -> list[LeftOut]:
    """Make the stages of every kind of step and copy of the weights. Return the fusions that were declined.

    others: makers in place of MAKERS'.
    """
    stream, makers, lacking = steps.stream, {**MAKERS, **others}, dict[tuple[str, str], LeftOut]()
    if not stack.fuse and stack.kernels is not Kernels.own:
        return []
    for most, own in _by_requests(stack, steps.most):
        for kind in range(len(stream.kinds)):
            for replica in range(stream.replicas):
                made, declined = fusions_of(steps, kind, replica, own, makers)
                if made:
                    steps.fuse(kind, replica, list(made.values()), most)
                # No maker sees those groups of larger batches that the library's GEMMs replace.
                reasons = declined if own is stack else defaultdict(lambda: LARGE, declined)
                for each in left_out(stream, kind, stack, made, reasons):
                    known = lacking.setdefault((each.rows, each.reason), each)
                    lacking[each.rows, each.reason] = max(known, each)  # of the step with the most such launches
    return list(lacking.values())


def _by_requests(stack: Stack, most: int) -> list[tuple[int, Stack]]:
    """Return the stacks to launch with, each with the most requests that it is for.

    most: requests of the largest batch. Our own GEMM takes up to MOST_COLUMNS requests. Larger batches get the
    library's GEMMs, and the fusions that are possible with them.
    """
    if stack.kernels is not Kernels.own or most <= MOST_COLUMNS:
        return [(NEVER_APART, stack)]
    library = stack.replaced({"kernels": Kernels.cublaslt, "fuse": stack.fuse - {Fusion.silu}})
    return [(MOST_COLUMNS, stack), (NEVER_APART, library)]
