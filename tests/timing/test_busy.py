"""GPU busy time: the union of intervals, against counting nanoseconds one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.timing.activity import busy_ns

interval = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(deadline=None, max_examples=200)
@given(st.lists(interval, max_size=20), st.sampled_from([0, 10**18]))
def test_busy_is_the_length_of_the_union(intervals: list[tuple[int, int]], since: int) -> None:
    covered = {ns for start, end in intervals for ns in range(start, end)}
    assert busy_ns(np.array(intervals, np.int64).reshape(-1, 2) + since) == len(covered)
