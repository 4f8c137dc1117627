"""What a strategy costs and after how much work that is paid back: as properties, and rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from launchopt.analysis.tables.strategies import Payback, StrategyLine, StrategyTable, break_even, build_strategies
from launchopt.errors import DataError
from launchopt.recording.results import SUMMARY, Row
from launchopt.statistics.interval import Verdict

costs_ms = st.floats(0, 1e6)
times_ms = st.floats(1e-6, 10.0)


def row(mode: str = "baseline", repeat: int = 0, **columns: Any) -> Row:
    """A row of gemv_256, plausible where a test does not care."""
    assert not columns.keys() - set(SUMMARY.names)
    plausible = {
        **{"run_id": "run", "workload": "gemv_256", "device": "cuda", "gpu": "NVIDIA H200", "dtype": "fp32"},
        **{"commands": 1000, "cache": "cold", "arrival": "closed", "shapes": "256x1x256", "requests": 1000},
        **{"ordering": "per_request", "max_batch": 512, "timeout_us": 150.0, "wall_ms": 10.0, "setup_ms": 5.0},
        **{"traced": False, "interleaved": True, "verified": True, "status": "ok"},
    }
    return {**dict.fromkeys(SUMMARY.names), **plausible, "mode": mode, "repeat": repeat, **columns}


def repeats(mode: str, *wall_ms: float, **columns: Any) -> list[Row]:
    return [row(mode, at, wall_ms=wall, **columns) for at, wall in enumerate(wall_ms)]


def only(rows: list[Row], **refused: Any) -> StrategyTable:
    (table,) = build_strategies(rows, refused)
    return table


def strategy(rows: list[Row], mode: str) -> StrategyLine:
    (found,) = [each for each in only(rows).strategies if each.line["mode"] == mode]
    return found


@given(costs_ms, times_ms, costs_ms, times_ms)
@example(5e-324, 1.0, 0.0, 3.0)
def test_from_the_break_even_on_the_remedy_is_ahead(cost: float, time: float, base_cost: float, base: float) -> None:
    """Each side of the answer is costed out; close to it only rounding decides."""
    assume(abs(base - time) > 1e-9)
    found = break_even(cost - base_cost, base - time)
    if found is Payback.NEVER:
        assert time >= base
    elif found is Payback.AT_ONCE:
        assert cost <= base_cost
        assert time < base
    else:
        assert isinstance(found, int)
        assert found >= 1
        slack = 1e-6 * (cost + base_cost + found * (time + base))
        assert cost + found * time <= base_cost + found * base + slack
        assert cost + (found - 1) * time >= base_cost + (found - 1) * base - slack


@given(costs_ms, times_ms, st.sampled_from(list(Verdict)))
def test_what_may_be_noise_pays_nothing_back(extra_ms: float, saved_ms: float, verdict: Verdict) -> None:
    found = break_even(extra_ms, saved_ms, verdict)
    assert (found is Payback.NEVER) == (verdict in (Verdict.SLOWER, Verdict.SAME))
    assert (found is Payback.UNDECIDED) == (verdict is Verdict.UNDECIDED)
    slower = break_even(extra_ms, -saved_ms, verdict)
    assert slower is (Payback.UNDECIDED if verdict is Verdict.UNDECIDED else Payback.NEVER)


def test_break_even_of_rows() -> None:
    base = repeats("baseline", 10.0, 10.1, 9.9, 10.0, 10.0)
    # 10 us a command of the baseline, 4 us of the graph: 12 ms more at first are 2,000 commands, which take it 8 ms.
    graph = repeats("graph", *[4.0] * 5, setup_ms=17.0)
    found = strategy([*base, *graph], "graph")
    assert found.break_even == 2000
    assert found.break_even_ms == pytest.approx(8.0)
    tuned = repeats("graph", *[4.0] * 5, setup_ms=117.0, tuning_ms=100.0)
    assert strategy([*base, *tuned], "graph").break_even == found.break_even
    at_once = strategy([*base, *repeats("batched", *[4.0] * 5, setup_ms=5.0)], "batched")
    assert (at_once.break_even, at_once.break_even_ms) == (Payback.AT_ONCE, None)
    assert (
        strategy([*base, *repeats("graph", 11.0, 11.1, 11.2, 11.1, 11.0, setup_ms=1.0)], "graph").break_even
        is Payback.NEVER
    )
    noisy = strategy([*base, *repeats("graph", 9.9, 12.0, 7.0, 10.0, 9.0, setup_ms=17.0)], "graph")
    assert noisy.break_even is Payback.UNDECIDED
    assert strategy([*base[:4], *graph[:4]], "graph").break_even is Payback.UNDECIDED, "four repeats prove no saving"


def test_an_open_loop_that_kept_up_saves_no_wall_time_that_could_repay_anything() -> None:
    """Latency decides; the wall times follow the arrivals, here in favour of either side."""
    open_ = {"arrival": "poisson", "arrival_rate_per_s": 100.0, "overloaded": False}
    base = repeats("baseline", 10.0, 10.1, 9.9, 10.0, 10.0, latency_p50_us=60.0, **open_)
    for wall_ms in (9.0, 11.0):
        graph = repeats("graph", *[wall_ms] * 5, setup_ms=17.0, latency_p50_us=30.0, **open_)
        found = strategy([*base, *graph], "graph")
        assert found.line.verdict is Verdict.FASTER
        assert (found.break_even, found.break_even_ms) == (None, None)
    late = {**open_, "overloaded": True}
    rows = [*repeats("baseline", *[10.0] * 5, **late), *repeats("graph", *[4.0] * 5, setup_ms=17.0, **late)]
    assert strategy(rows, "graph").break_even == 2000, "overloaded: wall time decides"


@pytest.mark.parametrize(
    "bad", [{"setup_ms": None}, {"wall_ms": None}, {"verified": False}, {"status": "launch failed"}]
)
def test_what_is_not_known_or_not_sound_has_no_break_even(bad: dict[str, Any]) -> None:
    good, other = repeats("baseline", 10.0, 10.0, 10.0), repeats("graph", 4.0, 4.0, 4.0)
    assert strategy([*good, *({**each, **bad} for each in other)], "graph").break_even is None
    assert strategy([*({**each, **bad} for each in good), *other], "graph").break_even is None
    assert strategy([*good, *other], "baseline").break_even is None
    assert strategy(other, "graph").break_even is None


def test_kernels_come_from_a_traced_run_of_the_same_work_and_mode_and_times_do_not() -> None:
    rows = [*repeats("baseline", *[10.0] * 5), *repeats("graph", *[4.0] * 5)]
    trace = {"traced": True, "run_id": "traced", "kernels": 1000, "gpu_busy_ms": 3.5, "wall_ms": 99.0}
    found = strategy([*rows, row("graph", **trace)], "graph")
    assert (found.kernels, found.busy_ms, found.line.median("wall_ms")) == (1000, 3.5, 4.0)
    assert found.break_even is Payback.AT_ONCE
    assert strategy([*rows, row("graph", **trace)], "baseline").kernels is None
    for other in (
        {"commands": 999},
        {"dtype": "fp16"},
        {"max_batch": 64},
        {"ordering": "none"},
        {"status": "failed"},
        {"kernels": None},
    ):
        tables = build_strategies([*rows, row("graph", **{**trace, **other})])
        assert [each.kernels for table in tables for each in table.strategies] == [None, None]


def test_traced_rows_alone_are_no_table() -> None:
    assert build_strategies([row(traced=True)]) == []


def test_the_baseline_comes_first_then_the_fastest_and_the_failed_last() -> None:
    modes = [("slow", 9.0, "ok"), ("broken", 1.0, "wrong"), ("baseline", 10.0, "ok"), ("quick", 2.0, "ok")]
    table = only([row(mode, wall_ms=wall_ms, status=status) for mode, wall_ms, status in modes])
    assert [each.line["mode"] for each in table.strategies] == ["baseline", "quick", "slow", "broken"]


def test_refusals_are_those_of_the_runs_of_a_table() -> None:
    rows = [row(), row(workload="decode", run_id="other"), row("graph", run_id="again")]
    refusals = {
        "run": {"grouped": "one shape", "graph": "no room"},
        "other": {"pdl": "GEMVs only"},
        "absent": {"torch_eager": "not installed"},
    }
    gemv, decode = build_strategies(rows, refusals)
    assert gemv.refused == {"grouped": "one shape"}, "graph ran in another run of the same work"
    assert decode.refused == {"pdl": "GEMVs only"}


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((2100.0, 4200.0, 1.0, 100.0), (0.5, "memory")),
        ((2100.0, 4200.0, 90.0, 100.0), (0.9, "compute")),
        ((None, None, 90.0, 100.0), (0.9, "compute")),
        ((2100.0, 4200.0, 0.0, 100.0), (0.5, "memory")),
        ((None, None, None, None), None),
    ],
)
def test_the_share_of_the_roofline_is_the_larger_one(
    rates: tuple[float | None, ...], expected: tuple[float, str] | None
) -> None:
    names = ("achieved_gb_per_s", "copy_gb_per_s", "achieved_tflops", "peak_tflops")
    (found,) = only([row(**dict(zip(names, rates, strict=True)))]).strategies
    assert found.roofline == expected


def test_two_different_rows_for_one_repeat_are_an_error() -> None:
    with pytest.raises(DataError, match="two different rows for graph, repeat 0"):
        build_strategies([row("graph", wall_ms=1.0), row("graph", wall_ms=2.0)])
