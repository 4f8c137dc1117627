"""The work of a stream: FLOPs and bytes of each shape, and of attention over the positions that columns see."""

from __future__ import annotations

from hypothesis import given, settings
from support.steps.programs import program_streams
from support.steps.stream_steps import positions_of

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.streams.chains.chain import ChainStream

properties = settings(deadline=None, max_examples=60)
ATTENDING = ("layer", "paged")


@properties
@given(program_streams(ATTENDING, 3))
def test_work_is_that_of_every_position_seen(stream: ChainStream) -> None:
    attention, size = stream.attention, stream.dtype.itemsize
    assert attention is not None
    heads, dim, kept = attention.q_heads, attention.head_dim, attention.kv_heads * attention.head_dim
    known = {Op.QK, Op.AV, Op.SOFTMAX, Op.KV_WRITE}
    plain = [(shape, count) for shape, count in stream.counts.items() if shape.op not in known]
    flops = sum(shape.flops * count for shape, count in plain)
    moved = sum(shape.bytes * count for shape, count in plain)
    for kind, starts in positions_of(stream).items():
        for start in starts:
            scores = sum(heads * (start + column + 1) for column in range(kind.n))
            flops += stream.layers * (4 * dim * scores + scores)
            reads = 2 * (kind.n * heads * dim + (start + kind.n) * kept + scores) + 2 * scores
            moved += stream.layers * (reads * size + kind.n * (4 * kept * size + 4))
    assert (stream.flops, stream.bytes_moved) == (flops, moved)


def test_work_of_a_shape_without_a_gemm() -> None:
    def work(op: Op, m: int, k: int, dtype: Dtype = Dtype.fp16) -> tuple[int, int]:
        shape = ShapeKey(m, 3, k, dtype, op)
        return shape.flops, shape.bytes

    assert work(Op.BIAS, 10, 10) == work(Op.SCALE, 10, 10) == work(Op.NORM, 10, 10) == (30, 2 * (30 + 30 + 10))
    assert work(Op.RELU, 10, 10, Dtype.fp32) == work(Op.ROPE, 10, 10, Dtype.fp32) == (30, 4 * 60)
    assert work(Op.ADD, 10, 10) == (30, 2 * 90)
    assert work(Op.SILU_MUL, 10, 20) == (30, 2 * 90)
    assert work(Op.SLOT_MAP, 1, 1) == (0, 12)
    assert work(Op.KV_WRITE, 8, 20) == (0, 2 * 48 + 12)
    # An op of attention counts one position, the least.
    assert work(Op.QK, 40, 20) == work(Op.SOFTMAX, 40, 40) == (3, 12)
    assert work(Op.AV, 8, 40) == (24, 48)
