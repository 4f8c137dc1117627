"""Groups of a step's rows that a stack launches together, and the outputs that such launches do not store.

In: the rows of a kind of step, and a `Stack`. Out: `Group`s in the order of the rows; each other row is launched alone.
Makers compute the groups (devices/steps/fusions/makers.py on a GPU, devices/cpu/groups.py on the CPU). A maker may
decline a group; a smaller one, or an add with its norm, is then tried. `LeftOut` says which groups were declined.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from launchopt.command import Op
from launchopt.stack import EXPERT_FUSIONS, Fusion, Kernels, Stack
from launchopt.streams.chains.chain import ChainStream, Stream, chain_of
from launchopt.streams.chains.placement import Row

ATTENTION = (Op.QK, Op.SOFTMAX, Op.AV)
ROPE_KV = (Op.ROPE, Op.KV_WRITE)
GEMM_BIAS_RELU = (Op.GEMM, Op.BIAS, Op.RELU)
BIAS_RELU_SCALE = (Op.BIAS, Op.RELU, Op.SCALE)
BEHIND_GEMM = {Op.ADD: Fusion.epilogue, Op.SILU_MUL: Fusion.silu}  # ops that our own GEMM applies to its outputs
NEEDED = {
    Fusion.norm: Op.NORM,
    Fusion.rope_kv: Op.ROPE,
    Fusion.attention: Op.QK,
    Fusion.silu: Op.SILU_MUL,
    Fusion.reduce: Op.ALL_REDUCE,
    **dict.fromkeys(EXPERT_FUSIONS, Op.COMBINE),
}


class Kind(enum.Enum):
    """What a group computes."""

    merged = "merged"  # GEMMs whose weights, and outputs, are adjacent
    epilogue = "epilogue"  # GEMM, bias, ReLU
    elementwise = "elementwise"  # bias, ReLU, scale
    add_norm = "add_norm"  # the residual add and the norm of its output
    reduce = "reduce"  # an all-reduce, the residual add behind it, and perhaps the norm of its output
    rope_kv = "rope_kv"  # rotary embedding and KV write
    attention = "attention"  # QK, softmax, AV, and perhaps rotary embedding and KV write before them
    gemm = "gemm"  # our own GEMM, or merged GEMMs, perhaps with the norm before, and the add or SiLU(gate) * up behind


class Group(NamedTuple):
    """Rows `first` to `stop` of a step, counted from its first row."""

    kind: Kind
    first: int
    stop: int


class LeftOut(NamedTuple):
    """Rows that a stack asks to launch together, and that are not: `launches` of the `of` such launches of a step.

    rows: names of the rows, joined by +. reason: why a maker declined them.
    """

    rows: str
    launches: int
    of: int
    reason: str


def left_out(
    stream: ChainStream, kind: int, stack: Stack, made: Collection[Group], reasons: Mapping[Group, str]
) -> list[LeftOut]:
    """Return the groups of a kind of step that were declined. made: the others. reasons: of each declined group."""
    rows, missing, wanted = stream.rows(kind), Counter[tuple[str, str]](), Counter[str]()
    for group in groups_of(stream, kind, stack):
        name = "+".join(row.name for row in rows[group.first : group.stop])
        wanted[name] += 1
        if group not in made:
            missing[name, reasons[group]] += 1
    return [LeftOut(name, count, wanted[name], reason) for (name, reason), count in missing.items()]


def groups_of(
    stream: ChainStream, kind: int, stack: Stack, accepts: Callable[[Group], bool] = lambda _: True
) -> list[Group]:
    """Return the groups of a kind of step. accepts: whether a group can be made; if not, a smaller one is tried."""
    rows, found, at = stream.rows(kind), list[Group](), 0
    merged = [names for names in stream.program.merged if _merges(names, stack)]
    while at < len(rows):
        group = next((each for each in _next(rows, at, merged, stack) if accepts(each)), None)
        if group is not None:
            found.append(group)
        at = at + 1 if group is None else group.stop
    return found


def unwritten_of(stream: ChainStream, stack: Stack) -> frozenset[str]:
    """Return the names of the nodes whose outputs the launches of a stack may leave out."""
    found: set[str] = set()
    for kind in range(len(stream.kinds)):
        rows = stream.rows(kind)
        for group in groups_of(stream, kind, stack):
            found |= {row.name for row in inner(rows[group.first : group.stop], group.kind)}
    return frozenset(found)


def inner(rows: Sequence[Row], kind: Kind) -> list[Row]:
    """Return the rows of a group whose outputs stay inside its launch. A KV write always stores its output."""
    if kind in (Kind.merged, Kind.add_norm, Kind.rope_kv):
        return []
    if kind is Kind.reduce:
        return [*rows[:1]]
    stored = (rows[-1].op, Op.KV_WRITE)  # of a group that ends with merged GEMMs, all of them are stored
    return [row for row in rows[:-1] if row.op not in stored]


def has_rows(stream: Stream, ops: Sequence[Op]) -> bool:
    """Return whether a layer of the workload has rows of these ops, each reading the output of the one before."""
    return stream.has_steps and any(
        _are(rows, at, ops)
        for rows in map(chain_of(stream).rows, range(len(chain_of(stream).kinds)))
        for at in range(len(rows))
    )


def fused_in(stream: ChainStream, stack: Stack) -> frozenset[Fusion]:
    """Return the fusions of a stack that the workload has rows for, or whose rows it stores merged already."""
    return frozenset(each for each in stack.fuse if _has(stream, each, stack))


def _has(stream: ChainStream, fusion: Fusion, stack: Stack) -> bool:
    names, ops = [node.name for node in stream.program.layer], {node.op for node in stream.program.layer}
    if fusion in (Fusion.qkv, Fusion.gate_up):
        stored = {str(fusion), "linear0"}  # a model's linear layers alone are stored merged, too
        return bool(stored & set(names)) or any(
            _merges(each, Stack(fuse=frozenset({fusion}))) for each in stream.program.merged
        )
    if fusion is Fusion.epilogue:
        kinds = {group.kind for i in range(len(stream.kinds)) for group in groups_of(stream, i, stack)}
        own = stack.kernels is Kernels.own and Op.ADD in ops
        return own or bool(kinds & {Kind.epilogue, Kind.elementwise})
    if fusion is Fusion.silu and Fusion.gate_up not in stack.fuse:
        return "gate_up" in names  # it is behind one GEMM for gate and up
    return NEEDED[fusion] in ops


def _merges(names: Sequence[str], stack: Stack) -> bool:
    """Return whether a stack merges these GEMMs: q, k and v, or gate and up."""
    return (Fusion.qkv if names[0] == "q" else Fusion.gate_up) in stack.fuse


def _next(rows: Sequence[Row], at: int, merged: Sequence[Sequence[str]], stack: Stack) -> Iterator[Group]:
    """Yield the groups that may be the next one from row `at` on, the preferred one first.

    They begin at row `at`. Only our own GEMM with a norm begins behind it, if row `at` is the add before that norm.
    """
    fuse = stack.fuse
    if stack.kernels is Kernels.own and Fusion.norm in fuse and _are(rows, at, (Op.ADD, Op.NORM)):
        yield from _around_gemm(rows, at + 1, merged, fuse)
    if Fusion.reduce in fuse:
        if Fusion.norm in fuse and _are(rows, at, (Op.ALL_REDUCE, Op.ADD, Op.NORM)):
            yield Group(Kind.reduce, at, at + 3)
        if _are(rows, at, (Op.ALL_REDUCE, Op.ADD)):
            yield Group(Kind.reduce, at, at + 2)
    if {Fusion.rope_kv, Fusion.attention} <= fuse and _are(rows, at, (*ROPE_KV, *ATTENTION)):
        yield Group(Kind.attention, at, at + len(ROPE_KV) + len(ATTENTION))
    if Fusion.rope_kv in fuse and _are(rows, at, ROPE_KV):
        yield Group(Kind.rope_kv, at, at + len(ROPE_KV))
    if Fusion.attention in fuse and _are(rows, at, ATTENTION):
        yield Group(Kind.attention, at, at + len(ATTENTION))
    if Fusion.epilogue in fuse:
        if stack.kernels is not Kernels.triton and _are(rows, at, GEMM_BIAS_RELU):
            yield Group(Kind.epilogue, at, at + len(GEMM_BIAS_RELU))
        if _are(rows, at, BIAS_RELU_SCALE):
            yield Group(Kind.elementwise, at, at + len(BIAS_RELU_SCALE))
    if stack.kernels is Kernels.own:
        yield from _around_gemm(rows, at, merged, fuse)
    if stop := _merged_stop(rows, at, merged):
        yield Group(Kind.merged, at, stop)
    if Fusion.norm in fuse and _are(rows, at, (Op.ADD, Op.NORM)):
        yield Group(Kind.add_norm, at, at + 2)


def _merged_stop(rows: Sequence[Row], at: int, merged: Sequence[Sequence[str]]) -> int:
    """Return the row behind the merged GEMMs that begin at row `at`; 0 if none do."""
    return next((at + len(names) for names in merged if at < len(rows) and rows[at].name == names[0]), 0)


def _is_norm_of_gemm(rows: Sequence[Row], at: int, merged: Sequence[Sequence[str]]) -> bool:
    """Return whether row `at` is a norm whose output only our own GEMM behind it reads, or the merged GEMMs."""
    if not _are(rows, at, (Op.NORM, Op.GEMM)) or not _is_gemm(rows, at + 1):
        return False
    readers = [row for row in rows[at + 1 :] if row.layer == rows[at].layer and rows[at].c in (row.a, row.b)]
    return len(readers) == (_merged_stop(rows, at + 1, merged) or at + 2) - (at + 1)


def _around_gemm(
    rows: Sequence[Row], at: int, merged: Sequence[Sequence[str]], fuse: frozenset[Fusion]
) -> Iterator[Group]:
    """Yield the group of our own GEMM that begins at row `at`. Steps of several columns keep the library's GEMMs."""
    gemm = at + (Fusion.norm in fuse and _is_norm_of_gemm(rows, at, merged))
    if not _is_gemm(rows, gemm):
        return
    stop = _merged_stop(rows, gemm, merged) or gemm + 1
    if stop < len(rows) and BEHIND_GEMM.get(rows[stop].op) in fuse and rows[stop].b == rows[gemm].c:
        stop += 1
    yield Group(Kind.gemm, at, stop)


def _is_gemm(rows: Sequence[Row], at: int) -> bool:
    return at < len(rows) and rows[at].op is Op.GEMM and rows[at].n == 1 and not _is_prompt(rows)


def _is_prompt(rows: Sequence[Row]) -> bool:
    """Return whether the rows are those of a prompt's step, which may end with the LM head of one column."""
    return rows[0].n > 1


def _are(rows: Sequence[Row], at: int, ops: Sequence[Op]) -> bool:
    """Return whether rows from `at` on have these ops, each reading the output of the one that its op needs."""
    own = rows[at : at + len(ops)]
    if tuple(row.op for row in own) != tuple(ops):
        return False
    outputs = {row.op: row.c for row in own}
    for before, row in pairwise(own):
        source = outputs[Op.ROPE] if row.op in (Op.KV_WRITE, Op.QK) and Op.ROPE in outputs else before.c
        if row.b != source:
            return False
    return True
