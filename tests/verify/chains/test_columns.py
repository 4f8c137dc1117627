"""Columns of requests that are at the same positions are evaluated together, and nothing changes by that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.verify import ops as vo
from launchopt.verify.chains.columns import Columns
from launchopt.verify.ops import Graded, exact

HEADS, KV_HEADS, DIM = 4, 2, 8


def columns_of(lengths: list[tuple[int, int]]) -> Columns:
    """Return the columns of requests. lengths: first position and number of columns of each."""
    requests = np.repeat(np.arange(len(lengths)), [count for _, count in lengths])
    positions = np.concatenate([start + np.arange(count) for start, count in lengths])
    return Columns(requests, positions, np.zeros_like(positions))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=8), st.integers(1, 4))
def test_groups_hold_each_request_once_at_the_same_positions(lengths: list[tuple[int, int]], most: int) -> None:
    at = columns_of(lengths)
    stop, seen = 0, list[int]()
    for requests, own in at.in_step(lambda columns: most):
        assert own.start == stop
        assert len(requests) <= most
        stop = own.stop
        seen += requests.tolist()
        assert at.requests[own].tolist() == np.repeat(requests, (own.stop - own.start) // len(requests)).tolist()
        assert {lengths[request] for request in requests} == {lengths[requests[0]]}
    assert (stop, seen) == (len(at), [*range(len(lengths))])


def test_as_few_groups_as_there_can_be() -> None:
    at = columns_of([(0, 3), (0, 3), (0, 3), (0, 2), (1, 2), (1, 2)])
    assert [requests.tolist() for requests, _ in at.in_step(lambda columns: 9)] == [[0, 1, 2], [3], [4, 5]]


def attended(q: Graded, keys: Graded, values: Graded, seen: np.ndarray, requests: int) -> Graded:
    scores = vo.scores(np, q, keys, Dtype.fp16)
    return vo.weighed(np, vo.softmax(np, scores, seen, Dtype.fp16), values, seen, Dtype.fp16, requests)


@pytest.mark.parametrize("lost", [None, 1])
def test_requests_side_by_side_attend_as_each_does_alone(lost: int | None) -> None:
    """A value that is not a number spoils the columns of its own request alone."""
    generator, requests, columns, count = np.random.default_rng(7), 3, 2, 5
    q = generator.normal(size=(requests, columns, HEADS, DIM))
    keys, values = generator.normal(size=(2, requests, count, KV_HEADS, DIM))
    if lost is not None:
        values[lost, 2, 1] = np.nan
    seen = np.arange(count) <= np.array([1, 4])[:, None]
    beside = attended(
        exact(np, q.transpose(1, 0, 2, 3).reshape(columns, -1, DIM)),
        exact(np, keys.transpose(1, 0, 2, 3).reshape(count, -1, DIM)),
        exact(np, values.transpose(1, 0, 2, 3).reshape(count, -1, DIM)),
        seen,
        requests,
    )
    for request in range(requests):
        alone = attended(exact(np, q[request]), exact(np, keys[request]), exact(np, values[request]), seen, 1)
        for name in ("value", "variance", "storing"):
            own = getattr(beside, name).reshape(columns, requests, -1)[:, request]
            np.testing.assert_allclose(own, getattr(alone, name), rtol=1e-12)
        broken = np.isnan(alone.value).any(axis=1).tolist()
        assert broken == ([False, True] if request == lost else [False, False])
