"""What bounds a line: each rule at its boundary, and properties that hold for all shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.verdict.bound import DOMINANT, QUEUE_FULL, SHORT_KERNEL_US, Bound, Shares, Side, classify

share = st.floats(0, 1)
maybe = st.none() | share
shares = st.builds(
    Shares, bytes=maybe, flops=maybe, host=maybe, blocked=share, busy=maybe, kernel_us=st.none() | st.floats(0, 1e4)
) | st.builds(Shares, maybe, maybe, maybe, share, maybe, maybe, share, st.booleans(), st.booleans(), maybe)
JUST_BELOW = DOMINANT - 1e-9


@given(shares)
def test_work_at_a_ceiling_comes_before_all_else(given_: Shares) -> None:
    bytes_share, flops_share = given_.bytes or 0, given_.flops or 0
    is_work = max(bytes_share, flops_share) >= DOMINANT
    bound, _ = classify(given_)
    assert (bound in (Bound.MEMORY, Bound.COMPUTE)) == is_work
    if is_work:
        assert (bound is Bound.COMPUTE) == (flops_share > bytes_share)


@given(shares)
def test_no_class_without_half_of_the_wall_time_behind_it(given_: Shares) -> None:
    match classify(given_):
        case Bound.LAUNCH, Side.HOST:
            assert (given_.host or 0) >= DOMINANT
            assert given_.busy is None or given_.busy <= (given_.host or 0)
        case Bound.LAUNCH, Side.GAPS:
            assert given_.busy is not None
            assert given_.busy < DOMINANT
        case Bound.COMMAND, _:
            assert given_.on_cpu
            assert (given_.saved or 0) >= DOMINANT
        case Bound.LATENCY, Side.GPU:
            assert (given_.host or 0) + given_.blocked >= DOMINANT
        case Bound.LATENCY, _:
            assert (given_.busy or 0) >= DOMINANT
        case Bound.QUEUE, Side.DEADLINES:
            assert given_.waited >= DOMINANT
        case Bound.QUEUE, Side.ARRIVALS:
            assert given_.kept_up


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (Shares(bytes=DOMINANT), (Bound.MEMORY, Side.ONLY)),
        (Shares(bytes=JUST_BELOW), (Bound.UNDECIDED, Side.ONLY)),
        (Shares(bytes=0.6, flops=0.7, host=1.0), (Bound.COMPUTE, Side.ONLY)),
        (Shares(bytes=0.4, kept_up=True, host=0.9), (Bound.QUEUE, Side.ARRIVALS)),
        (Shares(waited=DOMINANT, host=0.9), (Bound.QUEUE, Side.DEADLINES)),
        (Shares(waited=JUST_BELOW, host=0.9), (Bound.LAUNCH, Side.HOST)),
        (Shares(host=DOMINANT), (Bound.LAUNCH, Side.HOST)),
        (Shares(host=JUST_BELOW), (Bound.UNDECIDED, Side.ONLY)),
        (Shares(host=0.6, blocked=QUEUE_FULL), (Bound.LATENCY, Side.GPU)),
        (Shares(host=0.6, blocked=QUEUE_FULL - 1e-9), (Bound.LAUNCH, Side.HOST)),
        (Shares(host=0.3, blocked=0.1), (Bound.UNDECIDED, Side.ONLY)),
        (Shares(host=0.7, busy=0.7), (Bound.LAUNCH, Side.HOST)),
        (Shares(host=0.7, busy=0.71, kernel_us=4.0), (Bound.LATENCY, Side.SHORT_KERNELS)),
        (Shares(host=0.1, busy=0.9, kernel_us=SHORT_KERNEL_US), (Bound.LATENCY, Side.SLOW_KERNELS)),
        (Shares(host=0.1, busy=DOMINANT), (Bound.LATENCY, Side.SHORT_KERNELS)),
        (Shares(host=0.1, busy=JUST_BELOW), (Bound.LAUNCH, Side.GAPS)),
        (Shares(host=1.0, on_cpu=True, saved=DOMINANT), (Bound.COMMAND, Side.ONLY)),
        (Shares(host=1.0, on_cpu=True, saved=JUST_BELOW), (Bound.UNDECIDED, Side.ONLY)),
        (Shares(host=1.0, on_cpu=True), (Bound.UNDECIDED, Side.ONLY)),
        (Shares(), (Bound.UNDECIDED, Side.ONLY)),
    ],
)
def test_each_rule_at_its_boundary(given_: Shares, expected: tuple[Bound, Side]) -> None:
    assert classify(given_) == expected
