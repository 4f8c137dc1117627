"""Steps of a few kinds, a model of the step batcher, a driver that issues steps, and a check of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from launchopt.batching.batch import FlushReason, StepBatch
from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Op, Records

# Rows of the kind, and (m, n, k, op, dtype) of its first row. Each kind differs from another kind in one of these.
KINDS = [
    (1, (64, 1, 8, Op.GEMM, Dtype.fp16)),
    (3, (64, 1, 8, Op.GEMM, Dtype.fp16)),
    (3, (64, 2, 8, Op.GEMM, Dtype.fp16)),
    (3, (8, 1, 64, Op.GEMM, Dtype.fp16)),
    (3, (64, 1, 8, Op.SLOT_MAP, Dtype.fp16)),
    (3, (64, 1, 8, Op.GEMM, Dtype.bf16)),
    (7, (64, 1, 8, Op.GEMM, Dtype.fp16)),
]
LONGEST = max(rows for rows, _ in KINDS)
NEVER_NS = 1 << 60
ROUND_END = int(Flag.ROUND_END)
Left = tuple[int, FlushReason, list[int]]  # a flushed batch: kind, reason, requests


def step_of(request: int, kind: int, first: int = 0, number: int = 0, flags: int = 0) -> Records:
    """Return the records of step `number` of a request, numbered from `first`. Later rows differ from the first."""
    rows, (m, n, k, op, dtype) = KINDS[kind]
    records = np.zeros(rows, COMMAND_DTYPE)
    records["seq"], records["request"] = first + np.arange(rows), request
    records["m"], records["n"], records["k"], records["op"], records["dtype"] = m, n, k, op, dtype
    records["m"][1:] = 100 + np.arange(1, rows)
    records["step"], records["slot_c"] = number * LONGEST + np.arange(rows), 7 * first + np.arange(rows)
    records["flags"][-1] = int(Flag.STEP_END) | flags
    return records


def steps(*of: tuple[int, int]) -> Records:
    """Return the records of (request, kind) steps, one whole step after another."""
    return np.concatenate([step_of(request, kind, number=number) for number, (request, kind) in enumerate(of)])


def records_of(batch: StepBatch) -> Records:
    """Return the records of a batch, [rows, size]."""
    records: Records = batch.words.copy().reshape(-1).view(COMMAND_DTYPE).reshape(batch.rows, batch.size)
    return records


def kind_of(batch: StepBatch) -> int:
    first = records_of(batch)[0, 0]
    return KINDS.index((batch.rows, tuple(first[["m", "n", "k", "op", "dtype"]].tolist())))


def left(batch: StepBatch) -> Left:
    return kind_of(batch), batch.reason, records_of(batch)[0]["request"].tolist()


NOTHING = np.zeros(0, COMMAND_DTYPE)


@dataclass
class Model:
    """A model of the step batcher's rules, of dictionaries and lists."""

    totals: list[int]
    limit: int
    timeout_ns: int
    idle_ns: int | None
    on_stall: bool
    in_rounds: bool
    buckets: dict[int, list[int]] = field(default_factory=dict)  # kind -> requests; the first is the oldest
    opened: dict[int, int] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    partial: set[int] = field(default_factory=set)
    landed: dict[int, int] = field(default_factory=dict)
    round_ended: bool = False
    last_ns: int = 0
    out: list[Left] = field(default_factory=list)

    @property
    def held(self) -> set[int]:
        return {request for requests in self.buckets.values() for request in requests}

    @property
    def stalled(self) -> bool:
        if not self.on_stall or not self.held or self.partial:
            return False
        return self.round_ended if self.in_rounds else self.held == self.live

    def leave(self, kind: int, reason: FlushReason) -> None:
        self.out.append((kind, reason, sorted(self.buckets.pop(kind))))
        del self.opened[kind]

    def take(self, records: Iterable[tuple[int, int, int]], now_ns: int, is_drained: bool) -> None:
        """Take records, each a tuple of request, kind of its step, and flags."""
        some = False
        for request, kind, flags in records:
            some, self.last_ns = True, now_ns
            self.live.add(request)
            if request not in self.partial:
                self.partial.add(request)
                self.round_ended = False
            if flags:
                self.partial.remove(request)
                self.round_ended |= bool(flags & ROUND_END)  # earlier steps of the round may end after its last step
                self.opened.setdefault(kind, now_ns)
                self.buckets.setdefault(kind, []).append(request)
                if len(self.buckets[kind]) == min(self.limit, len(self.totals)):
                    self.leave(kind, FlushReason.full)
        for kind in list(self.opened):
            if self.opened[kind] + self.timeout_ns <= now_ns:
                self.leave(kind, FlushReason.deadline)
        if is_drained:
            for kind in list(self.opened):
                self.leave(kind, FlushReason.drain)
        elif not some and self.stalled:
            for kind in sorted(self.opened, key=lambda kind: -len(self.buckets[kind])):
                self.leave(kind, FlushReason.stall)
        elif not some and self.idle_ns is not None and now_ns - self.last_ns >= self.idle_ns:
            for kind in list(self.opened):
                self.leave(kind, FlushReason.idle)

    def land(self, request: int) -> None:
        self.landed[request] = self.landed.get(request, 0) + 1
        if self.landed[request] == self.totals[request]:
            self.live.remove(request)


class Issuer:
    """Issues records like a driver: a request's records in order, and a step once the previous step is complete.

    ahead: it issues all records of a step but the last once the previous step was flushed.
    """

    def __init__(self, plans: Sequence[Sequence[int]], rounds: Sequence[bool], ahead: bool = False) -> None:
        self.plans, self.rounds, self.ahead = plans, rounds, ahead
        self.left: set[int] = set()  # requests whose step was flushed and is not complete
        self.begun = [0] * len(plans)
        self.rest: dict[int, deque[np.void]] = {}  # request -> records of its step that are not pushed yet
        self.under_way: set[int] = set()  # requests whose step was pushed and is not complete
        self.sent: list[np.void] = []
        self.steps = 0

    @property
    def able(self) -> list[int]:
        """Return the requests that have records to push."""
        goes_on = {r for r, plan in enumerate(self.plans) if r not in self.rest and self.begun[r] < len(plan)}
        begin = {r for r in goes_on if r not in self.under_way}
        early = {r for r in goes_on & self.left if self.ahead and KINDS[self.plans[r][self.begun[r]]][0] > 1}
        return sorted({r for r, rest in self.rest.items() if r not in self.left or len(rest) > 1} | begin | early)

    def landed(self, request: int) -> None:
        """Record that the driver was notified of a request's step."""
        self.left.remove(request)
        if request not in self.rest:
            self.under_way.remove(request)

    def push(self, request: int, most: int) -> list[tuple[np.void, int]]:
        """Return up to `most` records of a request, each with the kind of its step."""
        number = self.begun[request] - (request in self.rest)
        kind = self.plans[request][number]
        if request not in self.rest:
            flags = ROUND_END if self.rounds[self.steps % len(self.rounds)] else 0
            first = sum(
                KINDS[kind][0] for begun, plan in zip(self.begun, self.plans, strict=True) for kind in plan[:begun]
            )
            self.rest[request] = deque(step_of(request, kind, first, number, flags))
            self.begun[request] += 1
            self.steps += 1
            self.under_way.add(request)
        out: list[tuple[np.void, int]] = []
        while len(self.rest[request]) > (request in self.left) and len(out) < most:
            out.append((self.rest[request].popleft(), kind))
        if not self.rest[request]:
            del self.rest[request]
        self.sent += [record for record, _ in out]
        return out


def check_batch(batch: StepBatch, limit: int, complete_ns: dict[tuple[int, int], int]) -> None:
    """Check a batch: whole steps of one kind, row by row, each request once, in order of the requests.

    complete_ns: by request and step, the time at which its last record came. The step is eligible from then on.
    """
    records = records_of(batch)
    assert len(batch) == batch.rows * batch.size > 0
    assert (batch.shape_index, batch.size <= limit) == (-1, True)
    requests = records["request"]
    assert (requests == requests[0]).all()
    assert (np.diff(requests[0].astype(np.int64)) > 0).all()
    assert (records["step"] % LONGEST == np.arange(batch.rows)[:, None]).all()
    assert (records["step"] // LONGEST == records["step"][0] // LONGEST).all()
    assert (records["flags"][:-1] == 0).all()
    assert (records["flags"][-1] & Flag.STEP_END).all()
    for name in ("m", "n", "k", "op", "dtype"):
        assert (records[name] == records[name][:, :1]).all()
    eligible = [complete_ns[int(r), int(s) // LONGEST] for r, s in zip(requests[0], records["step"][0], strict=True)]
    assert (records["turn"] == np.array(eligible)).all()
