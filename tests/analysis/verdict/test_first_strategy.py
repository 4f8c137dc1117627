"""The strategy to try first: it keeps the order, can run the work, and is the least work for its speed."""

from __future__ import annotations

from typing import Any

import pytest
from support.results.diagnosed_rows import (
    EXPERTS,
    STEPS,
    decode,
    few,
    only,
    repeats,
)

from launchopt.modes import mode_class


def test_order_comes_before_speed() -> None:
    base = decode("baseline", 100.0, 100.0, 100.0)
    loose = decode("batched", 5.0, 5.0, 5.0, ordering="none")
    kept = decode("coalesced", 20.0, 20.0, 20.0, launch_calls=500, batch_size_mean=16.0)
    found = only([*base, *loose, *kept])
    assert found.first_to_try == "coalesced"
    assert "a weight read once for up to 16 requests" in found.sentence
    assert "Fastest is batched (5.000 ms), but dependencies ignored." in found.sentence
    assert "Warning: dependencies ignored." in only([*base, *loose]).sentence


def test_a_changed_stack_takes_the_work_of_its_choices() -> None:
    base = decode("baseline", 100.0, 100.0, 100.0)
    kernels = decode("coalesced+own+pdl", 5.0, 5.0, 5.0, stack="coalesce submit=stream pdl kernels=own")
    captured = decode("engine+graph", 5.05, 5.05, 5.05, stack="coalesce fuse=qkv,norm submit=graph kernels=cublaslt")
    found = only([*base, *kernels, *captured])
    assert found.first_to_try == "engine+graph"
    assert "Fastest is coalesced+own+pdl (5.000 ms), but takes more work in an engine." in found.sentence


@pytest.mark.parametrize(
    ("requests", "refused", "expected"),
    [(1, {}, "graph"), (1, {"graph": "no"}, "pdl"), (16, {}, "graph"), (16, {"graph": "no"}, "engine")],
)
def test_what_was_not_run_is_proposed_unless_it_refused(requests: int, refused: dict[str, str], expected: str) -> None:
    rows = decode("baseline", 80.0, 80.0, 80.0, requests=requests)
    found = only(rows, run=refused)
    assert found.first_to_try == expected
    assert f"Try {expected} first: not measured here, at most" in found.sentence


def test_what_is_slower_is_never_proposed() -> None:
    found = only([*repeats("baseline", 100.0, 100.0, 100.0), *few("batched", 120.0, 120.0, 120.0)])
    assert found.first_to_try != "batched"


@pytest.mark.parametrize("columns", [{}, EXPERTS, STEPS, STEPS | {"requests": 1}])
def test_on_a_cpu_no_mode_that_needs_a_gpu_is_proposed(columns: dict[str, Any]) -> None:
    base = repeats("baseline", 100.0, 101.0, 99.0, **columns, device="cpu")
    noisy = few("multistream", 10.0, 400.0, 20.0, **columns, device="cpu")  # not certain, and in the median 5x
    refused: dict[str, str] = {}
    while (mode := only([*base, *noisy], run=refused).first_to_try) is not None:
        assert "cpu" in mode_class(mode).devices, mode
        refused[mode] = "so that the next one is proposed"
    assert refused, "the rows lead to a proposal"


@pytest.mark.parametrize(
    ("columns", "mode"),
    [
        (EXPERTS, "graph"),
        (EXPERTS | {"dtype": "fp32"}, "grouped"),
        (EXPERTS | {"weights": "fp8 per channel"}, "graph"),
        ({"weights": "fp8 per channel"}, "batched"),
        (STEPS | {"weights": "int4 per block"}, "engine+graph+own"),
        (STEPS, "graph"),
    ],
)
def test_what_to_try_can_run_the_work(columns: dict[str, Any], mode: str) -> None:
    assert only(repeats("baseline", 100.0, 101.0, 99.0, **columns)).first_to_try == mode
