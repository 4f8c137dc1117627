"""What is timed ends as it should, or is no figure."""

from __future__ import annotations

import pytest

from launchopt.errors import RunError
from runner.bench import starting


def test_a_refusal_is_timed() -> None:
    assert starting.seconds(starting.REFUSED, 2) > 0


def test_what_ends_otherwise_is_no_figure() -> None:
    with pytest.raises(RunError, match="ended with 1, not 0: "):
        starting.seconds("mode=nope", 0)
