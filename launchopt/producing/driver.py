"""Issue the steps of requests: each when its request has arrived, its last step has ended and the scheduler lets it.

The driver pushes records into the first ring and is notified of ends of steps through a second one. The schedule of
arrivals is absolute: a request's first commands carry the time at which it was due. So a consumer that falls behind
shows as latency instead of slowing the arrivals down.

Schedulers. `none`: a request's next step is issued as soon as the last has ended. `continuous`: all requests go on in
rounds, and join and leave between them. Each running request gets one token. Prompts get what is left of
`budget_tokens` columns, chunk by chunk, oldest first.

Ahead (`Schedule.ahead`, with scheduler none). A step's commands do not depend on the token before it, which is fed back
where it was made. So while a request's step runs, the driver pushes all records of its next step but the last. It may
do so as soon as the consumer says that the step has left its buckets (`HeaderWord.STEPS_LEFT`). It pushes the last
record when it is notified that the step has ended. So one record a request passes between two tokens.

The loop is compiled (`driver_loop`). Python sleeps for it, and looks whether to stop. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.command import WORDS, as_words
from launchopt.errors import Interrupted
from launchopt.producing.continuous import DriverWord
from launchopt.producing.driver_loop import DriverExit, drive
from launchopt.producing.prepared_steps import MOST_PLACES, DriverSetting, ProgressColumn, ahead_of
from launchopt.producing.request_steps import DriverFields, IssueWord, TimeArrays
from launchopt.queue.ring import HeaderWord, Ring
from launchopt.types import Table
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import ChainStream

REHEARSED = 8  # requests of a warm-up run: enough for the copies of scattered inputs to happen


@dataclass(frozen=True, slots=True)
class Schedule:
    """How steps are scheduled.

    budget_tokens: most columns of a round, unless one chunk has more. most_running: most requests of a round. ahead:
    all records of a step but the last are pushed while the step before it runs; for consumers of whole steps that allow
    it, and not for rounds.
    """

    continuous: bool = False
    budget_tokens: int = 2048
    most_running: int = 1 << 30
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """What became of every token, [tokens] in order of request, and every request, [requests]; ns since the start."""

    arrived_ns: NDArray[np.int64]  # when a request was due
    late_ns: NDArray[np.int64]  # how much later the driver noticed
    issue_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    ids: NDArray[np.int64]


class Driver:
    """One run of a stream, or of its first few steps as a warm-up run.

    spin_us: how long to spin before each sleep of `sleep_us`.
    """

    def __init__(
        self, stream: ChainStream, schedule: Schedule, spin_us: float, sleep_us: float, rehearsal: bool = False
    ) -> None:
        self._stream, self._sleep_s = stream, sleep_us * 1e-6
        table = shortened(stream.table) if rehearsal else stream.table
        self._due_ns, requests = table[:, ch.DUE_NS], len(table)
        self._settings = _settings_of(stream, requests, schedule, int(spin_us * 1e3))
        template, stops = as_words(stream.template), np.asarray(stream.kind_stops, np.int64)
        origins = stream.a_from, stream.b_from, stream.c_from
        self._arrays = (self._settings, table, stops, template, stream.replica_moves, *origins)
        after, due = table[:, ch.AFTER], self._due_ns
        free = np.flatnonzero(after < 0)
        order: Table = free[np.argsort(due[free], kind="stable")]
        child, sibling = np.full(requests, -1), np.full(requests, -1)
        for request in np.flatnonzero(after >= 0)[::-1]:
            sibling[request], child[after[request]] = child[after[request]], request
        queue = np.zeros(1 << requests.bit_length(), np.int64)
        lists = (queue, np.zeros(requests, np.int64), np.zeros(requests, np.int64), child, sibling)
        self._state = np.zeros(len(DriverWord), np.int64)
        self._progress = np.zeros((requests, len(ProgressColumn)), np.int64)
        issue_ns, done_ns, ids = (np.zeros(stream.tokens, np.int64) for _ in range(3))
        self._tokens: TimeArrays = (issue_ns, done_ns, ids)
        issue = np.zeros(IssueWord.REQUESTS + requests, np.int64)
        longest = int(np.diff(stops, prepend=0).max())
        self._ahead, got = ahead_of(requests, longest), np.zeros((MOST_PLACES, WORDS), np.uint64)
        self._run: DriverFields = (order, self._state, self._progress, self._tokens, lists, issue, self._ahead, got)

    def run(self, ring: Ring, back: Ring) -> tuple[Tokens, int, int]:
        """Drive every request to its end, then close the ring; return tokens, commands pushed, ns the ring was full.

        Interrupted where the ring says stop.
        """
        start_ns = time.monotonic_ns()
        ring.set_word(HeaderWord.START_NS, start_ns)
        self._progress[:, ProgressColumn.ARRIVED_NS] = start_ns + self._due_ns
        blocked_ns = 0
        while (code := self._enter(ring, back)) != DriverExit.DONE:
            if ring.word(HeaderWord.STOP):
                raise Interrupted("stopped while requests were under way")
            before_ns = time.monotonic_ns()
            if code == DriverExit.BLOCKED:
                if not ring.await_room(int(self._settings[DriverSetting.SPIN_NS])):
                    time.sleep(self._sleep_s)
                blocked_ns += time.monotonic_ns() - before_ns
            else:
                wake_s = (int(self._state[DriverWord.WAKE_NS]) - before_ns) * 1e-9
                time.sleep(max(0.0, min(self._sleep_s, wake_s)))
        ring.close()
        progress = self._progress
        issue_ns, done_ns, ids = self._tokens
        late_ns = progress[:, ProgressColumn.NOTICED_NS] - progress[:, ProgressColumn.ARRIVED_NS]
        arrived_ns = progress[:, ProgressColumn.ARRIVED_NS] - start_ns
        tokens = Tokens(arrived_ns, late_ns, issue_ns - start_ns, done_ns - start_ns, ids)
        return tokens, int(self._state[DriverWord.SEQ]), blocked_ns

    def _enter(self, ring: Ring, back: Ring) -> int:
        return int(drive(ring.arrays, back.arrays, self._arrays, self._run))


def _settings_of(stream: ChainStream, requests: int, schedule: Schedule, spin_ns: int) -> Table:
    """The words of DriverSetting."""
    settings = np.zeros(len(DriverSetting), np.int64)
    settings[DriverSetting.REQUESTS], settings[DriverSetting.REPLICAS] = requests, stream.replicas
    settings[DriverSetting.DECODE_KIND], settings[DriverSetting.CHUNK_KIND] = stream.decode_kind, stream.chunk_kind
    settings[DriverSetting.CHUNK_UNITS] = (stream.chunk_tokens or 0) * stream.units(stream.hidden)
    settings[DriverSetting.SPIN_NS], settings[DriverSetting.CONTINUOUS] = spin_ns, int(schedule.continuous)
    settings[DriverSetting.BUDGET], settings[DriverSetting.MOST_RUNNING] = schedule.budget_tokens, schedule.most_running
    settings[DriverSetting.AHEAD] = schedule.ahead
    return settings


def shortened(table: Table) -> Table:
    """Return a few requests with a few steps each, all due at once: what a warm-up run needs to pass every path."""
    short = table[:REHEARSED].copy()
    short[:, ch.DUE_NS], short[:, ch.AFTER] = 0, -1
    short[:, ch.DECODES] = np.minimum(short[:, ch.DECODES], 2)
    return short
