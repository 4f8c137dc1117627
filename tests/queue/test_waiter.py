"""How long a waiter spins and sleeps, with a fake condition and a fake clock."""

from __future__ import annotations

import time

import pytest

from launchopt.queue.waiter import Waiter

NOW_NS, SPIN_NS, SLEEP_NS = 1_000_000_000, 20_000, 50_000


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the seconds of each sleep; the clock stands still."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW_NS)
    return seconds


def spun(found: bool, until_ns: int | None = None) -> int:
    """Let a waiter spin; return the ns for which it asked to spin."""
    asked: list[int] = []

    def spin(spin_ns: int) -> bool:
        asked.append(spin_ns)
        return found

    Waiter(spin, spin_us=SPIN_NS / 1e3, sleep_us=SLEEP_NS / 1e3).wait(until_ns)
    (spin_ns,) = asked
    return spin_ns


@pytest.mark.parametrize("until_ns", [None, NOW_NS + 10 * SLEEP_NS])
def test_it_sleeps_once_where_nothing_came(until_ns: int | None, slept: list[float]) -> None:
    assert (spun(False, until_ns), slept) == (SPIN_NS, [pytest.approx(SLEEP_NS / 1e9)])


@pytest.mark.parametrize("until_ns", [None, NOW_NS + 10 * SLEEP_NS])
def test_what_comes_while_it_spins_needs_no_sleep(until_ns: int | None, slept: list[float]) -> None:
    assert (spun(True, until_ns), slept) == (SPIN_NS, [])


def test_a_deadline_within_a_sleeps_reach_is_spun_for(slept: list[float]) -> None:
    assert spun(True, NOW_NS + SPIN_NS + SLEEP_NS) == SPIN_NS + SLEEP_NS
    assert spun(True, NOW_NS + SPIN_NS + SLEEP_NS + 1) == SPIN_NS


def test_a_deadline_that_is_over_is_not_slept_for(slept: list[float]) -> None:
    assert (spun(False, NOW_NS - 1), slept) == (0, [])
