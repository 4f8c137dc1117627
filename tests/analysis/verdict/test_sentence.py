"""The words of a verdict: which line they are about, and what they advise."""

from __future__ import annotations

from typing import Any

import pytest
from support.results.diagnosed_rows import EXPERTS, few, only, repeats

from launchopt.analysis.verdict.markdown import diagnosis_evidence


def test_a_verdict_on_two_runs_says_which_it_describes() -> None:
    rows = [
        *repeats("baseline", 100.0, 101.0, 99.0, run_id="monday"),
        *few("batched", 6.1, 6.2, 6.0, run_id="monday"),
        *repeats("baseline", 110.0, 111.0, 109.0, run_id="tuesday"),
        *few("batched", 5.1, 5.2, 5.0, run_id="tuesday"),
    ]
    found = only(rows)
    assert found.sentence.startswith("baseline (run monday) is launch-bound")
    assert "Try batched (run tuesday) first: " in found.sentence
    told = {fact.partition(":")[0] for fact in diagnosis_evidence(found)}
    assert told == {"baseline (run monday)", "batched (run tuesday)"}


@pytest.mark.parametrize(
    ("columns", "less"),
    [
        ({}, "a smaller dtype, quantised weights, more sharing"),
        ({"weights": "fp8 per channel"}, "int4 weights, more sharing"),
        ({"weights": "int4 per block"}, "more sharing"),
        (EXPERTS, "a smaller dtype, quantised weights, more tokens a step"),
    ],
)
def test_what_would_need_fewer_bytes_is_no_format_that_the_weights_have(columns: dict[str, Any], less: str) -> None:
    found = only(repeats("baseline", 100.0, 101.0, 99.0, bytes_ms=70.0, **columns))
    assert f"fewer bytes or FLOPs would ({less})." in found.sentence
