"""Processes that are timed end as they should, or are no figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchopt.errors import RunError
from launchopt.files import read_json
from runner.bench import pipeline


def test_a_refusal_is_timed() -> None:
    assert pipeline.seconds([pipeline.REFUSED, "device=cpu"], exit_code=2) > 0


def test_what_ends_otherwise_is_no_figure() -> None:
    with pytest.raises(RunError, match="runner mode=nope: exit 2: "):
        pipeline.seconds(["mode=nope"])


def test_a_rate_has_the_repeats_of_its_mode_and_no_others(tmp_path: Path) -> None:
    rates = next(pipeline.rate(tmp_path, pipeline.Rate("gemv_256", "fp32", 2_000, 1.0), 2, "cpu"))
    assert len(rates.samples) == 2
    (manifest,) = tmp_path.rglob("manifest.json")
    assert {run["mode"] for run in read_json(manifest)["runs"]} == {"batched"}
