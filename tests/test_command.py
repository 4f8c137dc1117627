"""The command record: its layout is a contract between processes, so it is held against a golden file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import TESTS

from launchopt.command import COMMAND_DTYPE, RECORD_BYTES, Dtype, Op, RecordWord, ShapeKey, as_words

GOLDEN = TESTS / "golden/command_record.txt"
u32 = st.integers(0, 2**32 - 1)


def test_record_layout() -> None:
    fields = COMMAND_DTYPE.fields
    assert fields is not None
    lines = [f"{name} {offset} {kind.str}" for name, (kind, offset, *_) in fields.items()]
    assert "\n".join(lines) + "\n" == GOLDEN.read_text()
    assert COMMAND_DTYPE.itemsize == RECORD_BYTES == 64


def test_bytes_are_little_endian() -> None:
    record = np.zeros(1, COMMAND_DTYPE)
    record["seq"], record["m"], record["flags"] = 0x0102030405060708, 0x0A0B0C0D, 0x0E0F
    raw = record.tobytes()
    assert raw[:8] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert raw[16:20] == bytes([0x0D, 0x0C, 0x0B, 0x0A])
    assert raw[30:32] == bytes([0x0F, 0x0E])


@settings(deadline=None, max_examples=100)
@given(m=u32, n=u32, k=u32, dtype=st.sampled_from(Dtype), op=st.sampled_from(Op))
def test_packed_key_is_what_the_record_holds(m: int, n: int, k: int, dtype: Dtype, op: Op) -> None:
    record = np.zeros(1, COMMAND_DTYPE)
    record["m"], record["n"], record["k"], record["dtype"], record["op"] = m, n, k, dtype, op
    words = as_words(record)[0]
    assert (int(words[RecordWord.MN]), int(words[RecordWord.K_OP_DTYPE])) == ShapeKey(m, n, k, dtype, op).packed


def test_words_are_the_records_own_memory() -> None:
    records = np.zeros(3, COMMAND_DTYPE)
    words = as_words(records)
    records["seq"], records["enqueue_ns"] = [5, 6, 7], -1
    records["slot_a"], records["slot_b"], records["slot_c"], records["request"], records["step"] = 1, 2, 3, 4, 9
    assert words[:, RecordWord.SEQ].tolist() == [5, 6, 7]
    assert words[1, RecordWord.ENQUEUE_NS] == 2**64 - 1
    assert (words[1, RecordWord.SLOTS_AB], words[1, RecordWord.SLOT_C_REQUEST]) == (1 | 2 << 32, 3 | 4 << 32)
    assert words[2, RecordWord.STEP_TOKEN] == 9


@pytest.mark.parametrize(
    ("dtype", "itemsize", "roundoff"), [("fp32", 4, 2**-24), ("fp16", 2, 2**-11), ("bf16", 2, 2**-8)]
)
def test_element_types(dtype: str, itemsize: int, roundoff: float) -> None:
    assert (Dtype[dtype].itemsize, Dtype[dtype].unit_roundoff) == (itemsize, roundoff)


def test_work_of_a_shape() -> None:
    shape = ShapeKey(64, 3, 8192, Dtype.fp16)
    assert shape.flops == 2 * 64 * 3 * 8192
    assert shape.bytes == 2 * (64 * 8192 + 8192 * 3 + 64 * 3)
    assert ShapeKey(64, 3, 8192, Dtype.fp32).bytes == 2 * shape.bytes
    assert str(shape) == "64x3x8192"
