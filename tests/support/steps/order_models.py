"""Commands of a few shapes and requests, and a model of the batcher that keeps their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from launchopt.batching.batch import Batch, FlushReason, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.batching.buckets import Buckets
from launchopt.batching.order import order_arrays
from launchopt.batching.policy import next_due_ns
from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Records, ShapeKey

SHAPES = [ShapeKey(m, n, k, Dtype.fp16) for m, n, k in [(64, 1, 8), (64, 2, 8), (65, 1, 8), (1, 64, 8), (8, 1, 64)]]
REQUESTS = 8
FAR_NS = 1 << 62
Left = tuple[int, FlushReason, list[int]]  # a flushed batch: shape, reason, numbers of its commands


@dataclass(frozen=True)
class Command:
    request: int
    shape: int
    ends_step: bool = False


def records_of(commands: Sequence[Command], first: int = 0) -> Records:
    """Return the records of commands, numbered from `first`."""
    records = np.zeros(len(commands), COMMAND_DTYPE)
    for record, command in zip(records, commands, strict=True):
        shape = SHAPES[command.shape]
        record["m"], record["n"], record["k"], record["dtype"] = shape.m, shape.n, shape.k, shape.dtype
        record["request"] = command.request
        record["flags"] = Flag.STEP_END if command.ends_step else 0
    records["seq"] = first + np.arange(len(records))
    return records


NOTHING = records_of([])


def seqs(batch: Batch) -> list[int]:
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    return list(records["seq"].tolist())


def left(batch: Batch) -> Left:
    return batch.shape_index, batch.reason, seqs(batch)


def batcher_of(
    limits: Sequence[int],
    rules: FlushRules | int,
    capacity: int,
    violated: bool = False,
    requests: int = REQUESTS,
) -> Batcher:
    """Return a batcher that keeps the order of requests. rules: the rules, or only the timeout in ns."""
    rules = rules if isinstance(rules, FlushRules) else FlushRules(rules)
    return Batcher(SHAPES[: len(limits)], limits, rules, order_arrays(requests, capacity=capacity, violated=violated))


def due_ns(batcher: Batcher) -> int | None:
    """Return the time at which a bucket is flushed if no command comes; None while all buckets are empty."""
    due = int(next_due_ns(FAR_NS, Buckets(*batcher.arrays)))
    return None if due == FAR_NS else due


class Model:
    """A model of the batcher's rules, of dictionaries and lists. If several buckets may be flushed, `choose` picks one.

    capacity: commands that the pool can hold; None: commands are independent of each other.
    """

    def __init__(
        self, commands: Sequence[Command], limits: list[int], rules: FlushRules, capacity: int | None, violated: bool
    ) -> None:
        self.commands, self.limits, self.rules = commands, limits, rules
        self.capacity, self.is_free = capacity, violated or capacity is None
        self.buckets: dict[int, list[int]] = {}  # shape -> commands
        self.opened: dict[int, int] = {}
        self.waiting: dict[int, list[int]] = {}  # request -> commands
        self.ready: list[int] = []
        self.held: set[int] = set()
        self.out: list[Left] = []
        self.last_ns = 0

    @property
    def waits(self) -> int:
        return sum(map(len, self.waiting.values()))

    @property
    def stalled(self) -> bool:
        ends = any(self.commands[seq].ends_step for bucket in self.buckets.values() for seq in bucket)
        return self.capacity is not None and (self.waits > 0 or ends) and not self.ready

    @property
    def oldest(self) -> list[int]:
        return [shape for shape in self.buckets if self.opened[shape] == min(self.opened.values())]

    @property
    def largest(self) -> list[int]:
        """Return the buckets that were opened first among the largest ones."""
        sizes = {shape: len(bucket) for shape, bucket in self.buckets.items()}
        best = [shape for shape, size in sizes.items() if size == max(sizes.values())]
        return [shape for shape in best if self.opened[shape] == min(self.opened[other] for other in best)]

    @property
    def due_ns(self) -> int | None:
        if not self.opened:
            return None
        due_ns = min(self.opened.values()) + self.rules.timeout_ns
        return due_ns if self.rules.idle_ns is None else min(due_ns, self.last_ns + self.rules.idle_ns)

    def leave(self, shape: int, reason: FlushReason, now_ns: int) -> None:
        commands = self.buckets.pop(shape)
        del self.opened[shape]
        if not self.is_free:
            self.ready += [self.commands[seq].request for seq in commands]
        self.out.append((shape, reason, commands))
        while self.ready:
            request = self.ready.pop(0)
            if self.waiting.get(request):
                self.enter(self.waiting[request].pop(0), now_ns)
            else:
                self.held.discard(request)

    def enter(self, seq: int, now_ns: int) -> None:
        shape = self.commands[seq].shape
        self.opened.setdefault(shape, now_ns)
        self.buckets.setdefault(shape, []).append(seq)
        if len(self.buckets[shape]) == self.limits[shape]:
            self.leave(shape, FlushReason.full, now_ns)

    def next_one(self, now_ns: int, is_drained: bool, is_idle: bool) -> tuple[list[int], FlushReason] | None:
        """Return the buckets that may be flushed now although they are not full, and the reason."""
        if not self.buckets:
            return None
        if is_idle and is_drained:
            return self.oldest, FlushReason.drain
        if min(self.opened.values()) + self.rules.timeout_ns <= now_ns:
            return self.oldest, FlushReason.deadline
        if is_idle and self.rules.on_stall and self.stalled:
            return self.largest, FlushReason.stall
        if is_idle and self.rules.idle_ns is not None and now_ns - self.last_ns >= self.rules.idle_ns:
            return self.oldest, FlushReason.idle
        return None

    def take(self, numbers: Sequence[int], now_ns: int, is_drained: bool, choose: Callable[[int], int]) -> None:
        """Take commands `numbers`, as `Batcher.take` does. choose: returns the bucket that batch number i came from."""
        is_idle = not numbers
        if numbers:
            self.last_ns = now_ns

        def leave(allowed: list[int], reason: FlushReason) -> None:
            shape = choose(len(self.out))
            assert shape in allowed
            self.leave(shape, reason, now_ns)

        for seq in numbers:
            request = self.commands[seq].request
            while request in self.held and self.waits == self.capacity:  # a flush frees space in the pool
                leave(*(self.next_one(now_ns, is_drained, False) or (self.largest, FlushReason.stall)))
            if request in self.held:
                self.waiting.setdefault(request, []).append(seq)
                continue
            if not self.is_free:
                self.held.add(request)
            self.enter(seq, now_ns)
        while found := self.next_one(now_ns, is_drained, is_idle):
            leave(*found)
