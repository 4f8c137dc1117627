"""Bytes that had to move: shared weights count once, caches give no bandwidth, and old files are read as before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.summary_rows import TOKENS, row

from launchopt.analysis.tables.bandwidth import (
    bytes_share,
    memory_gb_per_s,
    memory_share,
    needed_gb_per_s,
    requests_together,
)
from launchopt.analysis.tables.columns import COLUMNS
from launchopt.analysis.tables.rows import build_tables
from launchopt.command import Dtype, Op, ShapeKey
from launchopt.recording.results import Row


def decode(**columns: object) -> Row:
    closed = {"arrival": "closed", "arrival_rate_per_s": None, "requests": 16, "achieved_gb_per_s": 13_000.0}
    return row(**{**TOKENS, **closed, "copy_gb_per_s": 4000.0, "read_gb_per_s": 4400.0, **columns})


def test_a_weight_that_requests_share_counts_once_so_no_share_is_above_the_peak() -> None:
    assert memory_share(decode()) == pytest.approx(13_000 / 16 / 4400)
    (table,) = build_tables([decode()])
    cells = {column.heading: column.cell(table.lines[0]) for column in COLUMNS}
    assert cells["memory bandwidth, % of peak"] == "18.5%"


def test_activations_count_for_every_request() -> None:
    shared = decode(bytes_moved=1000, weight_bytes=800)
    assert needed_gb_per_s(shared) == pytest.approx(13_000 * (200 + 800 / 16) / 1000)


def test_independent_commands_share_nothing() -> None:
    alone = row(achieved_gb_per_s=2100.0, copy_gb_per_s=4200.0, requests=1000)
    assert memory_share(alone) == pytest.approx(0.5)


def test_requests_of_an_open_loop_share_a_weight_only_within_a_batch() -> None:
    arriving = {"arrival": "poisson", "requests": 500}
    assert requests_together(decode(**arriving, batch_size_mean=None)) == 1
    assert requests_together(decode(**arriving, batch_size_mean=4.0)) == 4
    assert requests_together(decode(**arriving, batch_size_mean=900.0)) == 500


def test_inputs_in_a_cache_give_no_memory_bandwidth() -> None:
    hot = decode(cache="hot")
    assert memory_gb_per_s(hot) is memory_share(hot) is None
    assert needed_gb_per_s(hot) == pytest.approx(13_000 / 16)


@pytest.mark.parametrize("missing", [{"achieved_gb_per_s": None}, {"copy_gb_per_s": None, "read_gb_per_s": None}])
def test_what_was_not_measured_has_no_share(missing: dict[str, None]) -> None:
    assert memory_share(decode(**missing)) is None


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 64))
def test_sharing_moves_no_more_bytes_and_at_least_the_activations(moved: int, weights: int, together: int) -> None:
    weights = min(weights, moved)
    share = bytes_share(row(bytes_moved=moved, weight_bytes=weights), together)
    assert share <= 1 + 1e-12
    assert share >= (moved - weights) / moved - 1e-12


@pytest.mark.parametrize(("op", "elements"), [(Op.GEMM, 5 * 7), (Op.NORM, 5), (Op.BIAS, 5), (Op.ADD, 0), (Op.AV, 0)])
def test_the_weight_of_a_command(op: Op, elements: int) -> None:
    shape = ShapeKey(5, 3, 7, Dtype.fp16, op)
    assert shape.weight_bytes == 2 * elements
    assert shape.weight_bytes <= shape.bytes
