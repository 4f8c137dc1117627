"""The step batcher: it collects whole steps in one bucket per kind of step, and yields a bucket's steps as a batch.

The batcher gathers a request's records until the last record of the step has come. Then it puts the step into the
bucket of its kind. Steps of one kind have the same number of rows, and their first commands have the same shape. A
batch is one array, row by row. Within a row the requests are in ascending order. A bucket is flushed for the reasons
that `FlushReason` lists.

A request's next step may begin when the batcher knows that the previous step has ended (`landed`). With `ahead` it may
begin as soon as the previous step was flushed, and only its last record waits for that end.

A request is live from the first record of its first step, or from the start if it is expected, to the end of its last
step. A stall begins when the batcher holds a step of every live request: no other step can come before one of these is
launched. If a continuous scheduler issues steps in rounds, a stall begins with the last record of a round. At a stall
all buckets are flushed, the largest first.

The batcher reads no clock: callers pass the time. The compiled code is in `step_buckets` and `step_policy`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import REASONS, FlushReason, FlushRules, StepBatch
from launchopt.batching.buckets import NEVER_IDLE
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
from launchopt.streams.chains.chain_table import NO_PROMPT, ChainColumn

# Kinds that requests share: whole chunks of prompts, output tokens, and the largest number of steps together.
SHARED_KINDS = 3
# Kinds that each request may have for itself: the last chunk of its prompt, and its last steps together.
KINDS_A_REQUEST = 2
WRONG = {
    KindCode.UNKNOWN_REQUEST: "is of request {request}, which the workload did not announce",
    KindCode.OUT_OF_TURN: (
        "begins or ends a step of request {request} out of turn: the previous step has not ended, or was the last"
    ),
    KindCode.TOO_LONG: "of request {request} does not end its step, which is longer than announced",
    KindCode.TOO_MANY_KINDS: "of request {request} ends a step of one kind too many",
}


def steps_of_requests(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of steps of each request, [requests]. table: [requests, ChainColumn], of any run."""
    has_rest = table[:, ChainColumn.REST_KIND] != NO_PROMPT
    steps: NDArray[np.int64] = table[:, ChainColumn.FULL_CHUNKS] + has_rest + table[:, ChainColumn.DECODES]
    return steps


class StepBatcher:
    """One bucket per kind of step. A bucket is full at `limit` steps, or at one step of every request.

    steps: [requests], the number of steps of each request (`steps_of_requests`). rows: records of the longest step, or
    of the most steps of a request that are issued together. kinds: largest number of kinds; None: the shared kinds, and
    KINDS_A_REQUEST more per request. expected: [requests], whether a request is due at the start, so that the first
    steps wait for each other. ahead: all records of a step but the last may come once the previous step was flushed;
    not for steps in rounds.
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
        kinds = KINDS_A_REQUEST * requests + SHARED_KINDS if kinds is None else kinds
        limit = min(limit, requests)
        self._store = np.full((requests * rows, WORDS), 0, np.uint64)  # np.full writes it, so that its pages are mapped
        self._steps = np.zeros((requests, len(StepColumn)), np.int64)
        self._steps[:, StepColumn.TOTAL] = steps
        self._table = np.zeros((1 << (2 * kinds).bit_length(), len(KindKey)), np.uint64)
        self._kinds = np.zeros((kinds, len(KindColumn)), np.int64)
        self._out = np.full((limit * rows, WORDS), 0, np.uint64)
        self._counts = counts = np.zeros(len(StepWord), np.int64)
        counts[[StepWord.OLDEST, StepWord.NEWEST]] = KindCode.NONE
        counts[StepWord.LIMIT], counts[StepWord.TIMEOUT_NS] = limit, rules.timeout_ns
        counts[StepWord.IDLE_NS] = NEVER_IDLE if rules.idle_ns is None else rules.idle_ns
        # If one batch may hold a step of every request, `store` is in the order of a batch and need not be copied.
        # Otherwise the records of a step are neighbours.
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
        """Number of steps in buckets."""
        return int(self._counts[StepWord.HELD])

    @property
    def live(self) -> int:
        """Number of requests that have begun, and whose last step has not ended."""
        return int(self._counts[StepWord.LIVE])

    @property
    def partial(self) -> int:
        """Number of requests whose arriving step lacks its last record."""
        return int(self._counts[StepWord.PARTIAL])

    def take(self, records: Records, now_ns: int, is_drained: bool = False) -> Iterator[StepBatch]:
        """Take `records`, and yield every batch that must be flushed now. `records` may be empty.

        is_drained: no record will come after these. Exhaust the iterator before the next call. Raise RunError for a
        record that cannot be taken.
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
        """Return the batch flushed last, of `size` requests and `rows` rows."""
        self.flushes[reason] += 1
        words = self._store if size == len(self._steps) else self._out
        return StepBatch(words[: size * rows], REASONS[reason], size, rows)

    def landed(self, request: int) -> None:
        """Record that the flushed step of a request has ended."""
        land_step(request, self.arrays)

    @staticmethod
    def wrong(code: int, record: np.void) -> RunError:
        """Return the error for a record that cannot be taken."""
        return RunError(f"command {record['seq']} {WRONG[KindCode(code)].format(request=record['request'])}")
