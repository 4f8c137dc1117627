"""Whole steps in, batches of them out: steps of one kind leave together, when full, due, stalled, idle or at the end.

In: popped records, those of a request in order, those of several mixed in any way. They gather until the record that
ends the step has come; then the step is held in the bucket of its kind (rows, and what the first of them asks for).
Out: the records of a bucket in one array, row by row of the template, in each row the requests in ascending order.
`landed` says that a request was told of the end of its step; only then may its next begin. With `ahead` it may begin as
soon as its step has left, and only the last record waits: what came early is here, and the step is complete, so that it
can be held and leave, when that has come.

A stall is when every live request is held, since nobody else can come before somebody left; then all buckets leave,
the largest first. Live is who has begun a first step and was not told of the end of the last. Where requests go on in
rounds (a continuous scheduler) nobody comes again before the whole round was told of: there a stall is when the round's
last record has come, which says so itself (ROUND_END).

Pure, as `batcher`: it has no clock and starts nothing. The work is done in `step_buckets`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launchopt.batching import step_buckets as sb
from launchopt.batching.batcher import Batch
from launchopt.batching.buckets import FlushReason
from launchopt.command import WORDS, Records, as_words
from launchopt.errors import RunError
from launchopt.workloads import chain as ch

NO_SHAPE = -1  # a batch of steps has many
REASONS = tuple(FlushReason)  # by number
SHARED_KINDS = 2  # chunks of prompts, and output tokens; beside them each request has a prompt's end of its own length
WRONG = {
    sb.UNKNOWN_REQUEST: "is of request {request}, which the workload did not announce",
    sb.OUT_OF_TURN: "begins or ends a step of request {request} out of turn: one before is not done, or was the last",
    sb.TOO_LONG: "of request {request} does not end its step, which is longer than announced",
    sb.TOO_MANY_KINDS: "of request {request} ends a step of one kind too many",
}


class StepBatch(Batch):
    """Steps of one kind that leave together: `size` requests, each with a record in each of `rows` rows.

    `words`: uint64 [rows x size, WORDS], valid until the batcher is next given records. Row i of the template is
    words[i * size : (i + 1) * size], requests ascending.
    """

    __slots__ = ("rows", "size")

    def __init__(self, words: NDArray[np.uint64], reason: FlushReason, size: int, rows: int) -> None:
        self.shape_index, self.words, self.reason = NO_SHAPE, words, reason  # a call of super() takes as long again
        self.size, self.rows = size, rows


def steps_of_requests(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many steps each request has, of a stream's table or the one that a rehearsal drives."""
    steps: NDArray[np.int64] = (
        table[:, ch.FULL_CHUNKS] + (table[:, ch.REST_KIND] != ch.NO_PROMPT) + table[:, ch.DECODES]
    )
    return steps


class StepBatcher:
    """A bucket a kind, flushed at `limit` steps (or all requests), or `timeout_ns` after the first was held.

    steps: how many each request has (`steps_of_requests`). rows: of the longest step. idle_ns: flush when nothing came
    for so long, None for never. kinds: most kinds of steps, None where only the ends of prompts differ. expected:
    which requests come at once, so that the first steps wait for each other; None: live is who has begun. ahead: all
    records of a step but the last may come when the one before it has left; not where requests go on in rounds.
    """

    def __init__(
        self,
        steps: NDArray[np.int64],
        rows: int,
        limit: int,
        timeout_ns: int,
        *,
        idle_ns: int | None = None,
        on_stall: bool = True,
        in_rounds: bool = False,
        kinds: int | None = None,
        expected: NDArray[np.bool_] | None = None,
        ahead: bool = False,
    ) -> None:
        requests = len(steps)
        kinds, limit = requests + SHARED_KINDS if kinds is None else kinds, min(limit, requests)
        self._store = np.full((requests * rows, WORDS), 0, np.uint64)  # written to, so that the memory is there
        self._steps = np.zeros((requests, sb.STEP_COLUMNS), np.int64)
        self._steps[:, sb.TOTAL] = steps
        self._table = np.zeros((1 << (2 * kinds).bit_length(), 4), np.uint64)
        self._kinds = np.zeros((kinds, sb.KIND_COLUMNS), np.int64)
        self._out = np.full((limit * rows, WORDS), 0, np.uint64)
        self._counts = np.zeros(sb.COUNT_WORDS, np.int64)
        self._counts[[sb.OLDEST, sb.NEWEST]] = sb.NO_KIND
        self._counts[sb.LIMIT], self._counts[sb.TIMEOUT_NS] = limit, timeout_ns
        self._counts[sb.IDLE_NS] = sb.NEVER if idle_ns is None else idle_ns
        # Row by row where all may leave together: then that is a batch as it is. Else a step's records are neighbours.
        self._counts[sb.MOST_ROWS] = rows
        self._counts[[sb.REQUEST_STEP, sb.ROW_STEP]] = (1, requests) if limit == requests else (rows, 1)
        self._counts[sb.ON_STALL], self._counts[sb.IN_ROUNDS], self._counts[sb.EARLY] = on_stall, in_rounds, ahead
        if expected is not None:
            self._steps[:, sb.EXPECTED] = expected
            self._counts[sb.LIVE] = np.count_nonzero(expected)
        members = np.zeros(limit, np.int64)
        self.arrays: sb.StepArrays = (
            *(self._store, self._steps, self._table, self._kinds),
            *(self._out, members, self._counts),
        )
        self.flushes, self.ahead = [0] * len(FlushReason), ahead

    @property
    def held(self) -> int:
        """Steps in buckets."""
        return int(self._counts[sb.HELD])

    @property
    def live(self) -> int:
        """Requests that have begun, and were not told of the end of their last step."""
        return int(self._counts[sb.LIVE])

    @property
    def partial(self) -> int:
        """Requests of whose step some records are here, and not the last."""
        return int(self._counts[sb.PARTIAL])

    def take(self, records: Records, now_ns: int, is_drained: bool = False) -> Iterator[StepBatch]:
        """Take `records` (none: nothing is at hand), yielding every batch that is to leave now.

        is_drained: none will come after these. Exhaust the iterator before the next call.
        """
        words, start = as_words(records), 0
        while True:
            start, kind, reason = sb.next_kind(words, start, now_ns, is_drained, self.arrays)
            if kind < sb.NO_KIND:
                raise self.wrong(kind, records[start])
            if kind == sb.NO_KIND:
                return
            size, rows = sb.let_go(kind, self.arrays)
            sb.stamp_left(size, rows, self.arrays)
            yield self.left(reason, size, rows)

    def left(self, reason: int, size: int, rows: int) -> StepBatch:
        """The batch that `let_go` left."""
        self.flushes[reason] += 1
        words = self._store if size == len(self._steps) else self._out
        return StepBatch(words[: size * rows], REASONS[reason], size, rows)

    def landed(self, request: int) -> None:
        """A request was told of the end of the step that left."""
        sb.land_step(request, self.arrays)

    @staticmethod
    def wrong(code: int, record: np.void) -> RunError:
        """The error for a record that cannot be taken."""
        return RunError(f"command {record['seq']} {WRONG[code].format(request=record['request'])}")
