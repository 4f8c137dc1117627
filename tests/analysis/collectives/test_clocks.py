"""Clocks of several GPUs are brought together within the error that is stated, whatever the order of the GPUs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from launchopt.analysis.collectives.clocks import Times, recorded_or_set, set_clocks

OFFSETS = st.integers(-(10**5), 10**5) | st.integers(-(10**12), 10**12)


@st.composite
def recordings(draw: st.DrawFn) -> tuple[Times, Times, Times]:
    """True arrivals at collectives of up to 6 GPUs, their begins and their ends as recorded, each on its own clock."""
    gpus, count = draw(st.integers(2, 6)), draw(st.integers(1, 12))
    arrived = draw(arrays(np.int64, (gpus, count), elements=st.integers(0, 20_000)))
    arrived += np.arange(count) * 1_000_000
    ends = arrived.max(axis=0) + draw(arrays(np.int64, (gpus, count), elements=st.integers(0, 30_000)))
    offsets = np.array(draw(st.lists(OFFSETS, min_size=gpus, max_size=gpus)))[:, None]
    return arrived, arrived + offsets, ends + offsets


def waits(arrived: Times) -> Times:
    found: Times = arrived.max(axis=0) - arrived
    return found


@settings(deadline=None)
@given(recordings(), st.randoms(), st.sampled_from([0, 2000]))
def test_waits_are_within_the_error_and_the_same_for_every_order(
    drawn: tuple[Times, Times, Times], random: np.random.Generator, rounded_ns: int
) -> None:
    arrived, starts, ends = drawn
    order = list(range(len(starts)))
    random.shuffle(order)
    for found, other in (
        (recorded_or_set(starts, ends, rounded_ns), recorded_or_set(starts[order], ends[order], rounded_ns)),
        (set_clocks(starts, ends), set_clocks(starts[order], ends[order])),
    ):
        assert found is not None
        assert other is not None
        moved = starts + found.offsets_ns[:, None]
        assert np.array_equal(waits(moved)[order], waits(starts[order] + other.offsets_ns[:, None]))
        assert found.error_ns == other.error_ns
        assert np.abs(waits(moved) - waits(arrived)).max() <= found.error_ns
        transfers = ends + found.offsets_ns[:, None] - moved.max(axis=0)
        assert transfers.min() >= -rounded_ns


@given(recordings())
def test_clocks_are_taken_as_recorded_if_no_pair_of_gpus_speaks_against_it(drawn: tuple[Times, Times, Times]) -> None:
    _, starts, ends = drawn
    found = recorded_or_set(starts, ends, 0)
    assert found is not None
    assert (not found.offsets_ns.any()) == bool((ends >= starts.max(axis=0)).all())


def test_bounds_of_two_pairs_bound_the_third() -> None:
    """The first collective bounds the clocks of the first two GPUs, the other one those of the last two: by 10 us."""
    starts = np.array([[0, 500], [0, 1000], [-500, 1000]]) * 1000
    ends = np.array([[10, 1500], [10, 1010], [500, 1010]]) * 1000
    found = recorded_or_set(starts, ends, 0)
    assert found is not None
    assert (found.offsets_ns.tolist(), found.error_ns) == ([0, 0, 0], 20_000)


def test_a_gpu_that_no_clock_brings_together_with_another_one_is_none_of_the_group() -> None:
    """The second GPU does its second collective 50 us later after the first one than the others do."""
    starts = np.array([[0, 100], [0, 150], [0, 100]]) * 1000
    assert recorded_or_set(starts, starts + 10_000, 2000) is None
    found = set_clocks(starts, starts + 10_000)
    assert found.offsets_ns.tolist() == [0, -25_000, 0]
    assert found.error_ns == 15_000


def test_clocks_of_any_size_are_brought_together() -> None:
    far = 2**62 - 10**6
    starts = np.array([[0, 10_000], [0, 10_000]]) + np.array([[-far], [far]])
    found = recorded_or_set(starts, starts + 1000, 0)
    assert found is not None
    assert (np.diff(starts + found.offsets_ns[:, None], axis=0) == 0).all()
    assert found.error_ns == 1000
