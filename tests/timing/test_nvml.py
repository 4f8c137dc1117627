"""Clocks, throttle reasons and energy of a run, with a stand-in for NVML whose board draws what the test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.composing import planned
from support.cuda.fake_nvml import MS, UUID, Board, Clock, installed

from launchopt.errors import DeviceError
from launchopt.recording import results
from launchopt.timing import nvml
from launchopt.timing.nvml import Look, Readings
from runner.run import run as run_module

COLUMNS = (
    *("sm_clock_mhz", "sm_clock_min_mhz", "throttled", "throttle_reasons"),
    *("energy_mj_per_command", "power_w"),
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(nvml, "time", clock)
    return clock


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Board:
    return installed(monkeypatch, Board(clock.monotonic_ns))


def watched(clock: Clock, run_ms: float, each: Callable[[], None] = lambda: None) -> Readings:
    """Return the readings of a run of `run_ms`. The parent calls `each` before every reading."""
    watch = nvml.open_watch(UUID)
    watch.learn()
    watch.begin()
    end_ns = clock.ns + int(run_ms * MS)
    while clock.ns < end_ns:
        clock.sleep(min(watch.pause_s() + 1e-6, (end_ns - clock.ns) * 1e-9 + 1e-9))
        each()
        watch.look()
    return watch.end()


def look(start_ns: int = 0, clock_mhz: int | None = 1980, reasons: int | None = 0) -> Look:
    return Look(start_ns, start_ns + MS, clock_mhz, 400.0, reasons)


def readings(*looks: Look, energy_mj: int | None = 1_600_000, window_ms: float = 4000, step_ms: int = 20) -> Readings:
    return Readings(looks, energy_mj, int(window_ms * MS), step_ms * MS)


@pytest.mark.parametrize(("bit", "name"), nvml.REASONS.items())
def test_reasons_are_those_of_nvml(bit: int, name: str) -> None:
    constant = "".join(part.capitalize() for part in name.split("_"))
    assert getattr(pynvml, f"nvmlClocksEventReason{constant}") == bit


@given(st.sets(st.sampled_from([*nvml.REASONS, 0x200, 0x400])))
def test_every_reason_that_was_given_is_named_once(bits: set[int]) -> None:
    names = nvml.reason_names(sum(bits))
    assert len(set(names)) == len(names) == len(bits)
    assert set(names) - {"0x200", "0x400"} <= set(nvml.REASONS.values())


def test_columns_of_a_run() -> None:
    seen = readings(look(clock_mhz=1980), look(clock_mhz=1200, reasons=0x4), look(clock_mhz=1900, reasons=0x24))
    assert seen.columns(1_000_000, 4000 * MS) == {
        "sm_clock_mhz": 1900.0,
        "sm_clock_min_mhz": 1200.0,
        "throttled": True,
        "throttle_reasons": "sw_power_cap, sw_thermal_slowdown",
        "energy_mj_per_command": 1.6,
        "power_w": 400.0,
    }
    assert set(seen.columns(1, 1)) == set(COLUMNS) <= set(results.SUMMARY.names)


@pytest.mark.parametrize(
    ("bits", "throttled", "named"),
    [
        (None, None, None),
        (0, False, None),
        (0x1, False, None),
        (0x3, False, None),
        (0x7, True, "sw_power_cap"),
        (0x10, True, "sync_boost"),
        (0x200, True, "0x200"),
    ],
)
def test_idling_and_the_clocks_asked_for_are_no_throttling(
    bits: int | None, throttled: bool | None, named: str | None
) -> None:
    columns = readings(look(reasons=bits)).columns(1, 4000 * MS)
    assert (columns["throttled"], columns["throttle_reasons"]) == (throttled, named)


def test_looks_outside_the_timed_part_do_not_count() -> None:
    seen = readings(*(look(start_ns=start_ns, clock_mhz=start_ns // MS) for start_ns in range(0, 100 * MS, 10 * MS)))
    inside = seen.within(20 * MS, 51 * MS)  # a look takes 1 ms: 20, 30, 40 and 50 are whole
    assert [kept.sm_clock_mhz for kept in inside.looks] == [20, 30, 40, 50]
    assert [kept.sm_clock_mhz for kept in seen.within(21 * MS, 50 * MS).looks] == [30, 40]
    assert inside.energy_mj == seen.energy_mj


@pytest.mark.parametrize(
    ("seen", "wall_ms", "why"),
    [
        (readings(energy_mj=None), 4000, "NVML gave no energy"),
        (replace(readings(), step_ns=None), 4000, "changed fewer than 3 times"),
        (readings(window_ms=399), 399, "moves every 20 ms: needs a run of 400 ms"),
        (readings(window_ms=1999, step_ms=100), 1999, "needs a run of 2000 ms"),
        (readings(), 3760, "the run was 94% of"),
    ],
)
def test_no_energy_rather_than_a_wrong_one(seen: Readings, wall_ms: float, why: str) -> None:
    columns = seen.columns(10, wall_ms * MS)
    assert (columns["energy_mj_per_command"], columns["power_w"]) == (None, None)
    assert why in seen.about(wall_ms * MS)["no_energy"]


def test_energy_of_a_run_that_is_just_long_enough() -> None:
    assert readings(window_ms=400).no_energy(380 * MS) is None


@given(st.integers(1, 100 * MS), st.integers(1, 120), st.integers(0, 200), st.floats(1, 5000), st.integers(50, 1000))
def test_a_figure_for_energy_is_within_5_percent(
    phase_ns: int, step_ms: int, start_ms: int, run_ms: float, power_w: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock()
        clock.ns += start_ms * MS
        monkeypatch.setattr(nvml, "time", clock)
        board = installed(monkeypatch, Board(clock.monotonic_ns))
        board.step_ns, board.phase_ns, board.power_w = step_ms * MS, phase_ns, float(power_w)
        seen = watched(clock, run_ms)
        power = seen.columns(1, seen.window_ns)["power_w"]
        assert (power is None) == (seen.window_ns < nvml.LEAST_STEPS * max(seen.step_ns or 0, 20 * MS))
        if power is not None:
            assert power == pytest.approx(power_w, rel=0.05)


def test_a_look_every_tenth_of_a_second_while_a_run_is_on(board: Board, clock: Clock) -> None:
    seen = watched(clock, 1000)
    starts_ms = [each.start_ns / MS for each in seen.looks]
    gaps = [later - earlier for earlier, later in pairwise(starts_ms)]
    assert len(seen.looks) == 10
    assert gaps == pytest.approx([100] * 9, abs=0.1)
    assert seen.window_ns == pytest.approx(1000 * MS, rel=1e-3)
    assert seen.looks[0] == replace(seen.looks[0], sm_clock_mhz=1980, power_w=400.0, reasons=0)


def test_a_short_run_has_no_looks(board: Board, clock: Clock) -> None:
    columns = watched(clock, 19).columns(5, 19 * MS)
    assert columns == dict.fromkeys(COLUMNS)


def test_nothing_is_read_between_runs(board: Board, clock: Clock) -> None:
    watch = nvml.open_watch(UUID)
    clock.sleep(60)
    watch.look()
    watch.begin()
    watch.look()
    assert watch.end().looks == ()
    assert watch.pause_s() == nvml.LOOK_S


def test_a_run_knows_nothing_of_the_one_before(board: Board, clock: Clock) -> None:
    watch = nvml.open_watch(UUID)
    for _ in range(2):
        watch.begin()
        clock.sleep(0.05)
        watch.look()
        assert len(watch.end().looks) == 1


@pytest.mark.parametrize(
    ("silent", "columns"),
    [
        ("clock_mhz", ("sm_clock_mhz", "sm_clock_min_mhz")),
        ("power_w", ("energy_mj_per_command", "power_w")),
        ("reasons", ("throttled", "throttle_reasons")),
    ],
)
def test_what_nvml_does_not_tell_is_null_and_the_rest_is_not(
    silent: str, columns: tuple[str, ...], board: Board, clock: Clock
) -> None:
    board.reasons = 0x4
    setattr(board, silent, None)
    seen = watched(clock, 1000)
    row = seen.columns(1, seen.window_ns)
    assert {name for name, value in row.items() if value is None} == set(columns)
    json.dumps(seen.about(seen.window_ns))


def test_an_older_driver_names_the_reasons_otherwise(board: Board, clock: Clock) -> None:
    board.reasons, board.old_reasons = None, 0x8
    assert watched(clock, 200).columns(1, 1)["throttle_reasons"] == "hw_slowdown"


def test_a_counter_that_goes_back_gives_nothing(board: Board, clock: Clock) -> None:
    def reset() -> None:
        board.phase_ns = clock.ns

    seen = watched(clock, 1000, reset)
    assert seen.energy_mj is None
    assert "went back" in seen.about(seen.window_ns)["no_energy"]


def test_a_counter_that_stands_still_gives_nothing(board: Board, clock: Clock) -> None:
    board.step_ns = 10_000 * MS
    seen = watched(clock, 60_000)
    assert seen.step_ns is None
    assert seen.columns(1, seen.window_ns)["power_w"] is None


def test_the_counter_is_watched_once(board: Board, clock: Clock) -> None:
    first_ns = clock.ns
    nvml.open_watch(UUID).learn()
    again_ns = clock.ns
    nvml.open_watch(UUID).learn()
    assert again_ns - first_ns == pytest.approx(500 * MS, rel=0.01)
    assert clock.ns == again_ns


@pytest.mark.parametrize("broken", [{"answers": False}, {"uuid": bytes(16)}])
def test_without_nvml_there_is_a_notice_and_no_failure(
    broken: dict[str, Any], board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.answers = broken.get("answers", True)
    uuid = broken.get("uuid", UUID)
    monkeypatch.setattr(run_module, "uuid_of", lambda index: uuid)
    with pytest.raises(DeviceError, match=r"^NVML: Not Supported: no clocks, throttle reasons or energy$"):
        nvml.open_watch(uuid)
    plan, notices = planned(), []
    on_gpu = replace(plan, info=replace(plan.info, kind="cuda"))
    assert run_module._watch(on_gpu, notices) is None
    assert notices == ["NVML: Not Supported: no clocks, throttle reasons or energy"]
