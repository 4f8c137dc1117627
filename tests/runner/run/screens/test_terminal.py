"""Progress of a job: each command counts once, the time left, and a line every 30 seconds in a pipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.results.summary_rows import row

from runner.run.screens.pace import Pace, clock_text
from runner.run.screens.terminal import Terminal, throttled_repeats
from runner.run.watchdog import Moved


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def job(arms: int = 1, commands: int = 100) -> Any:
    return SimpleNamespace(arms=[None] * arms, stream=SimpleNamespace(commands=commands))


def test_the_time_left_is_unknown_until_a_run_is_finished_and_counts_down_within_one(clock: Clock) -> None:
    pace = Pace(2, clock)
    clock.now_s = 7.0
    assert pace.left_s(4) is None
    pace.begun()
    clock.now_s = 17.0
    pace.finished(0)
    assert pace.left_s(4) == 30.0
    clock.now_s = 21.0
    assert pace.left_s(4) == 26.0


def test_each_arm_has_its_own_pace(clock: Clock) -> None:
    pace = Pace(2, clock)
    for arm, now_s in ((0, 10.0), (1, 11.0)):
        clock.now_s = now_s
        pace.finished(arm)
    assert pace.left_s(4) == 11.0
    clock.now_s = 100.0
    assert pace.left_s(4) == 0.0


def test_the_runs_before_the_first_repeat_say_how_far_they_are(clock: Clock) -> None:
    pace = Pace(9, clock)
    assert pace.place(0) == "1 of 9"
    for arm in range(2):
        clock.now_s += 10.0
        pace.finished(arm)
    assert pace.place(2) == "3 of 9, first repeat in about 1:10"


def test_in_a_pipe_it_speaks_every_30_seconds_in_plain_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(job(), 2, "job 1 of 3", clock) as terminal:
        terminal.begun()
        for now_s in range(0, 61, 10):
            clock.now_s = float(now_s)
            terminal.progress("batched 1/2: checking outputs", Moved(100))
        terminal.finished(0)
        clock.now_s = 95.0
        terminal.progress("batched 2/2", Moved(40))
    assert capsys.readouterr().err.splitlines() == [
        "[0:30] job 1 of 3: batched 1/2: checking outputs; 0 of 2 runs, 100 of 200 commands",
        "[1:00] job 1 of 3: batched 1/2: checking outputs; 0 of 2 runs, 100 of 200 commands",
        "[1:35] job 1 of 3: batched 2/2; 1 of 2 runs, 140 of 200 commands, about 0:25 left",
    ]


def test_before_the_first_run_it_names_the_phase_without_counts(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Terminal(job(), 6, clock=clock) as terminal:
        clock.now_s = 30.0
        terminal.progress("warm-up run of baseline (1 of 2)", Moved())
    assert capsys.readouterr().err.splitlines() == ["[0:30] warm-up run of baseline (1 of 2)"]


def test_a_long_check_counts_its_commands_and_has_a_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(job(), 2, clock=clock) as terminal:
        terminal.begun()
        for now_s, checked in ((10.0, 0), (40.0, 25), (55.0, 50), (70.0, 50)):
            clock.now_s = now_s
            terminal.progress("batched 1/2: checking outputs", Moved(100, checked))
        terminal.finished(0)
        clock.now_s = 101.0
        terminal.progress("batched 2/2: checking outputs", Moved(100, 20))
    done = "0 of 2 runs, 100 of 200 commands"
    assert capsys.readouterr().err.splitlines() == [
        f"[0:40] batched 1/2: checking outputs, 25 checked; {done}, about 1:30 left of this check",
        f"[1:10] batched 1/2: checking outputs, 50 checked; {done}, about 1:00 left of this check",
        "[1:41] batched 2/2: checking outputs, 20 checked; 1 of 2 runs, 200 of 200 commands, about 0:39 left",
    ]


def test_a_short_run_says_nothing_in_a_pipe(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(job(), 1, clock=clock) as terminal:
        terminal.progress("starting", Moved())
        clock.now_s = 29.0
        terminal.progress("baseline 1/1", Moved(50))
        terminal.finished(0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "text"), [(7.2, "0:07"), (750.0, "12:30"), (3723.0, "1:02:03")])
def test_times_are_written_as_a_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


CAPPED = {"throttled": True, "throttle_reasons": "sw_power_cap"}
HOT = {"throttled": True, "throttle_reasons": "hw_thermal_slowdown, sw_power_cap"}


@pytest.mark.parametrize(
    ("given_rows", "text"),
    [
        ([{}, {}], None),
        ([{"throttled": False}, {}], None),
        ([CAPPED, {"throttled": False}, {}], "1 of 3 (sw_power_cap)"),
        ([CAPPED, HOT], "2 of 2 (sw_power_cap, hw_thermal_slowdown)"),
    ],
)
def test_throttled_repeats_are_counted_and_their_reasons_named(
    given_rows: list[dict[str, Any]], text: str | None
) -> None:
    assert throttled_repeats([row(**columns) for columns in given_rows]) == text
