"""The completion rate of a run, and whether its arrivals overloaded it. Nothing else defines column `overloaded`.

Requests of many tokens have the time of every completion; independent commands have only the wall time of them all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.producing.production import Tokens

BACKLOG_SHARE = 0.1  # share of the second half's arrivals; if the backlog grows by more, the system is overloaded
LEAST_SHARE = 0.95  # completing less than this share of the arrival rate is overload of independent commands


class Completion(NamedTuple):
    """The values of columns `completed_rate_per_s` and `overloaded`."""

    rate_per_s: float
    overloaded: bool


def of_commands(commands: int, wall_ms: float, due_per_s: float) -> Completion:
    """Return the completion of independent commands over the whole run. due_per_s: rate at which they arrive."""
    rate_per_s = commands / wall_ms * 1e3
    return Completion(rate_per_s, rate_per_s < LEAST_SHARE * due_per_s)


def of_requests(tokens: Tokens, outputs: NDArray[np.int64]) -> Completion:
    """Return the completion of requests with many tokens. outputs: int64 [requests], output tokens of each request.

    The rate is taken over the second half of the time in which requests arrive. Let n be the number of requests in the
    system. The system is overloaded if n at the last arrival exceeds the largest n of the first half by more than a
    tenth of the arrivals of the second half. If all requests arrive at once, the rate is that of the whole run, and the
    system is not overloaded.
    """
    done_ns = np.sort(tokens.done_ns[np.cumsum(outputs) - 1])
    arrived_ns = np.sort(tokens.arrived_ns)
    end_ns = int(arrived_ns[-1])
    start_ns = (int(arrived_ns[0]) + end_ns) // 2
    if end_ns <= start_ns:
        return Completion(len(done_ns) / (int(done_ns[-1]) * 1e-9), False)
    finished = int(np.count_nonzero((done_ns > start_ns) & (done_ns <= end_ns)))
    under_way = np.arange(1, len(arrived_ns) + 1) - np.searchsorted(done_ns, arrived_ns, "right")
    before = int(np.count_nonzero(arrived_ns <= start_ns))
    came, most = len(arrived_ns) - before, int(under_way[:before].max(initial=0))
    growth = int(under_way[-1]) - most
    return Completion(finished / ((end_ns - start_ns) * 1e-9), growth > max(1.0, BACKLOG_SHARE * came))
