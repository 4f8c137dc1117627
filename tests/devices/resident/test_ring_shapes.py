"""The words of a shape that the persistent kernel reads (struct Shape): they suffice to compute C."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.resident.resident_ring import multiplied

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.resident.ring import LEAST_TILE_BYTES, MOST_COLUMNS, MOST_ROWS, shape_words, takes

properties = settings(deadline=None, max_examples=200)
few, many = st.integers(1, MOST_COLUMNS), st.integers(1, 90)
sizes = st.one_of(st.tuples(many, few), st.tuples(few, many))
padding = st.tuples(*[st.integers(0, 5)] * 3)


@properties
@given(sizes, st.integers(1, 40), st.sampled_from(Dtype), padding, st.integers(0, 2**32 - 1))
def test_the_words_of_a_shape_give_the_product(
    sizes: tuple[int, int], k: int, dtype: Dtype, padding: tuple[int, int, int], seed: int
) -> None:
    """Rows are padded, and either A or B is long. No element beside C changes."""
    m, n = sizes
    leading = k + padding[0], k + padding[1], m + padding[2]
    shape = ShapeKey(m, n, k, dtype)
    words, swapped = shape_words(shape, leading)
    rows, columns = words[:2]
    assert rows >= columns
    assert columns <= MOST_COLUMNS
    assert takes(shape)
    generator = np.random.default_rng(seed)
    a, b = (generator.integers(-9, 10, (count, row)) for count, row in ((m, leading[0]), (n, leading[1])))
    c = np.full((n, leading[2]), 1000)
    given_operands = (b, a) if swapped else (a, b)
    multiplied(words, *(operand.reshape(-1) for operand in given_operands), c.reshape(-1))
    assert (c[:, :m] == b[:, :k] @ a[:, :k].T).all()
    assert (c[:, m:] == 1000).all()


@properties
@given(sizes, st.integers(1, 20_000), st.sampled_from(Dtype))
def test_a_tile_is_worth_handing_out(sizes: tuple[int, int], k: int, dtype: Dtype) -> None:
    """A tile has as many rows as a group reads at once, and one row if k is long."""
    shape = ShapeKey(*sizes, k, dtype)
    words, swapped = shape_words(shape, (k, k, sizes[0]))
    least, row_bytes = words[-1], k * dtype.itemsize
    assert swapped == (sizes[0] < sizes[1])
    assert len(words) == 8
    assert least == 1 or least * row_bytes <= LEAST_TILE_BYTES < (least + 1) * row_bytes
    assert least * row_bytes > LEAST_TILE_BYTES // 2


@pytest.mark.parametrize(
    ("m", "n", "does"),
    [
        (1, 1, True),
        (5000, 16, True),
        (16, 5000, True),
        (16, 16, True),
        (17, 16, True),
        (17, 17, False),
        (5000, 17, False),
        (MOST_ROWS, 1, True),
        (MOST_ROWS + 1, 1, False),
        (1, MOST_ROWS + 1, False),
    ],
)
def test_few_columns_or_few_rows_are_taken(m: int, n: int, does: bool) -> None:
    assert takes(ShapeKey(m, n, 8, Dtype.fp16)) == does


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.GEMM], ids=lambda op: op.name)
def test_nothing_but_gemms_is_taken(op: Op) -> None:
    assert not takes(ShapeKey(8, 1, 8, Dtype.fp32, op))
