"""The words of a verdict: which line they are about, and what they advise."""

from __future__ import annotations

from typing import Any

import pytest
from support.results.diagnosed_rows import EXPERTS, decode, few, only, repeats

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


def test_a_mode_that_quantises_inputs_is_not_first_for_its_outputs() -> None:
    rows = [*repeats("baseline", 100.0, 101.0, 99.0), *few("batched", 5.1, 5.2, 5.0)]
    rows += few("cublaslt_fp8", 2.0, 2.1, 1.9, quantised_inputs="fp8 per channel", bytes_ms=1.5)
    words = "Fastest is cublaslt_fp8 (2.000 ms), but it quantises inputs, so its outputs are other ones."
    assert words in only(rows).sentence


def test_a_faster_mode_that_quantises_inputs_is_not_denied() -> None:
    every = dict.fromkeys(("batched", "triton_batched", "pointer_array", "graph"), "refused")
    rows = [*repeats("baseline", 100.0, 101.0, 99.0), *repeats("multistream", 110.0, 111.0, 109.0)]
    assert only(rows, run=every).sentence.endswith("No other mode that was measured is faster.")
    rows += few("cublaslt_fp8", 5.0, 5.1, 4.9, quantised_inputs="fp8 per channel", bytes_ms=1.5)
    words = "Only modes that quantise inputs were faster, and their outputs are other ones."
    assert only(rows, run=every).sentence.endswith(words)


def test_the_fastest_in_latency_has_its_latency() -> None:
    """The wall times follow the arrivals. A change of 2% in the latency is worth no graph."""
    open_ = {"arrival": "poisson", "arrival_rate_per_s": 100.0, "overloaded": False}
    rows = repeats("baseline", 100.0, 101.0, 99.0, latency_p50_us=60.0, **open_)
    rows += few("batched", 100.0, 101.0, 99.0, latency_p50_us=30.6, **open_)
    rows += few("graph", 100.5, 101.0, 99.0, latency_p50_us=30.0, **open_)
    found = only(rows)
    assert found.first_to_try == "batched"
    words = "Fastest is graph (30.00 us in median latency), but takes more work in an engine."
    assert words in found.sentence


def test_an_order_that_all_lines_ignore_is_no_reason_against_the_fastest() -> None:
    base = decode("baseline", 100.0, 100.0, 100.0)
    loose = [decode(mode, *[ms] * 3, ordering="none") for mode, ms in (("batched", 5.1), ("graph", 5.0))]
    found = only([*base, *loose[0], *loose[1]])
    assert "Fastest is graph (5.000 ms), but takes more work in an engine." in found.sentence
    assert "Warning: dependencies ignored." in found.sentence
