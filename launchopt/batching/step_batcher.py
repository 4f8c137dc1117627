"""Whole steps in, batches of them out: steps of one kind leave together, when full, due, stalled, idle or at the end.

The batcher gathers a request's records until the last record of its step has come. Then it holds the step in the bucket
of its kind: steps of one kind have as many rows, and their first commands have one shape. A batch is one array: row by
row of the template, in each row the requests in ascending order.

A request's next step may begin when the request has been notified of the end of its step (`landed`). With `ahead` it
may begin as soon as its step has left. Then only the last record waits for the notification.

A request is live from the first record of its first step to the end of its last. There is a stall when the steps of all
live requests are held: no other step can come before one of them has left. Then all buckets leave, the largest first.
Where requests go on in rounds (a continuous scheduler) there is a stall when the last record of the round has come.

The batcher has no clock: its callers say what time it is. `step_buckets` does the work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import REASONS, Batch, FlushRules
from launchopt.batching.buckets import NEVER_IDLE, FlushReason
from launchopt.batching.step_buckets import (
    KindCode,
    KindColumn,
    KindKey,
    StepArrays,
    StepColumn,
    StepWord,
)
from launchopt.batching.step_policy import land_step, let_go, next_kind, stamp_left
from launchopt.command import WORDS, Records, as_words
from launchopt.errors import RunError
from launchopt.workloads import chain as ch

NO_SHAPE = -1  # a batch of steps has many
SHARED_KINDS = 2  # chunks of prompts, and output tokens; beside them each request has a prompt's end of its own length
WRONG = {
    KindCode.UNKNOWN_REQUEST: "is of request {request}, which the workload did not announce",
    KindCode.OUT_OF_TURN: (
        "begins or ends a step of request {request} out of turn: one before is not done, or was the last"
    ),
    KindCode.TOO_LONG: "of request {request} does not end its step, which is longer than announced",
    KindCode.TOO_MANY_KINDS: "of request {request} ends a step of one kind too many",
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
    """Return how many steps each request has, [requests], of a stream's table or of the one a warm-up run drives."""
    steps: NDArray[np.int64] = (
        table[:, ch.FULL_CHUNKS] + (table[:, ch.REST_KIND] != ch.NO_PROMPT) + table[:, ch.DECODES]
    )
    return steps


class StepBatcher:
    """A bucket a kind, which is full at `limit` steps, or at a step of every request.

    steps: how many steps each request has, [requests] (`steps_of_requests`). rows: of the longest step. kinds: most
    kinds of steps, None where only the ends of prompts differ. expected: which requests come at once, [requests], so
    that their first steps wait for each other. ahead: all records of a step but the last may come when the one before
    it has left; not where requests go on in rounds.
    """

    def __init__(
        self,
        steps: NDArray[np.int64],
        rows: int,
        limit: int,
        rules: FlushRules,
        *,
        kinds: int | None = None,
        expected: NDArray[np.bool_] | None = None,
        ahead: bool = False,
    ) -> None:
        requests = len(steps)
        kinds, limit = requests + SHARED_KINDS if kinds is None else kinds, min(limit, requests)
        self._store = np.full((requests * rows, WORDS), 0, np.uint64)  # written to, so that the memory is there
        self._steps = np.zeros((requests, len(StepColumn)), np.int64)
        self._steps[:, StepColumn.TOTAL] = steps
        self._table = np.zeros((1 << (2 * kinds).bit_length(), len(KindKey)), np.uint64)
        self._kinds = np.zeros((kinds, len(KindColumn)), np.int64)
        self._out = np.full((limit * rows, WORDS), 0, np.uint64)
        self._counts = counts = np.zeros(len(StepWord), np.int64)
        counts[[StepWord.OLDEST, StepWord.NEWEST]] = KindCode.NONE
        counts[StepWord.LIMIT], counts[StepWord.TIMEOUT_NS] = limit, rules.timeout_ns
        counts[StepWord.IDLE_NS] = NEVER_IDLE if rules.idle_ns is None else rules.idle_ns
        # Row by row where all may leave together: then `store` is the batch. Else a step's records are neighbours.
        strides = (1, requests) if limit == requests else (rows, 1)
        counts[StepWord.MOST_ROWS], counts[[StepWord.REQUEST_STRIDE, StepWord.ROW_STRIDE]] = rows, strides
        counts[StepWord.ON_STALL], counts[StepWord.IN_ROUNDS] = rules.on_stall, rules.in_rounds
        counts[StepWord.EARLY] = ahead
        if expected is not None:
            self._steps[:, StepColumn.EXPECTED] = expected
            counts[StepWord.LIVE] = np.count_nonzero(expected)
        members = np.zeros(limit, np.int64)
        self.arrays: StepArrays = (self._store, self._steps, self._table, self._kinds, self._out, members, counts)
        self.flushes, self.ahead = [0] * len(FlushReason), ahead

    @property
    def held(self) -> int:
        """Steps in buckets."""
        return int(self._counts[StepWord.HELD])

    @property
    def live(self) -> int:
        """Requests that have begun, and were not notified of the end of their last step."""
        return int(self._counts[StepWord.LIVE])

    @property
    def partial(self) -> int:
        """Requests of whose step some records are here, and not the last."""
        return int(self._counts[StepWord.PARTIAL])

    def take(self, records: Records, now_ns: int, is_drained: bool = False) -> Iterator[StepBatch]:
        """Take `records` (none: none are at hand), and yield every batch that is to leave now.

        is_drained: none will come after these. Exhaust the iterator before the next call.
        """
        words, start = as_words(records), 0
        while True:
            start, kind, reason = next_kind(words, start, now_ns, is_drained, self.arrays)
            if kind < KindCode.NONE:
                raise self.wrong(kind, records[start])
            if kind == KindCode.NONE:
                return
            size, rows = let_go(kind, self.arrays)
            stamp_left(size, rows, self.arrays)
            yield self.left(reason, size, rows)

    def left(self, reason: int, size: int, rows: int) -> StepBatch:
        """The batch of `size` requests and `rows` rows that left last."""
        self.flushes[reason] += 1
        words = self._store if size == len(self._steps) else self._out
        return StepBatch(words[: size * rows], REASONS[reason], size, rows)

    def landed(self, request: int) -> None:
        """Note that a request has been notified of the end of the step that left."""
        land_step(request, self.arrays)

    @staticmethod
    def wrong(code: int, record: np.void) -> RunError:
        """The error for a record that cannot be taken."""
        return RunError(f"command {record['seq']} {WRONG[KindCode(code)].format(request=record['request'])}")
