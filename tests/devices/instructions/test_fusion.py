"""Fusion of instructions: a suitable layer is fused as far as possible, and each obstacle keeps instructions apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from support.megakernel.instruction_runs import InstructionRun
from support.megakernel.kernel_runs import ADDRESSES
from support.steps.fused_layers import (
    ATTENTION,
    MODEL,
    STAGES,
    compiled,
    layer_stream,
    layer_streams,
    names_of,
    stages_of,
)
from support.steps.programs import SPLIT, requests_of, stream_of
from support.steps.step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices.instructions import fusion
from launchopt.devices.instructions.fusion import attention_bytes, fused, merged
from launchopt.devices.instructions.words import PART, Word, groups_of
from launchopt.kernels.shared import MOST_COLUMNS
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import layer_program
from launchopt.streams.model import ModelShape

Words = Mapping[tuple[str, Word], int]
LAYER = ["slots", *STAGES]
DTYPES = (Dtype.fp32, Dtype.bf16)


def changed(words: Words, requests: int = 1, dtype: Dtype = Dtype.fp32) -> list[str]:
    """Return the names of the fused instructions of a layer after some words of its list were changed."""
    stream = layer_stream(requests, dtype)
    rows, names = compiled(stream, fuse=False), names_of(stream)
    for (name, word), value in words.items():
        rows[names.index(name), word] = value
    return stages_of(fused(rows, dtype.itemsize), names)


def moved(offset: int, *operands: tuple[str, Word]) -> Words:
    """Return words of one request, increased by `offset`."""
    stream = layer_stream(1)
    rows, names = compiled(stream, fuse=False), names_of(stream)
    return {(name, word): int(rows[names.index(name), word]) + offset for name, word in operands}


def split(*parts: Sequence[str]) -> list[str]:
    """Return the names of a layer in which these parts are not fused, although they usually are."""
    apart = {"+".join(each for part in some for each in part.split("+")): some for some in parts}
    assert set(apart) <= set(LAYER)
    return [each for stage in LAYER for each in apart.get(stage, [stage])]


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_layer_is_five_fused_instructions_and_the_slots(requests: int, page: int | None, dtype: Dtype) -> None:
    stream = layer_stream(requests, dtype, layers=2, page=page)
    assert stages_of(compiled(stream), names_of(stream)) == ["slots", *STAGES, *STAGES]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("sizes", [[(0, 3)], [(0, 3)] * 3, [(4, 2), (0, 2)]], ids=str)
def test_gemms_side_by_side_are_one_instruction(sizes: list[tuple[int, int]], dtype: Dtype) -> None:
    """A layer whose q, k, v, gate and up are GEMMs of their own gives the list, and the memory, of a merged one."""
    programs = [layer_program(SPLIT, 8, merged=merged) for merged in (False, True)]
    runs = [InstructionRun(ChainStream(program, 2, requests_of(sizes), dtype, 1), fuse=True) for program in programs]
    apart, together = (run.all() for run in runs)
    own = [word for word in Word if word not in (*ADDRESSES, Word.ROW, Word.LDC)]  # LDC: unused with one column
    for one, other in zip(apart, together, strict=True):
        is_alone = len(one) == len(other)  # requests at uneven distances have instructions of their own
        assert not is_alone or (one[:, own] == other[:, own]).all()
    assert len(apart[-1]) == len(together[-1]) == 1 + 2 * 14
    assert runs[0].verify().ok
    assert runs[0].contents() == runs[1].contents()


@pytest.mark.parametrize(("word", "by"), [(Word.A, 16), (Word.B, 16), (Word.C, 16), (Word.K, -4), (Word.REQUESTS, 1)])
def test_other_gemms_stay_apart(word: Word, by: int) -> None:
    stream = stream_of("qkv", [(0, 3)], layers=1)
    rows = compiled(stream, fuse=False)
    assert merged(rows, 4, 32)[:, Word.M].tolist() == [512, *rows[3:, Word.M]]
    rows[1, word] += by
    assert merged(rows, 4, 32)[:, Word.M].tolist() == rows[:, Word.M].tolist()


def test_fusion_is_optional() -> None:
    program = compiled(layer_stream(1), fuse=False)
    assert not program[:, Word.FUSED].any()
    assert fused(program, 4)[:, Word.FUSED].tolist() == [0, 1, PART, 4, *[PART] * 4, 1, PART, 2, PART, PART, 1, PART]
    assert not program[:, Word.FUSED].any(), "`fused` leaves its argument unchanged"


@settings(deadline=None, max_examples=40)
@given(layer_streams())
def test_nothing_else_changes(stream: ChainStream) -> None:
    """Fused groups have one of the known forms, whatever the batch."""
    rig = InstructionRun(stream)
    itemsize = stream.dtype.itemsize
    for batch in batches(stream, 3):
        program = rig.compiler.compile(batch)
        made = fused(program, itemsize)
        assert (made[:, : Word.FUSED] == program[:, : Word.FUSED]).all()
        assert (made[:, Word.FUSED + 1 :] == program[:, Word.FUSED + 1 :]).all()
        assert sum(map(len, groups_of(made))) == len(made)
        for group in groups_of(made):
            ops = [Op(op) for op in made[group, Word.OP].tolist() if len(group) > 1]
            if ops[:1] == [Op.NORM]:
                ops = ops[1:]
                assert ops[:1] == [Op.GEMM]
            assert tuple(ops) in {
                (),
                fusion.ATTENTION,
                (Op.GEMM,),
                (Op.GEMM, Op.ADD),
                (Op.GEMM, Op.SILU_MUL),
            }
            assert len(group) == 1 or (made[group, Word.N] == 1).all()
            assert len({(row[Word.REQUESTS], row[Word.FIRST_REQUEST]) for row in made[group].tolist()}) == 1


# -- Obstacles to fusion

NORM1 = split(["norm1", "qkv"])
O_ADD1 = split(["o", "add1"])
SILU = split(["norm2+gate_up", "silu_mul"])
NO_ATTENTION = split(ATTENTION.split("+"))


@pytest.mark.parametrize("operand", [Word.A, Word.B], ids=lambda word: word.name)
@pytest.mark.parametrize("requests", [1, 3])
def test_a_norm_with_another_reader_is_not_fused(requests: int, operand: Word) -> None:
    """A fused norm stores no output for the other reader."""
    stream = layer_stream(requests)
    given = int(compiled(stream, fuse=False)[names_of(stream).index("norm1"), Word.C])
    assert list(changed({("add2", operand): given}, requests)[1:3]) == ["norm1", "qkv"]
    assert changed({("add2", operand): given + 16}, requests)[1] == "norm1+qkv"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("requests", [1, 3])
def test_the_width_of_a_fused_norm_is_limited(requests: int, dtype: Dtype) -> None:
    most = fusion.NORM_BYTES[1 if requests == 1 else MOST_COLUMNS] // dtype.itemsize
    for features, expected in ((most, LAYER), (most + 128, NORM1)):
        words = {("norm1", Word.M): features, ("qkv", Word.K): features}
        assert changed(words, requests, dtype) == expected, features


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ([("norm1", Word.A)], NORM1),
        ([("norm1", Word.B)], NORM1),
        ([("o", Word.C), ("add1", Word.B)], O_ADD1),
        ([("add1", Word.A)], O_ADD1),
        ([("add1", Word.C)], O_ADD1),
        ([("silu_mul", Word.C)], SILU),
        ([("rope", Word.B)], NO_ATTENTION),
        ([("rope", Word.C), ("kv_write", Word.B), ("qk", Word.B)], NO_ATTENTION),
        ([("av", Word.C)], NO_ATTENTION),
        ([("kv_write", Word.C), ("qk", Word.A), ("av", Word.A)], NO_ATTENTION),
        # The GEMM's own operand: nothing fuses with a GEMM whose weights are not streamed.
        ([("qkv", Word.A)], NORM1),
        ([("norm1", Word.C), ("qkv", Word.B)], NORM1),
        ([("o", Word.A)], O_ADD1),
        ([("o", Word.B)], O_ADD1),
        ([("gate_up", Word.A)], split(["norm2", "gate_up", "silu_mul"])),
        # Operands that are not read or stored in vectors may lie anywhere.
        ([("qkv", Word.C)], LAYER),
        ([("qk", Word.C), ("softmax", Word.B)], LAYER),
        ([("kv_write", Word.A)], LAYER),
    ],
    ids=lambda value: "+".join(f"{name}.{word.name}" for name, word in value) if isinstance(value[0], tuple) else "",
)
def test_operands_are_of_whole_vectors(operands: list[tuple[str, Word]], expected: list[str]) -> None:
    assert changed(moved(8, *operands)) == expected
    assert changed(moved(16, *operands)) == LAYER


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("norm1", Word.STRIDE_B, NORM1),
        ("add1", Word.STRIDE_A, O_ADD1),
        ("add1", Word.STRIDE_C, O_ADD1),
        ("silu_mul", Word.STRIDE_C, SILU),
        ("rope", Word.STRIDE_B, NO_ATTENTION),
        ("av", Word.STRIDE_C, NO_ATTENTION),
        ("norm1", Word.STRIDE_C, NORM1),  # the GEMM reads its input elsewhere
        ("qkv", Word.STRIDE_B, NORM1),
        ("add1", Word.STRIDE_B, O_ADD1),
        ("silu_mul", Word.STRIDE_B, SILU),
        ("qk", Word.STRIDE_B, NO_ATTENTION),
        ("qkv", Word.STRIDE_A, NORM1),  # each request has its own weights
    ],
)
def test_strides_of_requests_are_whole_vectors(name: str, word: Word, expected: list[str]) -> None:
    """The strides of a single request do not matter."""
    assert changed({(name, word): 1032}, requests=3) == expected
    assert changed({(name, word): 1032}) == LAYER


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({("norm1", Word.C): 1 << 20}, NORM1),
        ({("qkv", Word.K): 128}, NORM1),
        ({("add1", Word.B): 1 << 20}, O_ADD1),
        ({("add1", Word.M): 128}, O_ADD1),
        ({("silu_mul", Word.B): 1 << 20}, SILU),
        ({("silu_mul", Word.M): 192}, SILU),
        ({("kv_write", Word.B): 1 << 20}, NO_ATTENTION),
        ({("qk", Word.B): 1 << 20}, NO_ATTENTION),
        ({("softmax", Word.B): 1 << 20}, NO_ATTENTION),
        ({("av", Word.B): 1 << 20}, NO_ATTENTION),
        ({("kv_write", Word.C): 1 << 20}, NO_ATTENTION),
        ({("av", Word.A): 1 << 20}, NO_ATTENTION),
        ({("o", Word.FIRST_REQUEST): 1}, O_ADD1),
        ({("o", Word.M): 255, ("add1", Word.M): 255}, O_ADD1),
        ({("gate_up", Word.M): 776, ("silu_mul", Word.M): 388}, SILU),  # rows do not fill whole tiles
        ({("gate_up", Word.M): 784, ("silu_mul", Word.M): 392}, LAYER),
    ],
)
def test_sizes_of_fused_instructions_match(words: Words, expected: list[str]) -> None:
    assert changed(words) == expected


def test_several_columns_are_not_fused() -> None:
    """The steps are a prompt of three tokens, and the one after it."""
    program = layer_program(MODEL, 8)
    stream = ChainStream(program, 1, requests_of([(3, 2)]), Dtype.fp32, 1)
    rig = InstructionRun(stream, fuse=True)
    prompt, decode = (rig.compiler.compile(batch) for batch in batches(stream, 1))
    assert (prompt[:, Word.N] == 3).all()
    assert not prompt[:, Word.FUSED].any()
    assert stages_of(decode, names_of(stream)) == LAYER


def attention_of(head_dim: int, ctx: int, q_heads: int = 8, kv_heads: int = 2, dtype: Dtype = Dtype.fp32) -> bool:
    """Return whether attention with these heads is fused."""
    values = {Word.HEAD_DIM: head_dim, Word.CTX: ctx, Word.Q_HEADS: q_heads, Word.KV_HEADS: kv_heads}
    made = changed({("rope", word): value for word, value in values.items()}, dtype=dtype)
    assert made in (LAYER, NO_ATTENTION)
    return made == LAYER


@pytest.mark.parametrize(
    ("dtype", "one", "apart"),
    [
        (Dtype.fp32, [8, 16, 64, 128], [2, 4, 6, 24, 48, 96, 256]),
        (Dtype.bf16, [16, 32, 64, 128, 256], [4, 8, 12, 24, 96, 512]),
    ],
)
def test_a_head_is_a_power_of_two_of_vectors(dtype: Dtype, one: list[int], apart: list[int]) -> None:
    """A head has at least two vectors, which ROPE rotates together, and at most what one warp holds."""
    assert [head_dim for head_dim in (*one, *apart) if attention_of(head_dim, 8, dtype=dtype)] == one


def test_a_group_has_no_more_queries_than_lanes_share_a_key() -> None:
    found = [heads for heads in range(1, 20) if attention_of(32, 8, heads, 2)]
    assert found == [2, 4, 6, 8, 10, 12, 14, 16]


def test_a_longer_cache_is_for_more_blocks() -> None:
    """A block reads at most 2 * ctx * head_dim elements of the cache."""
    for head_dim, dtype in ((32, Dtype.fp32), (64, Dtype.bf16), (128, Dtype.bf16)):
        most = fusion.CACHE_BYTES // (2 * head_dim * dtype.itemsize)
        assert [attention_of(head_dim, ctx, dtype=dtype) for ctx in (most, most + 1)] == [True, False]


def test_scores_of_a_long_context_do_not_fit() -> None:
    """With many queries and short heads, the scores exceed shared memory long before the cache is too long."""
    fits = [ctx for ctx in range(900, 1000) if attention_bytes(16, 8, ctx, 4) <= fusion.ATTENTION_BYTES]
    assert fits == list(range(900, fits[-1] + 1))
    assert 2 * (fits[-1] + 1) * 16 * 4 < fusion.CACHE_BYTES
    assert [attention_of(16, ctx, 16, 2) for ctx in (fits[-1], fits[-1] + 1)] == [True, False]


def test_relu_stays_apart() -> None:
    stream = layer_stream(2, model=ModelShape("plain", 256, 2, 8, 2, 32, 384, gated=False))
    stages = ["slots", *STAGES[:3], "norm2+up", "relu", "down+add2"]
    assert stages_of(compiled(stream), names_of(stream)) == stages


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_odd_sizes_are_not_fused(dtype: Dtype) -> None:
    stream = layer_stream(2, dtype, model=ModelShape("odd", 72, 2, 3, 1, 24, 100, gated=False), page=3)
    assert not compiled(stream)[:, Word.FUSED].any()
