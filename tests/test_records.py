"""Accessors of command records: each returns the field that NumPy finds under its name."""

from collections.abc import Callable

import numpy as np
import pytest

from launchopt import records as rec
from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Op, ShapeKey, as_records, as_words

COUNT = 64


@pytest.fixture(scope="module")
def records() -> np.ndarray:
    """Records of random bytes, so that every field has bits next to those of its neighbours."""
    return np.random.default_rng(0).integers(0, 256, COUNT * 64, np.uint8).view(COMMAND_DTYPE)


@pytest.mark.parametrize(
    ("accessor", "field"),
    [
        (rec.columns_of, "n"),
        (rec.op_of, "op"),
        (rec.slot_a_of, "slot_a"),
        (rec.slot_b_of, "slot_b"),
        (rec.slot_c_of, "slot_c"),
        (rec.request_of, "request"),
        (rec.step_of, "step"),
        (rec.token_of, "token"),
    ],
)
def test_an_accessor_returns_the_field(records: np.ndarray, accessor: Callable[..., int], field: str) -> None:
    words = as_words(records)
    assert [accessor(words, i) for i in range(COUNT)] == records[field].tolist()


def test_the_slots_are_those_of_a_b_and_c(records: np.ndarray) -> None:
    words = as_words(records)
    expected = list(zip(*(records[f"slot_{role}"].tolist() for role in "abc"), strict=True))
    assert [rec.slots_of(words, i) for i in range(COUNT)] == expected


def test_flags_are_told_apart(records: np.ndarray) -> None:
    words = as_words(records)
    assert [rec.ends_step(words, i) for i in range(COUNT)] == [bool(f & Flag.STEP_END) for f in records["flags"]]
    ends = [f & (Flag.STEP_END | Flag.GOES_ON) == Flag.STEP_END for f in records["flags"]]
    assert [rec.ends_steps(words, i) for i in range(COUNT)] == ends
    assert [rec.ends_round(words, i) for i in range(COUNT)] == [bool(f & Flag.ROUND_END) for f in records["flags"]]


def test_commands_of_one_shape_have_its_key_whatever_their_flags() -> None:
    shape = ShapeKey(24, 3, 56, Dtype.bf16, Op.SCALE, 5)
    record = np.zeros(1, COMMAND_DTYPE)
    record["m"], record["n"], record["k"], record["op"] = shape.m, shape.n, shape.k, shape.op
    record["dtype"], record["flags"] = shape.packed_dtype, Flag.STEP_END | Flag.ROUND_END
    assert rec.shape_key_of(as_words(record), 0) == shape.packed


def test_halves_of_a_word_are_joined_and_taken_apart() -> None:
    low, high = 2**32 - 1, 2**31 + 7
    word = np.uint64(rec.join_halves(low, high))
    assert (int(word), rec.low_half(word), rec.high_half(word)) == (high << 32 | low, low, high)


def test_a_copy_leaves_the_last_word_alone(records: np.ndarray) -> None:
    words, out = as_words(records), np.full((2, 8), 7, np.uint64)
    rec.copy_record(words, 3, out, 1)
    assert out[0].tolist() == [7] * 8
    assert out[1].tolist() == [*words[3, :7].tolist(), 7]


def test_words_and_records_are_the_same_memory(records: np.ndarray) -> None:
    assert np.shares_memory(as_records(as_words(records)), records)
    assert (as_records(as_words(records)) == records).all()
