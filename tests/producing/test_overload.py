"""The completion rate of made runs, and which of them are overloaded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.results.made_tokens import MS, NEVER, Requests, made

from launchopt.producing.overload import of_commands, of_requests
from launchopt.producing.production import Tokens

properties = settings(deadline=None, max_examples=80)


def served(gap_ns: int, service_ns: int, count: int, servers: int = 1) -> tuple[Tokens, NDArray[np.int64]]:
    """Return evenly spaced requests of one token. The first of the servers to be free serves each for `service_ns`."""
    free = [0] * servers
    requests: Requests = []
    for arrived in range(0, count * gap_ns, gap_ns):
        at = min(range(servers), key=free.__getitem__)
        free[at] = max(free[at], arrived) + service_ns
        requests.append((arrived, [free[at]]))
    return made(requests)


@properties
@given(st.integers(10**3, 10**8), st.floats(0.01, 1.0), st.integers(10, 400), st.integers(1, 4))
def test_a_rate_that_is_held_is_no_overload(gap_ns: int, load: float, count: int, servers: int) -> None:
    rate, overloaded = of_requests(*served(gap_ns, max(1, int(gap_ns * servers * load)), count, servers))
    assert not overloaded
    # Over half of `count` gaps; at either end some may be under way.
    assert abs(rate * gap_ns * 1e-9 - 1) <= (servers + 1) / (count // 2 - 1)


@properties
@given(st.integers(10**3, 10**8), st.floats(1.3, 50), st.integers(40, 400), st.integers(1, 3))
def test_a_rate_far_above_what_is_held_is_overload(gap_ns: int, load: float, count: int, servers: int) -> None:
    service_ns = int(gap_ns * servers * load)
    rate, overloaded = of_requests(*served(gap_ns, service_ns, count, servers))
    assert overloaded
    assert abs(rate * service_ns * 1e-9 / servers - 1) <= 2 * load / (count // 2 - 1) + 0.02


def test_all_at_once_is_no_overload() -> None:
    """A closed loop: the rate is that of the whole run."""
    requests: Requests = [(0, [i * 100 * MS, i * 200 * MS]) for i in range(1, 11)]
    rate, overloaded = of_requests(*made(requests))
    assert rate == pytest.approx(10 / 2)
    assert not overloaded


def test_one_burst_is_no_overload() -> None:
    """Whenever it came."""
    requests: Requests = [(5 * MS, [(10 + i) * MS]) for i in range(8)]
    assert of_requests(*made(requests)) == (pytest.approx(8 / 17e-3), False)


def test_one_request_is_no_overload() -> None:
    assert of_requests(*made([(0, [MS, 10 * MS])])) == (pytest.approx(100), False)
    assert not of_requests(*made([(5 * MS, [6 * MS, NEVER])]))[1]


def test_a_stall_that_is_made_up_for_is_no_overload() -> None:
    """In the first half nothing was done; by the end all is."""
    requests: Requests = [(i * MS, [max(60, i + 1) * MS]) for i in range(100)]
    assert not of_requests(*made(requests))[1]


@properties
@given(st.integers(2, 20), st.integers(6, 30), st.integers(1, 9))
def test_a_burst_that_comes_last_is_no_overload(size: int, bursts: int, load_tenths: int) -> None:
    """Each is done before the next comes; after the last none does."""
    gap_ns = 100 * MS
    service_ns = gap_ns * load_tenths // 10 // size
    requests: Requests = [
        (burst * gap_ns, [burst * gap_ns + (i + 1) * service_ns]) for burst in range(bursts) for i in range(size)
    ]
    rate, overloaded = of_requests(*made(requests))
    assert not overloaded
    assert rate == pytest.approx(size / (gap_ns * 1e-9), rel=2 / (bursts - 1))


@properties
@given(st.integers(2, 20), st.integers(10, 30), st.floats(1.5, 20))
def test_bursts_that_pile_up_are_overload(size: int, bursts: int, load: float) -> None:
    service_ns = int(100 * MS * load / size)
    requests: Requests = [
        (burst * 100 * MS, [(burst * size + i + 1) * service_ns]) for burst in range(bursts) for i in range(size)
    ]
    assert of_requests(*made(requests))[1]


def queue(load: float, count: int, seed: int, held: int = 1) -> bool:
    """Return whether commands overload one server that takes `load` us each; they arrive at random, 1 us apart."""
    arrived = np.cumsum(np.random.default_rng(seed).exponential(1_000.0, count))
    served = 1_000.0 * load * np.arange(count)
    done = np.maximum.accumulate(arrived - served) + served + 1_000.0 * load
    return of_commands(arrived.astype(np.int64), done.astype(np.int64), held).overloaded


@pytest.mark.parametrize("count", [50, 200, 2_000])
def test_random_arrivals_without_load_are_no_overload(count: int) -> None:
    """Few random arrivals can take far less or more time than their nominal rate says."""
    assert not any(queue(0.01, count, seed) for seed in range(100))


@pytest.mark.parametrize("count", [200, 2_000])
def test_what_serves_half_of_the_rate_is_overloaded(count: int) -> None:
    assert all(queue(2.0, count, seed) for seed in range(30))


@pytest.mark.parametrize("over", [1.04, 1.08])
def test_of_many_commands_a_rate_a_few_percent_above_what_is_held_is_overload(over: float) -> None:
    """200,000 commands at 1.8 M/s, of which a GPU ends 1.6 to 1.7 M/s, were once called held."""
    assert all(queue(over, 200_000, seed) for seed in range(30))


@pytest.mark.parametrize("count", [20_000, 200_000])
def test_of_many_commands_a_rate_that_is_just_held_is_no_overload(count: int) -> None:
    assert not any(queue(0.99, count, seed) for seed in range(30))


def test_a_rate_held_at_high_load_is_rarely_an_overload() -> None:
    assert sum(queue(0.8, 2_000, seed) for seed in range(100)) <= 2


def test_commands_that_wait_in_a_bucket_for_company_are_no_backlog() -> None:
    arrived = np.arange(1, 101) * 1_000
    done = np.repeat(arrived[63::36], (64, 36))  # a bucket of 64, then what is left
    assert not of_commands(arrived, done, held=64, wait_ns=64_000).overloaded
    assert of_commands(arrived, done + 10**6, held=8, wait_ns=64_000).overloaded


def test_buckets_that_can_hold_more_than_arrives_while_they_wait_hide_no_backlog() -> None:
    arrived = np.arange(4_000) * 1_000
    done = arrived * 13 // 10 + 2_000  # 3 of 10 results come late
    assert of_commands(arrived, done, held=2_048, wait_ns=50_000).overloaded
    assert not of_commands(arrived, arrived + 52_000, held=2_048, wait_ns=50_000).overloaded


@pytest.mark.parametrize("batch", [1, 6])
def test_a_short_run_is_overloaded_in_every_mode_if_results_take_far_longer_than_arrivals(batch: int) -> None:
    """26 commands within 3.3 ms, as of a trace of BERT; results come for 150 ms."""
    arrived = np.arange(26) * 130_000
    done = (np.arange(26) // batch + 1) * batch * 6 * MS
    assert of_commands(arrived, done, held=26, wait_ns=2 * MS).overloaded
    assert not of_commands(arrived, arrived + 2 * MS, held=26, wait_ns=2 * MS).overloaded


def test_two_commands_within_the_latency_of_one_are_no_overload() -> None:
    assert not of_commands(np.array([0, 1_000]), np.array([8_000, 9_000])).overloaded


def test_the_rate_of_an_overload_is_that_at_which_all_finished() -> None:
    """Also if none finished while others still arrived."""
    arrived = np.arange(1, 101) * 1_000
    rate, overloaded = of_commands(arrived, 10**6 + arrived * 100, held=1)
    assert overloaded
    assert rate == pytest.approx(100 / (11e6 - 50_500) * 1e9)
