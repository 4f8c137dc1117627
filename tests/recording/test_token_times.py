"""Columns of tokens, from tokens made by hand and against the same things counted one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from launchopt.producing.production import Tokens
from launchopt.recording import results
from launchopt.recording.columns import PERCENTILES
from launchopt.recording.token_times import completed_rate, token_columns, token_hash, token_table
from launchopt.statistics.histogram import RELATIVE_ERROR

MS = 1_000_000
NEVER = 1 << 60
properties = settings(deadline=None, max_examples=80)

Requests = list[tuple[int, list[int]]]  # when each came, when each of its tokens was done; ns


def made(requests: Requests, ids: list[int] | None = None) -> tuple[Tokens, NDArray[np.int64]]:
    done_ns = np.array([done for _, of_request in requests for done in of_request], np.int64)
    arrived_ns = np.array([arrived for arrived, _ in requests], np.int64)
    outputs = np.array([len(of_request) for _, of_request in requests], np.int64)
    all_ids = np.arange(len(done_ns)) if ids is None else np.array(ids, np.int64)
    return Tokens(arrived_ns, np.zeros_like(arrived_ns), done_ns - 1, done_ns, all_ids), outputs


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


def served(gap_ns: int, service_ns: int, count: int, servers: int = 1) -> tuple[Tokens, NDArray[np.int64]]:
    """Requests of one token, evenly spaced, each `service_ns` on the first of so many servers that is free."""
    free = [0] * servers
    requests: Requests = []
    for arrived in range(0, count * gap_ns, gap_ns):
        at = min(range(servers), key=free.__getitem__)
        free[at] = max(free[at], arrived) + service_ns
        requests.append((arrived, [free[at]]))
    return made(requests)


@properties
@given(st.integers(10**3, 10**8), st.floats(0.01, 1.0), st.integers(10, 400), st.integers(1, 4))
def test_a_rate_that_is_held_is_no_overload(gap_ns: int, load: float, count: int, servers: int) -> None:
    rate, overloaded = completed_rate(*served(gap_ns, max(1, int(gap_ns * servers * load)), count, servers))
    assert not overloaded
    # Over half of `count` gaps; at either end some may be under way.
    assert abs(rate * gap_ns * 1e-9 - 1) <= (servers + 1) / (count // 2 - 1)


@properties
@given(st.integers(10**3, 10**8), st.floats(1.3, 50), st.integers(40, 400), st.integers(1, 3))
def test_a_rate_far_above_what_is_held_is_overload(gap_ns: int, load: float, count: int, servers: int) -> None:
    service_ns = int(gap_ns * servers * load)
    rate, overloaded = completed_rate(*served(gap_ns, service_ns, count, servers))
    assert overloaded
    assert abs(rate * service_ns * 1e-9 / servers - 1) <= 2 * load / (count // 2 - 1) + 0.02


def test_all_at_once_is_no_overload() -> None:
    """A closed loop: the rate is that of the whole run."""
    requests: Requests = [(0, [i * 100 * MS, i * 200 * MS]) for i in range(1, 11)]
    rate, overloaded = completed_rate(*made(requests))
    assert rate == pytest.approx(10 / 2)
    assert not overloaded


def test_one_burst_is_no_overload() -> None:
    """Whenever it came."""
    requests: Requests = [(5 * MS, [(10 + i) * MS]) for i in range(8)]
    assert completed_rate(*made(requests)) == (pytest.approx(8 / 17e-3), False)


def test_one_request_is_no_overload() -> None:
    assert completed_rate(*made([(0, [MS, 10 * MS])])) == (pytest.approx(100), False)
    assert not completed_rate(*made([(5 * MS, [6 * MS, NEVER])]))[1]


def test_a_stall_that_is_made_up_for_is_no_overload() -> None:
    """In the first half nothing was done; by the end all is."""
    requests: Requests = [(i * MS, [max(60, i + 1) * MS]) for i in range(100)]
    assert not completed_rate(*made(requests))[1]


@properties
@given(st.integers(2, 20), st.integers(6, 30), st.integers(1, 9))
def test_a_burst_that_comes_last_is_no_overload(size: int, bursts: int, load_tenths: int) -> None:
    """Each is done before the next comes; after the last none does."""
    gap_ns = 100 * MS
    service_ns = gap_ns * load_tenths // 10 // size
    requests: Requests = [
        (burst * gap_ns, [burst * gap_ns + (i + 1) * service_ns]) for burst in range(bursts) for i in range(size)
    ]
    rate, overloaded = completed_rate(*made(requests))
    assert not overloaded
    assert rate == pytest.approx(size / (gap_ns * 1e-9), rel=2 / (bursts - 1))


@properties
@given(st.integers(2, 20), st.integers(10, 30), st.floats(1.5, 20))
def test_bursts_that_pile_up_are_overload(size: int, bursts: int, load: float) -> None:
    service_ns = int(100 * MS * load / size)
    requests: Requests = [
        (burst * 100 * MS, [(burst * size + i + 1) * service_ns]) for burst in range(bursts) for i in range(size)
    ]
    assert completed_rate(*made(requests))[1]


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
