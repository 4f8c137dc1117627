"""Commands of a few shapes and requests, and a model of the batcher that keeps their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from launchopt.batching.batcher import Batch, Batcher
from launchopt.batching.buckets import FlushReason
from launchopt.batching.order import order_arrays
from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Records, ShapeKey

SHAPES = [ShapeKey(m, n, k, Dtype.fp16) for m, n, k in [(64, 1, 8), (64, 2, 8), (65, 1, 8), (1, 64, 8), (8, 1, 64)]]
REQUESTS = 8
Left = tuple[int, FlushReason, list[int]]  # of a batch: its shape, why it left, the numbers of its commands


@dataclass(frozen=True)
class Command:
    request: int
    shape: int
    ends_step: bool = False


def records_of(commands: Sequence[Command], first: int = 0) -> Records:
    """Numbered from `first`."""
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
    limits: Sequence[int], timeout_ns: int, room: int, violated: bool = False, requests: int = REQUESTS
) -> Batcher:
    batcher = Batcher(SHAPES[: len(limits)], limits, timeout_ns, requests=requests)
    batcher.order = order_arrays(requests, room=room, violated=violated)
    return batcher


class Model:
    """The rules in dictionaries and lists. Where several buckets qualify, `choose` says which was taken."""

    def __init__(self, commands: Sequence[Command], limits: list[int], timeout_ns: int, room: int, violated: bool):
        self.commands, self.limits, self.timeout_ns = commands, limits, timeout_ns
        self.room, self.violated = room, violated
        self.buckets: dict[int, list[int]] = {}  # shape -> commands
        self.opened: dict[int, int] = {}
        self.waiting: dict[int, list[int]] = {}  # request -> commands
        self.ready: list[int] = []
        self.held: set[int] = set()
        self.out: list[Left] = []

    @property
    def waits(self) -> int:
        return sum(map(len, self.waiting.values()))

    @property
    def stalled(self) -> bool:
        ends = any(self.commands[seq].ends_step for bucket in self.buckets.values() for seq in bucket)
        return (self.waits > 0 or ends) and not self.ready

    @property
    def oldest(self) -> list[int]:
        return [shape for shape in self.buckets if self.opened[shape] == min(self.opened.values())]

    @property
    def largest(self) -> list[int]:
        """Of the largest buckets those opened first."""
        sizes = {shape: len(bucket) for shape, bucket in self.buckets.items()}
        best = [shape for shape, size in sizes.items() if size == max(sizes.values())]
        return [shape for shape in best if self.opened[shape] == min(self.opened[other] for other in best)]

    def take(self, shape: int, reason: FlushReason) -> None:
        commands = self.buckets.pop(shape)
        del self.opened[shape]
        if not self.violated:
            self.ready += [self.commands[seq].request for seq in commands]
        self.out.append((shape, reason, commands))

    def enter(self, seq: int, now_ns: int) -> None:
        shape = self.commands[seq].shape
        self.opened.setdefault(shape, now_ns)
        self.buckets.setdefault(shape, []).append(seq)
        if len(self.buckets[shape]) == self.limits[shape]:
            self.take(shape, FlushReason.full)

    def go_on(self, now_ns: int) -> None:
        while self.ready:
            request = self.ready.pop(0)
            if self.waiting.get(request):
                self.enter(self.waiting[request].pop(0), now_ns)
            else:
                self.held.discard(request)

    def add(self, numbers: Iterable[int], now_ns: int, choose: Callable[[int], int]) -> None:
        self.go_on(now_ns)
        for seq in numbers:
            request = self.commands[seq].request
            while request in self.held and self.waits == self.room:
                shape = choose(len(self.out))
                assert shape in self.largest
                self.take(shape, FlushReason.stall)
                self.go_on(now_ns)
            if request in self.held:
                self.waiting.setdefault(request, []).append(seq)
                continue
            if not self.violated:
                self.held.add(request)
            self.enter(seq, now_ns)
            self.go_on(now_ns)
