"""Which points are on the frontier and which one is recommended: as properties, and rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.frontier.markdown import frontier_grid, frontier_markdown
from launchopt.analysis.frontier.points import Bounds, Point, build_frontiers, pareto, recommend
from launchopt.errors import DataError
from launchopt.recording.results import SUMMARY, Row
from launchopt.statistics.histogram import LogHistogram

POINT = Point("batched", 64, 150.0, 3, None, False, 1000.0, 100.0)
# Few values, so that ties are common.
points = st.lists(
    st.builds(
        lambda throughput, p99, problem, overloaded: replace(
            POINT, throughput_per_s=throughput, p99_us=p99, problem=problem, overloaded=overloaded
        ),
        st.sampled_from([10.0, 98.0, 99.0, 100.0, 500.0]),
        st.sampled_from([1.0, 2.0, 5.0, 50.0]),
        st.sampled_from([None, None, None, "failed"]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=12,
)


def point(throughput_per_s: float, p99_us: float, **others: Any) -> Point:
    return replace(POINT, throughput_per_s=throughput_per_s, p99_us=p99_us, **others)


def dominates(one: Point, other: Point) -> bool:
    """Written out once more, so that a slip in `Point.beats` shows."""
    assert one.throughput_per_s is not None
    assert other.throughput_per_s is not None
    assert one.p99_us is not None
    assert other.p99_us is not None
    no_worse = one.throughput_per_s >= other.throughput_per_s and one.p99_us <= other.p99_us
    return no_worse and (one.throughput_per_s > other.throughput_per_s or one.p99_us < other.p99_us)


@given(points)
def test_nothing_beats_what_is_on_the_frontier_and_something_on_it_beats_all_else(points: list[Point]) -> None:
    frontier = pareto(points)
    for candidate in points:
        if not candidate.claims:
            assert candidate not in frontier
        elif candidate in frontier:
            assert not any(dominates(other, candidate) for other in points if other.claims)
        else:
            assert any(dominates(other, candidate) for other in frontier)
    assert bool(frontier) == any(candidate.claims for candidate in points)


@given(points, st.sampled_from([0.5, 1.0, 5.0, 100.0]), st.booleans())
def test_what_is_recommended_keeps_the_objective_and_is_on_the_frontier(
    points: list[Point], slo_p99_us: float, open_loop: bool
) -> None:
    chosen = recommend(points, slo_p99_us, open_loop=open_loop)
    within = [p for p in points if p.claims and p.p99_us is not None and p.p99_us <= slo_p99_us]
    assert (chosen is None) == (not within)
    if chosen is None:
        return
    assert chosen in within
    assert chosen in pareto(points)
    highest = max(p.throughput_per_s or 0.0 for p in within)
    assert (chosen.throughput_per_s or 0.0) >= (0.98 * highest if open_loop else highest)


def test_in_an_open_loop_two_percent_of_throughput_are_no_difference() -> None:
    fast, quick, slow = point(1000, 300), point(981, 100), point(979, 50)
    assert recommend([fast, quick, slow], 500, open_loop=True) == quick
    assert recommend([fast, quick, slow], 500, open_loop=False) == fast
    assert recommend([fast, quick, slow], 99, open_loop=True) == slow
    assert recommend([fast, point(1000, 200)], 500, open_loop=False) == point(1000, 200)


def row(**columns: Any) -> Row:
    plausible = {
        **{"run_id": "run", "repeat": 0, "mode": "batched", "workload": "decode", "dtype": "fp32", "device": "cpu"},
        **{"ordering": "per_request", "arrival": "closed", "shapes": "64x1x64", "requests": 4, "commands": 100},
        **{"cache": "cold", "max_batch": 64, "timeout_us": 150.0, "traced": False, "verified": True, "status": "ok"},
        **{"commands_per_s": 1000.0, "latency_p99_us": 100.0, "batch_size_mean": 8.0, "flush_full": 3},
    }
    assert not columns.keys() - set(SUMMARY.names)
    return {**dict.fromkeys(SUMMARY.names), **plausible, **columns}


def histogram_rows(values_ns: list[int], what: str = "latency", **columns: Any) -> list[Row]:
    histogram = LogHistogram()
    histogram.add(np.array(values_ns, np.int64))
    key = {"run_id": "run", "mode": "batched", "repeat": 0, "what": what, **columns}
    return [{**key, "low": low, "high": high, "count": count} for low, high, count in histogram.rows()]


@pytest.mark.parametrize("bad", [{"status": "launch failed"}, {"verified": False}, {"verified": None}])
def test_a_point_with_one_bad_repeat_claims_nothing_and_is_listed(bad: dict[str, Any]) -> None:
    best = {"mode": "graph", "commands_per_s": 9e9, "latency_p99_us": 1.0}
    (frontier,) = build_frontiers([row(), row(**best), row(repeat=1, **{**best, **bad})], slo_p99_us=100)
    good, failed = frontier.points
    assert (failed.mode, failed.repeats, failed.claims) == ("graph", 2, False)
    assert frontier.frontier == [good]
    assert frontier.recommended == good
    assert f"FAILED: {failed.problem}" in frontier_markdown([frontier], "full")
    assert "2 points tried: 1 on the frontier (1 of one repeat), 0 overloaded, 1 failed" in frontier_markdown(
        [frontier], "compact"
    )


def test_points_of_one_repeat_are_counted_apart() -> None:
    twice = [row(repeat=i, mode="graph", commands_per_s=2000.0, latency_p99_us=200.0) for i in (0, 1)]
    (frontier,) = build_frontiers([row(), *twice], slo_p99_us=150)
    text = frontier_markdown([frontier], "compact")
    assert "2 points tried: 2 on the frontier (1 of one repeat), 0 overloaded" in text
    assert "p99 100.0 us, of one repeat." in text


def test_a_point_without_latency_or_with_an_overload_claims_nothing() -> None:
    rows = [row(mode="a", latency_p99_us=None), row(mode="b", overloaded=True), row(mode="b", repeat=1)]
    (frontier,) = build_frontiers(rows, slo_p99_us=1e9)
    assert [point.problem for point in frontier.points] == ["no latency measured", None]
    assert [point.overloaded for point in frontier.points] == [False, True]
    assert (frontier.frontier, frontier.recommended, frontier.closest) == ([], None, None)
    assert "It is overloaded. Lower arrival.rate_per_s." in frontier_markdown([frontier], "compact")


def test_overloaded_points_say_what_was_asked_what_was_done_and_what_to_lower() -> None:
    late = {"arrival": "poisson", "arrival_rate_per_s": 20_000.0, "overloaded": True}
    rows = [row(max_batch=size, completed_rate_per_s=done, **late) for size, done in ((8, 1950.0), (64, 2000.0))]
    (frontier,) = build_frontiers(rows, slo_p99_us=5000)
    said = "No point meets 5,000 us. Both are overloaded: 20,000/s asked, about 2,000/s done. Lower arrival.rate_per_s."
    assert said in frontier_markdown([frontier], "compact")
    (burst,) = build_frontiers([row(completed_rate_per_s=21_000.0, **late)], slo_p99_us=5000)
    assert "It is overloaded. Lower" in frontier_markdown([burst], "compact"), (
        "done faster than asked: no rate explains it"
    )


def test_a_point_of_one_repeat_is_named_so_and_not_called_on_the_frontier() -> None:
    (alone,) = build_frontiers([row()])
    assert frontier_grid(alone, "full")[1][0][-1] == "one repeat"
    (several,) = build_frontiers([row(), row(repeat=1)], slo_p99_us=1e9)
    assert frontier_grid(several, "full")[1][0][-1] == "yes, recommended"


def test_where_no_point_keeps_the_objective_the_closest_is_named() -> None:
    rows = [row(latency_p99_us=100.0), row(max_batch=8, latency_p99_us=70.0, commands_per_s=10.0)]
    (frontier,) = build_frontiers(rows, slo_p99_us=50)
    assert frontier.recommended is None
    assert frontier.closest == frontier.points[0] == frontier.frontier[0]
    assert "No point meets 50 us. Closest: batched, max_batch / timeout 8 / 150 us" in frontier_markdown(
        [frontier], "compact"
    )
    (unasked,) = build_frontiers(rows)
    assert (unasked.recommended, unasked.closest) == (None, None)


def test_numbers_are_medians_and_shares_are_of_all_flushes() -> None:
    values = ((900.0, 10.0, 1), (1000.0, 30.0, 5), (1300.0, 20.0, 0))
    rows = [
        row(repeat=at, commands_per_s=rate, latency_p99_us=p99, flush_full=full, flush_deadline=2)
        for at, (rate, p99, full) in enumerate(values)
    ]
    (frontier,) = build_frontiers(rows)
    (only,) = frontier.points
    assert (only.repeats, only.throughput_per_s, only.p99_us, only.batch_size_mean) == (3, 1000.0, 20.0, 8.0)
    assert only.flush_shares == {"full": 0.5, "deadline": 0.5, "idle": 0, "stall": 0, "drain": 0}
    assert (only.batch_size_p50, only.batch_size_p99) == (None, None)


def test_the_p99_is_the_median_of_the_repeats_and_within_its_own_bounds() -> None:
    rows = [row(repeat=at, latency_p99_us=us) for at, us in enumerate([400.0, 5.0, 6.0, 7.0, 1.0])]
    latencies = [each for at in range(5) for each in histogram_rows([400_000] * 10, repeat=at)]
    sizes = histogram_rows([8] * 99 + [64] * 99, "batch_size")
    sizes += [each for at in range(1, 5) for each in histogram_rows([8], "batch_size", repeat=at)]
    (frontier,) = build_frontiers(rows, [*latencies, *sizes])
    (only,) = frontier.points
    assert only.p99_us == 6.0
    assert only.p99_bounds == Bounds(1.0, 400.0, is_interval=True)
    assert (only.batch_size_p50, only.batch_size_p99) == (8, 64)
    (partly,) = build_frontiers(rows, histogram_rows([8], "batch_size"))
    assert partly.points[0].batch_size_p50 is None


def test_a_folder_given_twice_changes_nothing_and_a_name_used_twice_has_no_histogram() -> None:
    buckets = [*histogram_rows([8] * 99, "batch_size"), *histogram_rows([9], "batch_size")]
    (once,), (twice,) = build_frontiers([row()], buckets), build_frontiers([row(), row()], buckets * 2)
    assert once == twice
    assert once.points[0].batch_size_p50 == 8
    two_machines = build_frontiers([row(), row(device="cuda", gpu="NVIDIA H200")], buckets)
    assert [frontier.points[0].batch_size_p50 for frontier in two_machines] == [None, None]
    with pytest.raises(DataError, match="two different rows"):
        build_frontiers([row(), row(commands_per_s=1.0)])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("workload", "prefill"), ("model", "qwen3_8b"), ("dtype", "fp16"), ("gpu", "NVIDIA H200"), ("layers", 2)),
        *(("arrival", "poisson"), ("arrival_rate_per_s", 10.0), ("ordering", "none"), ("ordering", "violated")),
        *(("scheduler", "continuous"), ("sampling", "greedy"), ("sampling_where", "gpu"), ("requests", 9)),
    ],
)
def test_other_streams_are_other_frontiers(column: str, value: object) -> None:
    assert len(build_frontiers([row(), row(run_id="other", **{column: value})])) == 2


def test_order_does_not_part_what_is_independent_and_traced_runs_are_left_out() -> None:
    gemv = [row(workload="gemv_micro", ordering=ordering, mode=ordering) for ordering in ("none", "per_request")]
    (frontier,) = build_frontiers([*gemv, row(workload="gemv_micro", mode="x", traced=True)])
    assert len(frontier.points) == 2


def test_throughput_is_in_tokens_where_there_are_any() -> None:
    rows = [row(tokens=5, tokens_per_s=77.0), row(mode="baseline", tokens=5, tokens_per_s=70.0)]
    (frontier,) = build_frontiers(rows, slo_p99_us=100)
    assert [point.throughput_per_s for point in frontier.points] == [70.0, 77.0]
    assert "77 tokens/s, p99 100.0 us" in frontier_markdown([frontier], "compact")


@pytest.mark.parametrize(("repeats", "is_interval"), [(1, None), (3, False), (5, True)])
def test_a_point_has_an_interval_from_five_repeats_on_and_below_that_the_spread(
    repeats: int, is_interval: bool | None
) -> None:
    rows = [row(repeat=i, commands_per_s=1000.0 + i, latency_p99_us=50.0 + i) for i in range(repeats)]
    (point,) = build_frontiers(rows)[0].points
    assert (point.throughput_bounds and point.throughput_bounds.is_interval) is is_interval
    text = frontier_markdown(build_frontiers(rows), "full")
    assert ("1,001 (1,000 to 1,002)" in text) is (is_interval is False)
    assert ("1,002 [1,000, 1,004]" in text) is (is_interval is True)


def test_a_map_is_of_modes_with_several_settings_and_batches() -> None:
    rows = [
        row(mode=mode, max_batch=size, batch_size_mean=mean)
        for mode, mean in (("baseline", 1.0), ("batched", 7.5))
        for size in (8, 64)
    ]
    (found,) = build_frontiers([*rows, row(mode="graph", max_batch=64, batch_size_mean=9.0)])
    assert found.mapped_modes == ["batched"]
