"""The driver: the producer of workloads whose requests have steps. It decides when each step of a request is issued.

To issue a step, the driver pushes the records of its commands into the first ring, to the consumer. When the step has
ended on the device, the consumer notifies the driver through a second ring. A step is issued when its request has
arrived, the request's previous step has ended, and the scheduler selects it.

Arrivals follow a fixed schedule. The records of a request's first step carry the time at which the request was due. So
if the consumer falls behind, latency grows, and arrivals do not slow down.

Schedulers:
    none        a request's next step is issued as soon as its previous step has ended
    continuous  steps are issued in rounds. In each round every running request generates one token. Chunks of prompts
                get the rest of the `budget_tokens` columns, oldest request first. Requests join and end between rounds.
                A request whose prefix another request computes joins once that is done; a stream with such requests
                needs this scheduler

Steps ahead (`Schedule.ahead`, only with scheduler none): the records of a step do not depend on the previous token,
because the device feeds that token back itself. So while a step runs, the driver already pushes all records of the
request's next step but the last. It may do so once the consumer has flushed the running step
(`HeaderWord.STEPS_LEFT`). It pushes the last record when the running step has ended. Then only one record per request
has to pass through the ring between two tokens. If steps are issued together, it holds back the last record of these.

Steps together (`Schedule.together`): the driver issues several decode steps of a request at once, for a mode that
executes them in one launch. The last record of each of these steps but the last carries `Flag.GOES_ON`. A request's
first step is issued alone, since its input is not where the input of later steps is. In rounds, every request of the
round has the same number of steps.

The loop is compiled (`driver_loop`). Python sleeps when the loop has no work, and checks whether to stop. Times are
CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import time

import numpy as np

from launchopt.command import WORDS, as_words
from launchopt.errors import Interrupted
from launchopt.producing.continuous import DriverWord
from launchopt.producing.driver_loop import DriverExit, drive
from launchopt.producing.prepared_steps import MOST_PLACES, DriverSetting, ProgressColumn, StreamFields, ahead_of
from launchopt.producing.production import RunKind, Schedule, Tokens
from launchopt.producing.request_steps import DriverFields, IssueWord, TimeArrays
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord, RingArrays
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.types import Table

WARM_UP_REQUESTS = 8  # requests of a warm-up run: enough that scattered inputs are copied
WARM_UP_TOKENS = 3  # of each: a mode may launch the first one alone, and several later ones together
# Most tokens of an audit run: generated, and with prompts. It has whole requests, and at least one.
AUDITED_TOKENS, AUDITED_COLUMNS = 4096, 1 << 14
UNKNOWN = 1 << 62  # number of requests while more may come
Entry = tuple[RingArrays, RingArrays, StreamFields, DriverFields]  # the arguments of `drive`


class Driver:
    """One run of a workload, with the requests of `table_of`.

    spin_us: length of the spin before each sleep, which lasts `sleep_us`.
    """

    def __init__(
        self,
        stream: ChainStream,
        schedule: Schedule,
        spin_us: float,
        sleep_us: float,
        kind: RunKind = RunKind.RUN,
    ) -> None:
        assert schedule.continuous or stream.prefixes is None
        self._stream, self._sleep_s = stream, sleep_us * 1e-6
        table = table_of(stream, kind)
        self._due_ns, requests = table[:, ChainColumn.DUE_NS], len(table)
        self._settings = _settings_of(stream, requests, schedule, int(spin_us * 1e3))
        template, stops = as_words(stream.template), np.asarray(stream.kind_stops, np.int64)
        origins = stream.a_from, stream.b_from, stream.c_from
        self._arrays: StreamFields = (self._settings, table, stops, template, stream.replica_moves, *origins)
        after, due = table[:, ChainColumn.AFTER], self._due_ns
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
        """Issue every step of every request, then close the ring.

        Return the tokens, the number of pushed commands, and the ns for which the ring was full. Raise Interrupted if
        the parent sets STOP.
        """
        start_ns, blocked_ns = time.monotonic_ns(), 0
        ring.set_word(HeaderWord.START_NS, start_ns)
        self.begin(start_ns)
        while (code := self._enter(ring, back)) != DriverExit.DONE:
            if ring.word(HeaderWord.STOP):
                raise Interrupted("stopped while requests were under way")
            before_ns = time.monotonic_ns()
            if code == DriverExit.BLOCKED:
                if not ring.await_free_slots(int(self._settings[DriverSetting.SPIN_NS])):
                    time.sleep(self._sleep_s)
                blocked_ns += time.monotonic_ns() - before_ns
            else:
                time.sleep(min(self._sleep_s, self.wake_s(before_ns)))
        ring.close()
        return self.tokens(start_ns), self.pushed, blocked_ns

    def begin(self, start_ns: int) -> None:
        """Begin the run at `start_ns`."""
        self._progress[:, ProgressColumn.ARRIVED_NS] = start_ns + self._due_ns

    def tokens(self, start_ns: int) -> Tokens:
        """Return the times and ids of the run that began at `start_ns`."""
        progress = self._progress
        issue_ns, done_ns, ids = self._tokens
        late_ns = progress[:, ProgressColumn.NOTICED_NS] - progress[:, ProgressColumn.ARRIVED_NS]
        arrived_ns = progress[:, ProgressColumn.ARRIVED_NS] - start_ns
        return Tokens(arrived_ns, late_ns, issue_ns - start_ns, done_ns - start_ns, ids)

    @property
    def pushed(self) -> int:
        """Commands pushed so far."""
        return int(self._state[DriverWord.SEQ])

    def _enter(self, ring: Ring, back: Ring) -> int:
        return int(drive(*self.entry(ring.arrays, back.arrays)))

    def entry(self, ring: RingArrays, back: RingArrays) -> Entry:
        """Return the arguments of the compiled loop."""
        return ring, back, self._arrays, self._run

    def wake_s(self, now_ns: int) -> float:
        """Return the time until the next request is due, s; 0 if it is due."""
        return max(0.0, (int(self._state[DriverWord.WAKE_NS]) - now_ns) * 1e-9)


class RoutedDriver(Driver):
    """A driver that issues only the requests that it is given, one after the other, in order of arrival."""

    def __init__(
        self, stream: ChainStream, schedule: Schedule, spin_us: float, sleep_us: float, kind: RunKind = RunKind.RUN
    ) -> None:
        super().__init__(stream, schedule, spin_us, sleep_us, kind)
        self.given, self._order, self._expected = 0, self._run[0].copy(), 0
        self._settings[DriverSetting.REQUESTS] = UNKNOWN
        self._run = (self._order[:0], *self._run[1:])

    def give(self, request: int, size: int) -> None:
        """Add a request. size: the requests that follow it, and itself."""
        self._order[self.given] = request
        self.given, self._expected = self.given + 1, self._expected + size
        self._run = (self._order[: self.given], *self._run[1:])

    def give_no_more(self) -> None:
        """End the run when all requests so far have ended."""
        self._settings[DriverSetting.REQUESTS] = self._expected

    @property
    def outstanding(self) -> int:
        """Requests that were given, or follow these, and have not ended."""
        return self._expected - int(self._state[DriverWord.FINISHED])

    @property
    def has_ended(self) -> bool:
        """Whether every request has ended, and none will come."""
        return bool(self._state[DriverWord.FINISHED] == self._settings[DriverSetting.REQUESTS])


def load_loop(stream: ChainStream, ring: Ring, back: Ring) -> None:
    """Load the compiled loop, with a driver that has no request. On a new machine this compiles for seconds."""
    driver = RoutedDriver(stream, Schedule(continuous=True), 0.0, 0.0, RunKind.WARM_UP)
    driver.give_no_more()
    drive(*driver.entry(ring.arrays, back.arrays))


def _settings_of(stream: ChainStream, requests: int, schedule: Schedule, spin_ns: int) -> Table:
    """Return the words of DriverSetting."""
    settings = np.zeros(len(DriverSetting), np.int64)
    settings[DriverSetting.REQUESTS], settings[DriverSetting.REPLICAS] = requests, stream.replicas
    settings[DriverSetting.DECODE_KIND], settings[DriverSetting.CHUNK_KIND] = stream.decode_kind, stream.chunk_kind
    settings[DriverSetting.CHUNK_UNITS] = (stream.chunk_tokens or 0) * stream.units(stream.hidden)
    settings[DriverSetting.SPIN_NS], settings[DriverSetting.CONTINUOUS] = spin_ns, int(schedule.continuous)
    settings[DriverSetting.BUDGET], settings[DriverSetting.MOST_RUNNING] = schedule.budget_tokens, schedule.most_running
    settings[DriverSetting.AHEAD], settings[DriverSetting.TOGETHER] = schedule.ahead, schedule.together
    return settings


def table_of(stream: ChainStream, kind: RunKind) -> Table:
    """Return the table of the requests of a run.

    A warm-up run has a few requests with a few steps each, and an audit run has the first requests, up to
    AUDITED_TOKENS and AUDITED_COLUMNS; in both all requests are due at once.
    """
    if kind is RunKind.RUN:
        return stream.table
    if kind is RunKind.AUDIT:
        sizes = ((stream.outputs, AUDITED_TOKENS), (stream.outputs + stream.asked.context_tokens, AUDITED_COLUMNS))
        count = max(1, min(int(np.searchsorted(np.cumsum(each), most, "right")) for each, most in sizes))
        first = stream.table[:count].copy()
        after = first[:, ChainColumn.AFTER]
        first[:, ChainColumn.DUE_NS], first[:, ChainColumn.AFTER] = 0, np.where(after < count, after, -1)
        return first
    short = stream.table[:WARM_UP_REQUESTS].copy()
    short[:, ChainColumn.DUE_NS], short[:, ChainColumn.AFTER] = 0, -1
    short[:, ChainColumn.DECODES] = np.minimum(short[:, ChainColumn.DECODES], WARM_UP_TOKENS)
    return short
