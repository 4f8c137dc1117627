"""Columns of tokens, from tokens made by hand and against the same things counted one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.made_tokens import MS, Requests, made

from launchopt.recording import results
from launchopt.recording.columns import PERCENTILES
from launchopt.recording.token_times import token_columns, token_hash, token_table
from launchopt.statistics.histogram import RELATIVE_ERROR

properties = settings(deadline=None, max_examples=80)


def columns(
    requests: Requests, wall_ms: float = 1000, ttft: float | None = None, tpot: float | None = None
) -> dict[str, Any]:
    return token_columns(*made(requests), wall_ms, ttft, tpot, is_sampled=True)[0]


@st.composite
def requests_of(draw: st.DrawFn) -> Requests:
    """1 to 12 requests of 1 to 6 tokens, in order of time within each."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        times = draw(st.lists(st.integers(0, 10**9), min_size=2, max_size=7))
        arrived, *done = sorted(times)
        found.append((arrived, done))
    return found


def near(value: float | None, exact: float) -> bool:
    return value is not None and value == pytest.approx(exact, rel=RELATIVE_ERROR, abs=1e-6)


def test_two_requests_by_hand() -> None:
    requests = [(2 * MS, [5 * MS, 9 * MS, 19 * MS]), (4 * MS, [10 * MS])]
    row = columns(requests, wall_ms=20, ttft=3.0, tpot=6.9)
    assert (row["tokens"], row["tokens_per_s"]) == (4, 200)
    assert (row["slo_ttft_ms"], row["slo_tpot_ms"]) == (3.0, 6.9)
    assert near(row["ttft_p50_ms"], 4.5)  # 3 and 6
    assert row["ttft_max_ms"] == 6
    assert near(row["tpot_p50_ms"], 7)  # 14 ms for two more; the other request has only one token
    assert row["tpot_max_ms"] == 7
    assert row["goodput_per_s"] == 0  # one is too slow from token to token, the other at its first


@pytest.mark.parametrize(
    ("ttft", "tpot", "good"),
    [(3.0, 7.0, 1), (3.0, None, 1), (2.99, None, 0), (6.0, None, 2), (None, 7.0, 2), (None, 6.99, 1), (6.0, 6.99, 1)],
)
def test_goodput_counts_who_met_every_objective_given(ttft: float | None, tpot: float | None, good: int) -> None:
    """Met exactly is met. A request of one token has none after it to be late with."""
    requests = [(2 * MS, [5 * MS, 9 * MS, 19 * MS]), (4 * MS, [10 * MS])]
    assert columns(requests, 500, ttft, tpot)["goodput_per_s"] == good * 2


def test_without_an_objective_there_is_no_goodput() -> None:
    row = columns([(0, [1, 2])])
    assert (row["goodput_per_s"], row["slo_ttft_ms"], row["slo_tpot_ms"]) == (None, None, None)


def test_of_single_tokens_there_is_no_time_between() -> None:
    row = columns([(0, [5]), (1, [9])], ttft=1.0, tpot=1.0)
    assert {row[f"tpot_{part}_ms"] for part in (*PERCENTILES, "max")} == {None}
    assert row["goodput_per_s"] == 2


@properties
@given(requests_of(), st.floats(0.1, 1e4), st.floats(0.001, 1500), st.floats(0.001, 1500))
def test_columns_are_what_one_counts(requests: Requests, wall_ms: float, ttft: float, tpot: float) -> None:
    row, histograms = token_columns(*made(requests), wall_ms, ttft, tpot, is_sampled=True)
    firsts = [done[0] - arrived for arrived, done in requests]
    rests = [(done[-1] - done[0]) // (len(done) - 1) for _, done in requests if len(done) > 1]
    assert histograms["ttft"].count == len(requests)
    assert histograms["tpot"].count == len(rests)
    for name, values in (("ttft", firsts), ("tpot", rests)):
        for percentile, percent in PERCENTILES.items():
            value = row[f"{name}_{percentile}_ms"]
            assert near(value, float(np.percentile(values, percent)) / MS) if values else value is None
        assert row[f"{name}_max_ms"] == (max(values) / MS if values else None)
    good = sum(
        done[0] - arrived <= ttft * MS and (len(done) == 1 or (done[-1] - done[0]) // (len(done) - 1) <= tpot * MS)
        for arrived, done in requests
    )
    assert row["goodput_per_s"] == pytest.approx(good / wall_ms * 1e3)
    assert row["tokens"] == sum(len(done) for _, done in requests)
    assert row["tokens_per_s"] == pytest.approx(row["tokens"] / wall_ms * 1e3)
    assert row["goodput_per_s"] <= len(requests) / wall_ms * 1e3 + 1e-9


@properties
@given(requests_of())
def test_every_column_is_one_of_the_summary(requests: Requests) -> None:
    assert set(columns(requests)) <= set(results.SUMMARY.names)


@properties
@given(requests_of(), st.integers(1, 10**9))
def test_a_consumer_that_stands_still_is_late_by_that_much(requests: Requests, stall_ns: int) -> None:
    """Arrivals are when requests were due: what a stall delays counts in full, of all that came meanwhile."""
    later = [(arrived, [done + stall_ns for done in of_request]) for arrived, of_request in requests]
    before, after = columns(requests), columns(later)
    assert after["ttft_max_ms"] - before["ttft_max_ms"] == pytest.approx(stall_ns / MS)
    for name in ("ttft_p50_ms", "ttft_p99_ms"):
        exact = np.percentile([done[0] - arrived for arrived, done in later], float(name[6:8])) / MS
        assert near(after[name], float(exact))
    assert after["tpot_max_ms"] == before["tpot_max_ms"]


@properties
@given(st.lists(st.integers(-1, 2**31 - 1), min_size=1, max_size=20), st.data())
def test_a_hash_is_that_of_the_ids_in_order(ids: list[int], data: st.DataObject) -> None:
    requests: Requests = [(0, [1] * len(ids))]
    first, _ = made(requests, ids)
    assert token_hash(first) == token_hash(made([(7, list(range(8, 8 + len(ids))))], ids)[0])  # times do not matter
    at = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids[:at], ids[at] + 1, *ids[at + 1 :]]
    assert token_hash(made(requests, other)[0]) != token_hash(first)
    turned = ids[::-1]
    assert (token_hash(made(requests, turned)[0]) == token_hash(first)) == (turned == ids)


def test_a_hash_stays_what_it_was() -> None:
    """Runs of different days are compared by it."""
    tokens, outputs = made([(0, [1, 2]), (0, [3])], [5, 0, 255])
    assert token_hash(tokens) == "b174f517cbdba68e"
    assert token_columns(tokens, outputs, 1, None, None, is_sampled=True)[0]["token_hash"] == "b174f517cbdba68e"
    assert token_columns(tokens, outputs, 1, None, None, is_sampled=False)[0]["token_hash"] is None


@properties
@given(requests_of())
def test_the_table_has_a_row_a_token(requests: Requests) -> None:
    tokens, outputs = made(requests)
    table = token_table(tokens, outputs, is_sampled=True)
    assert set(table) == set(results.TOKENS.names) - {"run_id", "mode", "repeat"}
    rows = [(request, token) for request, (_, done) in enumerate(requests) for token in range(len(done))]
    assert list(zip(table["request"].tolist(), table["token"].tolist(), strict=True)) == rows
    assert table["arrival_ns"].tolist() == [requests[request][0] for request, _ in rows]
    assert table["done_ns"].tolist() == [requests[request][1][token] for request, token in rows]
    assert table["token_id"].to_pylist() == tokens.ids.tolist()
    nothing = token_table(dataclasses.replace(tokens, ids=np.zeros_like(tokens.ids)), outputs, is_sampled=False)
    assert nothing["token_id"].null_count == len(rows)
