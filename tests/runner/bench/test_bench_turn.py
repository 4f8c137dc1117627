"""What is measured of a token's turn is the run's own loops: every step leaves as one batch, after its tokens."""

from __future__ import annotations

import pytest

from runner.bench import turn


@pytest.mark.parametrize("requests", [1, 3])
def test_each_turn_takes_some_time(requests: int) -> None:
    assert 0 < turn.turn_us(requests, turns=20) < 1e6


def test_a_step_has_as_many_commands_as_is_said() -> None:
    assert turn.stream_of(3, 20).kind_stops[-1] == turn.ROWS
