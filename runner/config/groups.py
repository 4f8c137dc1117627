"""The options of the groups that are not found in files: a dataclass a group. They check ranges and touch nothing else.

Modes, workloads, arrivals and models declare their options in launchopt.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields, make_dataclass

from omegaconf import MISSING

from launchopt.errors import ConfigError
from launchopt.modes import check_mode
from launchopt.modes.options import options_of
from launchopt.options import Value, above_zero, check_options, fixed, within
from launchopt.sampling import SamplingKind


class Ordering(enum.Enum):
    """Whether a request's commands wait for one another."""

    per_request = "per_request"
    none = "none"  # dependencies ignored, and said so
    violated = "violated"  # broken on purpose: the check must fail


class Record(enum.Enum):
    """Which rows of a detailed table are kept."""

    all = "all"
    none = "none"


@dataclass(slots=True)
class Mode:
    """The chosen mode; `mode_settings` adds the options that its file declares."""

    name: str = MISSING

    def __post_init__(self) -> None:
        check_mode(self.name)
        check_options("mode", self)

    @property
    def options(self) -> dict[str, Value]:
        """The options by name, as the mode takes them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}


def mode_settings(name: str) -> Mode:
    """Return the settings of a mode with every option at its default."""
    declared = [
        (each.name, each.type, field(default=each.default, metadata=each.metadata)) for each in fields(options_of(name))
    ]
    made: type[Mode] = make_dataclass("Mode", declared, bases=(Mode,))
    return made(name=name)


class DeviceKind(enum.Enum):
    """Where the work runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass(slots=True)
class Device:
    """The device, and the consumer's place on the host."""

    kind: DeviceKind = DeviceKind.auto
    index: int = 0  # of the GPU, as CUDA numbers them
    threads: int | None = None  # BLAS threads of the cpu device; None: all cores but the producer's
    pin_cpu: int | None = None  # core the consumer is pinned to

    def __post_init__(self) -> None:
        within("device.index", self.index, 0)
        within("device.threads", self.threads, 1, 1024)
        within("device.pin_cpu", self.pin_cpu, 0)


class TimingKind(enum.Enum):
    """What is measured on the device."""

    host = "host"  # host clock, and events around the whole run
    events = "events"  # also events around sampled launches
    cupti = "cupti"  # also every kernel; the run counts as traced
    torch = "torch"  # a Kineto trace of each repeat instead, by torch.profiler; traced, too


@dataclass(slots=True)
class Timing:
    """How a run is timed."""

    kind: TimingKind = TimingKind.events
    sample_every: int = 64  # one launch in so many is timed on the device

    def __post_init__(self) -> None:
        within("timing.sample_every", self.sample_every, 1)


@dataclass(slots=True)
class Queue:
    """The ring between producer and consumer."""

    capacity: int = 4096  # records of 64 bytes: 256 KiB stay in the L2
    spin_us: float | None = None  # spin so long for the other side (null: 200, with 4 cores or more 5,000),
    sleep_us: float = 50.0  # then sleep so long at a time

    def __post_init__(self) -> None:
        within("queue.capacity", self.capacity, 2, 1 << 24)
        if self.capacity & (self.capacity - 1):
            raise ConfigError("queue.capacity", self.capacity, "must be a power of two")
        within("queue.spin_us", self.spin_us, 0, 1e6)
        within("queue.sleep_us", self.sleep_us, 1, 1e6)


@dataclass(slots=True)
class Batching:
    """When a bucket is flushed."""

    max_batch: int = 64
    timeout_us: float = 150.0
    idle_us: float | None = None  # also when nothing has arrived for so long
    stall: bool = True  # and, with order kept, when all that is left waits for commands in buckets

    def __post_init__(self) -> None:
        within("batching.max_batch", self.max_batch, 1)
        within("batching.timeout_us", self.timeout_us, 0, 1e9)
        within("batching.idle_us", self.idle_us, 0, 1e9)


@dataclass(slots=True)
class Recording:
    """Which tables are written beside summary.parquet."""

    launches: Record = Record.all
    commands: Record = Record.none
    tokens: Record = Record.none


class Where(enum.Enum):
    """Where tokens are sampled."""

    auto = "auto"  # on the device
    cpu = "cpu"
    gpu = "gpu"


@dataclass(slots=True)
class TokenSampling:
    """How a token follows from its logits; its seed is that of the run."""

    kind: SamplingKind = SamplingKind.none
    where: Where = Where.auto
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.9

    def __post_init__(self) -> None:
        above_zero("sampling.temperature", self.temperature)
        within("sampling.top_k", self.top_k, 1)
        if not 0 < self.top_p <= 1:
            raise ConfigError("sampling.top_p", self.top_p, "must be above 0 and at most 1")


@dataclass(slots=True)
class Scheduler:
    """When requests go on."""

    kind: str = MISSING  # none: when their token is done; continuous: all together, in steps
    chunk_tokens: int | None = None  # most columns of a prompt's step; null: whole prompts
    budget_tokens: int | None = None  # most columns of a step, over all requests
    max_running: int | None = None  # most requests that take part; null: all
    ahead: bool = False  # while a step runs push the next one's commands but the last (modes of whole steps)

    def __post_init__(self) -> None:
        fixed("scheduler.kind", self.kind, "none", "continuous")
        if self.ahead and self.kind == "continuous":
            why = "goes with scheduler=none: who takes part in a continuous step is known only when it begins"
            raise ConfigError("scheduler.ahead", "true", why)
        for key in ("chunk_tokens", "budget_tokens", "max_running"):
            within(f"scheduler.{key}", getattr(self, key), 1)
        if self.budget_tokens is not None and (self.chunk_tokens is None or self.budget_tokens < self.chunk_tokens):
            raise ConfigError(
                "scheduler.budget_tokens", self.budget_tokens, f"must be at least chunk_tokens={self.chunk_tokens}"
            )


@dataclass(slots=True)
class Slo:
    """Objectives that goodput counts by; null: not counted."""

    ttft_ms: float | None = None  # arrival to first token
    tpot_ms: float | None = None  # each further token, on average over a request

    def __post_init__(self) -> None:
        above_zero("slo.ttft_ms", self.ttft_ms)
        above_zero("slo.tpot_ms", self.tpot_ms)
