"""The completion rate of a run, and whether its arrivals overloaded it. Nothing else defines column `overloaded`.

The rate is that of the requests that finish after the middle of the arrivals, until the last one finishes. Let n be the
number of requests in the system. The system is overloaded if n at the last arrival exceeds the largest n of the first
half by more than a share of the arrivals of the second half: a fiftieth of many, a tenth of few. Between the two it is
four times the root of their number, and random arrivals hardly ever vary by more. The arrivals that happened count, not
the nominal rate, which a few random arrivals can miss by far. If all requests arrive at once, the rate is that of the
whole run, and the system is not overloaded.

Independent commands that wait in buckets for others are no backlog: as many as the buckets hold, or as arrived within
the time that a bucket waits. A short run may have no more of them. Then commands that arrived in S seconds overloaded
the system if the results took more than S longer, beyond that wait and the latency of the fastest command.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.producing.production import Tokens

# The share of the second half's arrivals by which the backlog of many and of few requests may grow; between them the
# standard deviations of the number of random arrivals.
LEAST_SHARE, MOST_SHARE, DEVIATIONS = 0.02, 0.1, 4


class Completion(NamedTuple):
    """The values of columns `completed_rate_per_s` and `overloaded`."""

    rate_per_s: float
    overloaded: bool


def of_commands(
    arrived_ns: NDArray[np.int64], done_ns: NDArray[np.int64], held: int = 1, wait_ns: int = 0
) -> Completion:
    """Return the completion of independent commands, each a request.

    arrived_ns, done_ns: of each command. held: commands that buckets can hold. wait_ns: how long they wait for others.
    """
    arrived, done = np.sort(arrived_ns), np.sort(done_ns)
    waiting = int(np.count_nonzero(arrived > arrived[-1] - wait_ns))
    found = _completion(arrived, done, max(1, min(held, waiting)))
    span_ns, latency_ns = int(arrived[-1] - arrived[0]), int((done - arrived).min())
    is_late = 0 < span_ns < int(done[-1] - arrived[-1]) - wait_ns - latency_ns
    return found._replace(overloaded=found.overloaded or is_late)


def of_requests(tokens: Tokens, outputs: NDArray[np.int64]) -> Completion:
    """Return the completion of requests with many tokens. outputs: int64 [requests], output tokens of each request."""
    return _completion(np.sort(tokens.arrived_ns), np.sort(tokens.done_ns[np.cumsum(outputs) - 1]), held=1)


def _completion(arrived_ns: NDArray[np.int64], done_ns: NDArray[np.int64], held: int) -> Completion:
    """Return the completion of requests. Both arrays are sorted, and count from the start of the run."""
    end_ns = int(arrived_ns[-1])
    start_ns = (int(arrived_ns[0]) + end_ns) // 2
    if end_ns <= start_ns:
        return Completion(len(done_ns) / (int(done_ns[-1]) * 1e-9), False)
    finished = int(np.count_nonzero(done_ns > start_ns))
    under_way = np.arange(1, len(arrived_ns) + 1) - np.searchsorted(done_ns, arrived_ns, "right")
    before = int(np.count_nonzero(arrived_ns <= start_ns))
    came, most = len(arrived_ns) - before, int(under_way[:before].max(initial=0))
    growth = int(under_way[-1]) - most
    last_ns = max(end_ns, int(done_ns[-1]))
    allowed = min(MOST_SHARE * came, max(LEAST_SHARE * came, DEVIATIONS * came**0.5))
    return Completion(finished / ((last_ns - start_ns) * 1e-9), growth > max(held, allowed))
