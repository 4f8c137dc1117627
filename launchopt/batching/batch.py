"""A batch: commands, or whole steps, that were flushed together. Also the reasons for a flush and its rules.

This module compiles nothing, so that a process that only plans a run can load it without Numba.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from launchopt.types import Words

SEVERAL = -1  # in place of a shape's index: the batch has commands or steps of several shapes


class FlushReason(enum.IntEnum):
    """Reasons why a bucket was flushed."""

    full = 0  # it held as many commands as its limit
    deadline = 1  # its oldest command has waited for the timeout
    idle = 2  # no command came for the idle time
    drain = 3  # the workload has ended
    stall = 4  # every waiting command waits for a command in a bucket, or a group of commands is complete


REASONS = tuple(FlushReason)  # REASONS[number]: compiled loops return numbers


@dataclass(frozen=True, slots=True)
class FlushRules:
    """Rules for flushing a bucket that is not full. Times in ns."""

    timeout_ns: int  # flush a bucket this long after its oldest command entered
    idle_ns: int | None = None  # flush a bucket this long after the last command came; None: no such limit
    on_stall: bool = True  # flush when every waiting command waits for a command in a bucket
    in_rounds: bool = False  # steps are issued in rounds: a stall is the end of a round
    has_groups: bool = False  # for independent commands: flush everything at the end of a group
    whole_steps: bool = False  # for a layer with experts: flush everything at the end of a step


WHOLE = FlushRules(1 << 60)  # only a full bucket is flushed, and what is left at the end
WHOLE_STEPS = FlushRules(1 << 60, whole_steps=True)  # the same, and what is held at the end of a step


class Batch:
    """Commands of one shape, or of several (SEVERAL), that were flushed together.

    `words` is a view of the batcher's store, [count, WORDS]. It is valid until the batcher next takes commands.
    """

    __slots__ = ("reason", "shape_index", "words")

    def __init__(self, shape_index: int, words: Words, reason: FlushReason) -> None:
        self.shape_index, self.words, self.reason = shape_index, words, reason

    def __len__(self) -> int:
        return len(self.words)


class StepBatch(Batch):
    """Steps of one kind that were flushed together: `rows` rows, each with one record of each of `size` requests.

    `words` is uint64 [rows x size, WORDS], valid until the batcher next takes records. Row i of the step is
    words[i * size : (i + 1) * size], with requests in ascending order.
    """

    __slots__ = ("rows", "size")

    def __init__(self, words: Words, reason: FlushReason, size: int, rows: int) -> None:
        # Not super().__init__, which would double the time.
        self.shape_index, self.words, self.reason = SEVERAL, words, reason
        self.size, self.rows = size, rows

    def step(self, number: int, rows: int) -> StepBatch:
        """Return a view of one of the steps that were issued together, each of `rows` rows, as a batch."""
        records = rows * self.size
        first = number * records
        return StepBatch(self.words[first : first + records], self.reason, self.size, rows)
