"""The wait of each GPU in collectives, and the transfer, follow from the begins and ends of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.collectives.gpus import Calls
from launchopt.analysis.collectives.kinds import Kind
from launchopt.analysis.collectives.waits import Collectives, waits

REDUCE, GATHER, SCATTER = Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER


def calls(
    begins_us: Sequence[float],
    ends_us: Sequence[float],
    kinds: Sequence[Kind] | None = None,
    streams: Sequence[int] | None = None,
    untimed: Sequence[int] = (),
) -> Calls:
    starts, ends = ((np.array(values) * 1000).astype(np.int64) for values in (begins_us, ends_us))
    numbers = np.array(streams or [7] * len(starts))
    return Calls(
        starts, ends, tuple(kinds or [REDUCE] * len(starts)), numbers, ~np.isin(np.arange(len(starts)), untimed)
    )


def table(*of_each: Calls) -> Collectives:
    found = waits(None, "abcdef"[: len(of_each)], of_each)
    assert isinstance(found, Collectives), found
    return found


def test_a_wait_ends_when_the_last_gpu_arrives_and_the_transfer_begins() -> None:
    found = table(calls([10, 100, 200], [20, 115, 230]), calls([16, 105, 190], [20, 115, 230]))
    assert found.count == 3
    assert (found.skew_p50_us, found.transfer_p50_us) == (6.0, 10.0)
    # The first collective bounds the second clock by 4 and 10 us. Times are rounded by up to 2 us.
    assert (found.clock_error_us, found.is_clock_set) == (12.0, False)
    one, other = found.gpus
    assert (one.gpu, one.wait_p50_us, one.last_share) == ("a", 5.0, pytest.approx(1 / 3))
    assert (other.gpu, other.wait_p50_us, other.last_share) == ("b", 0.0, pytest.approx(2 / 3))


def test_gpus_that_come_last_together_share_it() -> None:
    found = table(calls([10, 100], [30, 130]), calls([10, 110], [30, 130]), calls([5, 110], [30, 130]))
    assert [each.last_share for each in found.gpus] == [0.25, 0.5, 0.25]


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(0, 5000), min_size=2, max_size=30))
def test_a_clock_that_is_off_changes_no_wait_by_more_than_the_error_says(offset_ns: int, late_ns: list[int]) -> None:
    """Collectives of 20 us, to which the second GPU comes late by some ns."""
    begins = np.arange(len(late_ns)) * 1000.0
    late = np.array(late_ns) / 1e3
    found = table(calls(begins, begins + 20), calls(begins + late + offset_ns / 1e3, begins + 20 + offset_ns / 1e3))
    waited = float(np.percentile(late, 50))
    assert abs(found.gpus[0].wait_p50_us - waited) <= found.clock_error_us + 1e-3
    if found.is_clock_set:
        assert found.clock_error_us <= 22
    else:
        assert abs(offset_ns) <= 22_000


def test_the_order_of_gpus_changes_no_wait() -> None:
    """As recorded, the third GPU begins 30 us after two others have ended."""
    spans = ((1000, 1060), (1005, 1020), (1050, 1060), (1005, 1020))
    of_each = [calls([at, at + 1000], [end, end + 1000]) for at, end in spans]
    seen = set()
    for order in permutations(range(4)):
        found = table(*(of_each[at] for at in order))
        assert found.transfer_p50_us > 0
        seen.add(tuple(each.wait_p50_us for _, each in sorted(zip(order, found.gpus, strict=True))))
    assert seen == {(25.0, 2.5, 0.0, 2.5)}


def test_other_counts_kinds_or_times_are_not_the_same_collectives() -> None:
    first = calls([10, 100], [20, 110])
    assert waits(None, "ab", [first, calls([10], [20])]) == "2 on a, 1 on b"
    gathers = calls([10, 100], [20, 110], [REDUCE, GATHER])
    assert waits(None, "ab", [first, gathers]) == "number 2 is an all-reduce on a, an all-gather on b"
    scatters = calls([10, 100], [20, 110], [SCATTER, REDUCE])
    assert waits(None, "ab", [scatters, first]) == "number 1 is a reduce-scatter on a, an all-reduce on b"
    late = calls([10, 150], [20, 160])
    never = "some end on one GPU before they begin on another, whatever the clocks"
    assert waits(None, "ab", [first, late]) == never


def test_work_of_two_streams_matches_by_stream_in_whatever_order_it_begins() -> None:
    """A stream of reductions, which the second GPU begins 5 us late, and one of gathers, in the other order there."""
    one = calls([10, 30, 110, 130], [28, 40, 128, 140], [REDUCE, GATHER] * 2, [7, 20] * 2)
    other = calls([12, 15, 112, 115], [40, 28, 140, 128], [GATHER, REDUCE] * 2, [20, 7] * 2)
    renumbered = calls([12, 15, 112, 115], [40, 28, 140, 128], [GATHER, REDUCE] * 2, [4, 3] * 2)
    for second in (other, renumbered):
        found = table(one, second)
        assert (found.count, found.skew_p99_us, found.is_clock_set) == (4, 18.0, False)
        assert [each.wait_p50_us for each in found.gpus] == [2.5, 9.0]
    unequal = calls([12, 15, 112, 115], [40, 28, 140, 128], [GATHER, REDUCE] * 2, [7, 7, 7, 20])
    reason = waits(None, "ab", [one, unequal])
    assert reason == "number 1 is an all-reduce on a, an all-gather on b"


def test_streams_that_differ_among_gpus_may_still_hold_the_same_collectives_in_order() -> None:
    found = table(calls([10, 100], [20, 110], streams=[7, 9]), calls([11, 101], [20, 110], streams=[7, 7]))
    assert (found.count, found.skew_p50_us) == (2, 1.0)


def test_a_collective_whose_end_is_wrong_on_one_gpu_counts_on_none() -> None:
    found = table(calls([10, 100], [10**6, 110], untimed=[0]), calls([17, 103], [20, 110]))
    assert (found.count, found.skew_p99_us) == (1, 3.0)
    nothing = waits(None, "ab", [calls([10], [20], untimed=[0]), calls([10], [20])])
    assert nothing == "none has a usable time on every GPU"
