"""Rules for the bottleneck of a line, over shares of its wall time.

In: `Shares`. Out: a `Bound` and its `Side`. Pure arithmetic, no files.

The bottleneck accounts for at least DOMINANT of the wall time. The rules in their order:

    1 memory-, compute-bound   the bytes at the measured bandwidth, the FLOPs at the measured peak: cannot be removed
    2 queue-bound (arrivals)   an open loop that kept up: arrivals of requests determine the wall time
    3 queue-bound (deadlines)  batches waited for their deadline
    4 command-bound            on the CPU a call returns when its work is done, which hides the overhead of a launch:
                               the same commands in fewer calls took less than half as long, so the cost is per
                               command (launch, queue and Python together). Otherwise undecided
    5 launch-bound (host)      the launching thread is in launch calls, the launch queue is not full, and the GPU is
                               busy for less time, if that was traced
    6 latency-bound            the GPU is busy, or (untraced) behind, since the launch queue is full, and reaches
                               neither ceiling: kernels shorter than SHORT_KERNEL_US, no time to fill a GPU, or slow
    7 launch-bound (gaps)      the GPU was seen to be idle and the host is not in launch calls: gaps between kernels
    8 undecided                none of these, and no tracer has distinguished kernels from gaps
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DOMINANT = 0.5  # share of the wall time that exceeds all other parts together
# Calls that take longer than the first ones wait for space in the GPU's launch queue. From this share of the wall time
# on, the GPU is behind the host.
QUEUE_FULL = 0.1

SHORT_KERNEL_US = 10.0  # a kernel ramps up and drains for a few us, which is much of a shorter one


class Bound(StrEnum):
    """The bottleneck: the part of the wall time to remove first, if it can be removed."""

    LAUNCH = "launch-bound"
    COMMAND = "command-bound"
    MEMORY = "memory-bound"
    COMPUTE = "compute-bound"
    QUEUE = "queue-bound"
    LATENCY = "latency-bound"
    UNDECIDED = "undecided"
    NO_VERDICT = "no verdict"
    IMPOSSIBLE = "impossible"


class Side(StrEnum):
    """The cause of a bottleneck; empty for a bottleneck with only one possible cause."""

    ONLY = ""
    HOST = "launching thread"
    GAPS = "gaps on the GPU"
    ARRIVALS = "arrivals"
    DEADLINES = "deadlines"
    SHORT_KERNELS = "short kernels"
    SLOW_KERNELS = "slow kernels"
    GPU = "GPU side, kernels and gaps not told apart"


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the wall time. They overlap, since host and GPU work at once. None: not measured."""

    bytes: float | None = None  # time of the bytes at the measured bandwidth
    flops: float | None = None  # time of the FLOPs at the measured peak
    host: float | None = None  # host time in launch calls, without waits for space in the launch queue
    blocked: float = 0.0  # waits for space in the launch queue: calls took longer than the first ones
    busy: float | None = None  # GPU busy time, by a tracer
    kernel_us: float | None = None  # not a share: mean duration of a kernel
    waited: float = 0.0  # time in which batches waited for their deadline
    kept_up: bool = False  # True: an open loop that was not overloaded
    on_cpu: bool = False
    saved: float | None = None  # share that the same commands saved in fewer launch calls


def classify(shares: Shares) -> tuple[Bound, Side]:
    """Return the bound and the side of the first rule that holds."""
    bytes_share, flops_share = shares.bytes or 0.0, shares.flops or 0.0
    if max(bytes_share, flops_share) >= DOMINANT:
        return (Bound.COMPUTE if flops_share > bytes_share else Bound.MEMORY), Side.ONLY
    if shares.kept_up:
        return Bound.QUEUE, Side.ARRIVALS
    if shares.waited >= DOMINANT:
        return Bound.QUEUE, Side.DEADLINES
    if shares.on_cpu:
        compared = shares.saved is not None and shares.saved >= DOMINANT
        return (Bound.COMMAND if compared else Bound.UNDECIDED), Side.ONLY
    return _on_gpu(shares)


def _on_gpu(shares: Shares) -> tuple[Bound, Side]:
    host, full = shares.host or 0.0, shares.blocked >= QUEUE_FULL
    if host >= DOMINANT and not full and host >= (shares.busy or 0.0):
        return Bound.LAUNCH, Side.HOST
    if shares.busy is None:
        behind = full and host + shares.blocked >= DOMINANT
        return (Bound.LATENCY, Side.GPU) if behind else (Bound.UNDECIDED, Side.ONLY)
    if shares.busy >= DOMINANT:
        is_slow = shares.kernel_us is not None and shares.kernel_us >= SHORT_KERNEL_US
        return Bound.LATENCY, Side.SLOW_KERNELS if is_slow else Side.SHORT_KERNELS
    return Bound.LAUNCH, Side.GAPS
