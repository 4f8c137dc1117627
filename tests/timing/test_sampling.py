"""Which launches are timed on the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.timing.sampling import GAPS, SAMPLES_LEAST, SHORTEST_GAP, Sampler, sample_gap


def gaps(sampler: Sampler, count: int) -> list[int]:
    """Launches from one timed one to the next."""
    found = []
    for _ in range(count):
        found.append(sampler.left + 1)
        sampler.passed(sampler.left)
        assert sampler.left == 0
        sampler.taken(last=False)
    return found


@pytest.mark.parametrize("every", [1, 2, 7, 1000])
def test_one_in_every_on_average_and_never_in_step(every: int) -> None:
    found = gaps(Sampler(every), GAPS)
    assert sum(found) / GAPS == pytest.approx(every, rel=0.05)
    assert min(found) >= 1
    assert max(found) <= max(1, 2 * every - 1)
    assert (len(set(found)) == 1) == (every == 1)
    assert gaps(Sampler(every), 50) == found[:50]


def test_gaps_start_over_when_they_are_used_up() -> None:
    sampler = Sampler(9)
    assert gaps(sampler, GAPS) == gaps(sampler, GAPS)


def test_seeds_differ() -> None:
    assert gaps(Sampler(50, seed=1), 20) != gaps(Sampler(50, seed=2), 20)


def test_none_follows_the_last() -> None:
    sampler = Sampler(3)
    sampler.passed(sampler.left)
    sampler.taken(last=True)
    sampler.passed(10**12)
    assert sampler.left > 10**12


def test_never() -> None:
    sampler = Sampler(0)
    sampler.passed(10**12)
    assert sampler.left > 10**12


@given(every=st.integers(1, 10_000), launches=st.integers(0, 10**7))
def test_short_runs_are_sampled_more_often_but_not_too_often(every: int, launches: int) -> None:
    gap = sample_gap(every, launches)
    assert gap <= every
    assert gap == every or gap >= SHORTEST_GAP
    if gap > SHORTEST_GAP:
        assert launches // gap >= SAMPLES_LEAST or gap == every


def test_no_sampling_stays_no_sampling() -> None:
    assert sample_gap(0, 1000) == 0
    assert sample_gap(1000, 3200) == 100
    assert sample_gap(1000, 10) == SHORTEST_GAP
