"""Settings of the driver's scheduler, and counts and times that a producer reports after a run.

This module compiles nothing, so that the parent of a run can load it without Numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class RunKind(StrEnum):
    """The kinds of runs of an arm: first a warm-up run; for workloads with steps an audit run; then timed runs."""

    WARM_UP = "warm-up"  # a few commands, to load all code
    AUDIT = "audit"  # all steps, or thousands of them, untimed: outputs are checked at the end of each step
    RUN = "run"


class Routing(StrEnum):
    """The consumer that gets a request, or an independent command: one of several."""

    round_robin = "round_robin"  # by turns
    least_outstanding = "least_outstanding"  # the one that has the least left to do
    prefix = "prefix"  # requests only: the one that has the least to compute, where cached tokens are not computed


def at_start(requests: int, consumers: int) -> NDArray[np.int64]:
    """Return the consumer of each request that is due at the start: neighbours stay together, so that one launch has
    them without copying their inputs.
    """
    return np.arange(requests) * consumers // max(1, requests)


def by_turns(due_ns: NDArray[np.int64], consumers: int) -> NDArray[np.int64]:
    """Return the consumers of requests in order of arrival: later ones go to the one that got the fewest so far."""
    first = at_start(int(np.count_nonzero(due_ns == 0)), consumers)
    found, given = first.tolist(), np.bincount(first, minlength=consumers)
    for _ in range(len(first), len(due_ns)):
        found.append(int(given.argmin()))
        given[found[-1]] += 1
    return np.array(found, np.int64)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Settings of the scheduler.

    continuous: issue steps in rounds. budget_tokens: largest number of columns of a round; a chunk with more columns
    has a round of its own. most_running: largest number of requests in a round. ahead: push all records of a step but
    the last while the previous step runs. It needs a mode that takes whole steps, and is not for rounds. together:
    most decode steps of a request that are issued together, for one launch; `ahead` then holds back the last record of
    these steps.
    """

    continuous: bool = False
    budget_tokens: int = 2048
    most_running: int = 1 << 30
    ahead: bool = False
    together: int = 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """Times and ids of every token, [tokens] by request, and times of every request, [requests]; ns since the start."""

    arrived_ns: NDArray[np.int64]  # [requests]: time at which the request was due
    late_ns: NDArray[np.int64]  # [requests]: delay until the driver noticed it
    issue_ns: NDArray[np.int64]  # [tokens]: time at which the token's first step was issued
    done_ns: NDArray[np.int64]  # [tokens]: time at which the driver was notified of the token
    ids: NDArray[np.int64]  # [tokens]: sampled ids


@dataclass(frozen=True, slots=True)
class Production:
    """Counts and times of the producer in one run."""

    pushed: int  # commands
    blocked_ns: int  # time for which it waited for a free slot of the ring
    late_p99_ns: float | None  # 99th percentile over commands (or requests) of the delay of a push; None: closed loop
    late_max_ns: int | None  # largest such delay
    tokens: Tokens | None = None  # times and ids of tokens; None: the workload has independent commands
    busy_ns: int | None = None  # time that routing all commands took, without waiting; None: not measured
    cpu_ns: int | None = None  # CPU time of the producer's thread, with its spinning; None: not measured
