"""The stages of a launch, computed from known times; and the comparison with the published estimate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.devices.launch_breakdown import (
    PUBLISHED,
    STAGES,
    Stage,
    as_json,
    beside_published,
    from_json,
    gaps_ns,
    stage,
    traced_stages,
)

lengths = st.integers(1, 5000)
# arguments before the call, the call, delay (below 0: started before the call returned), kernel, completion, rest
one_launch = st.tuples(lengths, lengths, st.integers(-1, 5000), lengths, lengths, lengths)


@given(st.lists(one_launch, min_size=1, max_size=20), st.integers(0, 2**60))
def test_each_stage_is_what_was_put_together(parts: list[tuple[int, ...]], now: int) -> None:
    launches, calls, kernels = [], [], []
    for before, call, delay, kernel, completion, rest in parts:
        entered = now
        called = entered + before
        returned = called + call
        start = returned + max(delay, 0)
        end = start + kernel
        known = end + completion
        launches.append((entered, returned, known))
        calls.append((called, returned))
        kernels.append((start, end))
        now = known + rest
    order = np.random.default_rng(0).permutation(len(parts))
    found = traced_stages(np.array(launches), np.array(calls)[order], np.array(kernels)[order])
    expected = {
        "driver": [call for _, call, *_ in parts],
        "launch_delay": [max(delay, 0) for _, _, delay, *_ in parts],
        "kernel": [kernel for *_, kernel, _, _ in parts],
        "completion": [completion for *_, completion, _ in parts],
    }
    assert {name: each.tolist() for name, each in found.items()} == expected


def test_a_launch_of_two_kernels_is_one_launch() -> None:
    launches = np.array([[0, 300, 1000], [1000, 1300, 2000]])
    calls = np.array([[10, 100], [150, 300], [1010, 1100], [1150, 1300]])
    kernels = np.array([[90, 400], [500, 800], [1400, 1500], [1500, 1700]])
    found = {name: each.tolist() for name, each in traced_stages(launches, calls, kernels).items()}
    # The first kernel started before its call returned, so its launch delay is negative.
    assert found == {"driver": [290, 290], "launch_delay": [-10, 300], "kernel": [710, 300], "completion": [200, 300]}


def test_launches_that_a_tracer_did_not_see_are_left_out() -> None:
    launches = np.array([[0, 300, 1000], [1000, 1300, 2000], [2000, 2300, 3000]])
    calls = np.array([[10, 100], [2010, 2100], [5000, 5100]])
    kernels = np.array([[400, 500], [1400, 1500], [5200, 5300]])
    found = traced_stages(launches, calls, kernels)
    assert {name: each.tolist() for name, each in found.items()} == {
        "driver": [90],
        "launch_delay": [300],
        "kernel": [100],
        "completion": [500],
    }


@pytest.mark.parametrize("launches", [0, 2])
def test_nothing_seen_is_nothing(launches: int) -> None:
    empty = np.empty((0, 2), np.int64)
    times = np.arange(3 * launches).reshape(-1, 3)
    assert all(not len(each) for each in traced_stages(times, empty, empty).values())


def test_gaps_are_between_neighbours_in_time() -> None:
    assert gaps_ns(np.array([[50, 70], [0, 10], [15, 52]])).tolist() == [5, -2]
    assert gaps_ns(np.array([[50, 70]])).tolist() == []


def test_a_stage_is_a_median_and_a_percentile_in_us() -> None:
    found = stage(np.arange(1001) * 1000, "counted")
    assert found == Stage(500.0, 990.0, "counted")
    with pytest.raises(ValueError, match="no samples: counted"):
        stage([], "counted")


def breakdown(**p50_us: float) -> dict[str, Stage]:
    return {name: Stage(us, 2 * us, "somehow") for name, us in p50_us.items()}


def test_the_estimate_is_compared_with_the_sum_of_its_stages() -> None:
    found = beside_published(breakdown(arguments=0.25, call=1.5, launch_delay=3.0))
    assert [(one.measured_us, one.verdict) for one in found] == [
        (1.75, "within it"),
        (3.0, "below it"),
        (None, "not measured"),
        (4.75, "below it"),
    ]
    assert beside_published(breakdown(arguments=1.0, call=3.5, launch_delay=20.0))[3].verdict == "above it"


def test_what_cupti_did_not_see_is_not_compared() -> None:
    assert [one.measured_us for one in beside_published(breakdown(arguments=0.5, call=1.5))] == [2.0, None, None, None]


def test_the_estimate_adds_up_and_names_stages_that_exist() -> None:
    parts, whole = PUBLISHED[:-1], PUBLISHED[-1]
    assert (sum(one.low_us for one in parts), sum(one.high_us for one in parts)) == (whole.low_us, whole.high_us)
    assert (whole.low_us, whole.high_us) == (7, 18)
    assert {name for one in PUBLISHED for name in one.stages} <= set(STAGES)


def test_stages_survive_a_file() -> None:
    content = {"null": breakdown(call=1.5)}
    assert from_json(json.loads(json.dumps(as_json(content)))) == content
