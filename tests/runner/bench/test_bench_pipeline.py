"""Processes that are timed end as they should, or are no figures."""

from __future__ import annotations

import pytest

from launchopt.errors import RunError
from runner.bench import pipeline


def test_a_refusal_is_timed() -> None:
    assert pipeline.seconds([pipeline.REFUSED, "device=cpu"], exit_code=2) > 0


def test_what_ends_otherwise_is_no_figure() -> None:
    with pytest.raises(RunError, match="runner mode=nope: exit 2: "):
        pipeline.seconds(["mode=nope"])
