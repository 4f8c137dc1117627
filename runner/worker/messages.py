"""The messages between the parent of a run and its two children, through their pipes.

The parent sends an `Order`: JOB once, one for each run of an arm (`RunKind`), and DONE at the job's end. After DONE the
child waits for the next JOB, or for EXIT.

A child sends a `Reply`: READY when it can take an order, then in each run

    producer    PRODUCED, then READY when the first blocks of the next run are made
    consumer    ARMED, CONSUMED, and after a timed run RESULT

IDLE answers DONE. FAILED can come at any time; the child ends after it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # --help imports this module, and must not load compilers or pyarrow
    from launchopt.producing.production import Production
    from launchopt.recording.manifest import Manifest
    from launchopt.recording.results import Row
    from runner.plan.job import Job

HistogramRows = dict[str, list[tuple[int, int, int]]]  # by quantity: low, high and count of each bucket


class OrderKind(StrEnum):
    """The kinds of orders."""

    JOB = "job"
    WARM_UP = "warm-up"
    AUDIT = "audit"
    RUN = "run"
    DONE = "done"
    EXIT = "exit"


class Order(NamedTuple):
    """A message to a child. JOB has a `job`; runs have the index of an `arm`, and RUN has a `repeat`."""

    kind: OrderKind
    job: Job | None = None
    arm: int = 0
    repeat: int = 0


class ReplyKind(StrEnum):
    """The kinds of replies."""

    READY = "ready"
    ARMED = "armed"
    PRODUCED = "produced"
    CONSUMED = "consumed"
    RESULT = "result"
    IDLE = "idle"
    FAILED = "failed"


class RepeatResult(NamedTuple):
    """The consumer's measurements of one repeat."""

    row: Row  # columns of summary.parquet
    extra: Manifest  # this repeat's entry in the manifest
    histograms: HistogramRows
    own: bytes = b""  # with several consumers: what this one executed, a bit for each command or request


class Failure(NamedTuple):
    """The reason why a child ends. `trace` is its traceback if the error was unexpected, else empty."""

    text: str
    exit_code: int
    trace: str


class Reply(NamedTuple):
    """A message from a child: PRODUCED, RESULT, FAILED, the consumer's first READY and its IDLE have a value."""

    kind: ReplyKind
    value: Production | RepeatResult | Failure | Manifest | None = None
