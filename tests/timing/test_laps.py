"""The seconds of a run by phase."""

from __future__ import annotations

from launchopt.timing.laps import Laps


def test_phases_add_up_to_the_whole_time_however_often_they_begin() -> None:
    times = iter([10.0, 12.5, 13.0, 20.0])
    laps = Laps(lambda: next(times))
    for phase in ("set-up", "checks", "set-up"):
        laps.begin(phase)
    assert laps.seconds() == {"set-up": 9.5, "checks": 0.5}


def test_nothing_has_begun_at_first() -> None:
    assert Laps().seconds() == {}
