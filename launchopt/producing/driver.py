"""Issues the steps of requests: each when its request has arrived, its last step is done and the scheduler lets it.

In: a `ChainStream`, a schedule of arrivals in it, and completions from the consumer through a second ring. Out:
records into the first ring, and when each token was issued and done. The schedule is absolute: a request's first
commands carry the time at which it was due, so a consumer that falls behind shows as latency instead of slowing the
arrivals down.

Schedulers. `none`: a request's next step is issued as soon as the last is done. `continuous`: all requests go on in
steps; requests join and leave between them, each running request gets one token, and prompts get what is left of
`budget_tokens` columns, chunk by chunk, oldest first.

Ahead (`Schedule.ahead`, with scheduler none). What a step's commands are does not depend on the token before it, which
is fed back where it was made. So while a request's step runs all records of its next but the last are pushed, with the
time of that as their time of arrival, as soon as the consumer has said that the step has left its buckets
(`ring.LEFT`). The last is pushed when the driver was told that the step is done, as without: between two tokens passes
one record a request.

The loop is compiled (`issuing`); Python sleeps for it and looks at HeaderWord.STOP. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.command import WORDS, as_words
from launchopt.errors import Interrupted
from launchopt.producing import driver_loop as iss
from launchopt.producing import prepared_steps as sr
from launchopt.producing.driver_loop import drive
from launchopt.queue.ring import HeaderWord, Ring
from launchopt.types import Table
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import ChainStream

REHEARSED = 8  # requests: so many that where their inputs lie scattered they are copied together


@dataclass(frozen=True, slots=True)
class Schedule:
    """How steps are scheduled. `budget_tokens`: most columns of a continuous step, unless one chunk has more.

    ahead: a step's records but the last are pushed while the one before it runs; for consumers of whole steps that
    allow it, and not for continuous steps.
    """

    continuous: bool = False
    budget_tokens: int = 2048
    most_running: int = 1 << 30
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """What became of every token [tokens, in order of request] and every request [requests]; ns since the start."""

    arrived_ns: NDArray[np.int64]  # when a request was due
    late_ns: NDArray[np.int64]  # how long after that the driver took notice
    issue_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    ids: NDArray[np.int64]


class Driver:
    """One run of a stream, or of its first few steps as a rehearsal.

    `spin_us`: how long to spin before each sleep of `sleep_us`.
    """

    def __init__(
        self, stream: ChainStream, schedule: Schedule, spin_us: float, sleep_us: float, rehearsal: bool = False
    ) -> None:
        self._stream, self._sleep_s = stream, sleep_us * 1e-6
        table = shortened(stream.table) if rehearsal else stream.table
        self._due_ns, requests = table[:, ch.DUE_NS], len(table)
        settings = np.zeros(sr.SETTING_WORDS, np.int64)
        settings[sr.REQUESTS], settings[sr.REPLICAS] = requests, stream.replicas
        settings[sr.DECODE_KIND], settings[sr.CHUNK_KIND] = stream.decode_kind, stream.chunk_kind
        settings[sr.CHUNK_UNITS] = (stream.chunk_tokens or 0) * stream.units(stream.hidden)
        settings[sr.SPIN_NS], settings[sr.CONTINUOUS] = int(spin_us * 1e3), int(schedule.continuous)
        settings[sr.BUDGET], settings[sr.MOST_RUNNING] = schedule.budget_tokens, schedule.most_running
        settings[sr.AHEAD] = schedule.ahead
        template = as_words(stream.template)
        moves, stops = stream.replica_moves, np.asarray(stream.kind_stops, np.int64)
        origins = stream.a_from, stream.b_from, stream.c_from
        self._static = (settings, table, stops, template, moves, *origins)
        after, due = table[:, ch.AFTER], self._due_ns
        free = np.flatnonzero(after < 0)
        self._order = free[np.argsort(due[free], kind="stable")]
        child, sibling = np.full(requests, -1), np.full(requests, -1)
        for request in np.flatnonzero(after >= 0)[::-1]:
            sibling[request], child[after[request]] = child[after[request]], request
        queue = np.zeros(1 << requests.bit_length(), np.int64)
        self._lists = (queue, np.zeros(requests, np.int64), np.zeros(requests, np.int64), child, sibling)
        self._state = np.zeros(iss.STATE_WORDS, np.int64)
        self._progress = np.zeros((requests, sr.PROGRESS_COLUMNS), np.int64)
        self._tokens = tuple(np.zeros(stream.tokens, np.int64) for _ in range(3))
        self._issue = np.zeros(requests + 2, np.int64)
        longest = int(np.diff(stops, prepend=0).max())
        self._ahead, self._got = sr.ahead_of(requests, longest), np.zeros((sr.MOST_PLACES, WORDS), np.uint64)

    def run(self, ring: Ring, back: Ring) -> tuple[Tokens, int, int]:
        """Drive every request to its end, then close the ring: tokens, commands pushed, ns blocked by a full ring."""
        start_ns = time.monotonic_ns()
        ring.set_word(HeaderWord.START_NS, start_ns)
        self._progress[:, sr.ARRIVED_NS] = start_ns + self._due_ns
        blocked_ns = 0
        while (code := self._enter(ring, back)) != iss.DONE:
            if ring.word(HeaderWord.STOP):
                raise Interrupted("stopped while requests were under way")
            before_ns = time.monotonic_ns()
            if code == iss.BLOCKED:
                if not ring.await_room(int(self._static[0][sr.SPIN_NS])):
                    time.sleep(self._sleep_s)
                blocked_ns += time.monotonic_ns() - before_ns
            else:
                wake_s = (int(self._state[iss.WAKE_NS]) - before_ns) * 1e-9
                time.sleep(max(0.0, min(self._sleep_s, wake_s)))
        ring.close()
        progress = self._progress
        issue_ns, done_ns, ids = self._tokens
        late_ns = progress[:, sr.NOTICED_NS] - progress[:, sr.ARRIVED_NS]
        arrived_ns = progress[:, sr.ARRIVED_NS] - start_ns
        tokens = Tokens(arrived_ns, late_ns, issue_ns - start_ns, done_ns - start_ns, ids)
        return tokens, int(self._state[iss.SEQ]), blocked_ns

    def _enter(self, ring: Ring, back: Ring) -> int:
        lists = (self._progress, self._tokens, self._lists, self._issue, self._ahead, self._got)
        return int(drive(ring.arrays, back.arrays, self._static, self._order, self._state, *lists))


def shortened(table: Table) -> Table:
    """A few requests with a few steps each, all due at once: what a rehearsal needs to pass every path."""
    short = table[:REHEARSED].copy()
    short[:, ch.DUE_NS], short[:, ch.AFTER] = 0, -1
    short[:, ch.DECODES] = np.minimum(short[:, ch.DECODES], 2)
    return short
