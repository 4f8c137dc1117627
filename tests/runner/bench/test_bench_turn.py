"""What is measured of a token's turn is the run's own loops: every step leaves as one batch, after its tokens."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from launchopt.errors import Interrupted, RunError
from launchopt.producing.driver import Driver
from launchopt.producing.production import Schedule
from launchopt.queue.ring import Ring
from runner.bench import turn

PATIENCE_S = 30.0  # after which a driver that still runs would never end


@pytest.mark.parametrize("requests", [1, 3])
def test_each_turn_takes_some_time(requests: int) -> None:
    assert 0 < turn.turn_us(requests, turns=20) < 1e6


def test_a_step_has_as_many_commands_as_is_said() -> None:
    assert turn.stream_of(3, 20).kind_stops[-1] == turn.ROWS


def test_a_step_that_was_not_expected_ends_the_driver_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for tokens that nobody tells of. Here the second step is taken for one like the first."""
    monkeypatch.setattr(turn, "UNLIKE", 1)
    driver = Driver(turn.stream_of(1, 20), Schedule(ahead=True), turn.SPIN_US, 0.0)
    stopped: list[Interrupted] = []
    with ExitStack() as stack:
        there, back, out = (stack.enter_context(Ring.create(turn.CAPACITY)) for _ in range(3))

        def drive() -> None:
            try:
                driver.run(there, back)
            except Interrupted as error:
                stopped.append(error)

        thread = threading.Thread(target=drive, daemon=True)
        thread.start()
        try:
            with pytest.raises(RunError, match="step 1 was not the one that a launch waited for"):
                turn.consume(there.name, back.name, out.name, 1, 20)
            thread.join(PATIENCE_S)
            assert len(stopped) == 1, "still running, or at its end"
        finally:
            there.stop()
            thread.join(PATIENCE_S)
