"""The work of a stream of requests: its commands by shape, their FLOPs, and the bytes of their operands.

The work of attention depends on the actual lengths of the requests (`Lengths`). That of any other op follows from its
shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from launchopt.command import INDEX_BYTES, Dtype, Op, ShapeKey
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.lengths import Lengths

ATTENTION_OPS = (Op.KV_WRITE, Op.QK, Op.SOFTMAX, Op.AV)  # their work depends on the position of a step in its request


def count_commands(
    shapes: Iterable[Mapping[ShapeKey, int]], steps: Sequence[int], requests: int
) -> tuple[dict[ShapeKey, int], dict[ShapeKey, int]]:
    """Return the commands of each shape, and the most of them in one batch: a request has at most one in a batch.

    shapes: for each kind of step, its shapes with their counts. steps: number of steps of each kind.
    """
    counts: dict[ShapeKey, int] = {}
    together: dict[ShapeKey, int] = {}
    for of_kind, uses in zip(shapes, steps, strict=True):
        for shape, times in of_kind.items():
            counts[shape] = counts.get(shape, 0) + times * uses
            together[shape] = min(requests, together.get(shape, 0) + uses)
    return counts, together


def work_of(
    counts: Mapping[ShapeKey, int],
    ops: Iterable[Op],
    attention: Attention | None,
    lengths: Collection[Lengths],
    dtype: Dtype,
) -> tuple[int, int]:
    """Return the FLOPs of a stream and the bytes of A, B and C, summed over all commands.

    counts: commands of each shape. ops: of all nodes of all layers. lengths: of every kind of step.
    """
    plain = [(shape, count) for shape, count in counts.items() if shape.op not in ATTENTION_OPS]
    flops = sum(shape.flops * count for shape, count in plain)
    moved = sum(shape.bytes * count for shape, count in plain)
    for op in [op for op in ops if op in ATTENTION_OPS]:
        assert attention is not None
        for each in lengths:
            work = attention_work(op, attention, each, dtype)
            flops, moved = flops + work[0], moved + work[1]
    return flops, moved


def attention_work(op: Op, attention: Attention, lengths: Lengths, dtype: Dtype) -> tuple[int, int]:
    """Return the FLOPs and the minimum bytes of one node's commands in all steps of `lengths`.

    A term counts as a product and a sum, a score of softmax as one operation. A step reads keys and values once for all
    heads that share them. It reads and writes scores only for the positions that a column sees.
    """
    heads, width = attention.q_heads, attention.q_heads * attention.head_dim
    scores, kept = heads * lengths.seen, attention.kv_width * lengths.read
    if op in (Op.QK, Op.AV):
        return 2 * attention.head_dim * scores, (width * lengths.columns + kept + scores) * dtype.itemsize
    if op is Op.SOFTMAX:
        return scores, 2 * scores * dtype.itemsize
    assert op is Op.KV_WRITE
    copied = 2 * 2 * attention.kv_width * lengths.columns * dtype.itemsize
    return 0, copied + INDEX_BYTES * lengths.columns
