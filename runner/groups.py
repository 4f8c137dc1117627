"""What each Hydra group may hold: a dataclass a group. They check ranges and touch nothing else."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import MISSING

from launchopt.command import Dtype
from launchopt.errors import ConfigError, choices
from launchopt.modes import check_mode
from launchopt.sampling import MOST_VOCAB, SamplingKind
from launchopt.workloads.footprint import Cache

LARGEST = 2**31 - 1  # sizes and counts are int32 in cuBLASLt and uint32 in a command record
MOST_LAYERS = 1024  # of a model; the deepest published have under 130
MOST_BURST = 1 << 20  # arrivals


class Ordering(enum.Enum):
    """Whether a request's commands wait for one another."""

    per_request = "per_request"
    none = "none"  # dependencies ignored, and said so
    violated = "violated"  # broken on purpose: the check must fail


class Record(enum.Enum):
    """Which rows of a detailed table are kept."""

    all = "all"
    none = "none"


def within(key: str, value: float | None, low: float, high: float = LARGEST) -> None:
    """ConfigError where a value that was given is not from `low` to `high`."""
    if value is not None and not low <= value <= high:  # also of nan
        raise ConfigError(key, value, f"must be from {low:.10g} to {high:.10g}")


def fixed(key: str, value: str, *allowed: str) -> None:
    """ConfigError where a group's own name was overridden: choose another option of the group instead."""
    if value not in allowed:
        raise ConfigError(key, value, f"must be {choices(allowed)}; to choose another, give {key.partition('.')[0]}=")


def above_zero(key: str, value: float | None) -> None:
    """ConfigError where a value that was given is not a finite number above 0."""
    if value is None:
        return
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(key, value, "must be finite and above 0")


@dataclass(slots=True)
class Gemv:
    """Independent commands of one shape."""

    name: str = MISSING
    m: int = MISSING
    n: int = 1
    k: int = MISSING
    commands: int = 8192
    dtype: Dtype = Dtype.fp32
    cache: Cache = Cache.cold
    replicas: int | None = None  # distinct weights; None: what `cache` asks for, at least max_batch
    shuffle: bool = False  # weights in a fixed random order instead of in turn

    def __post_init__(self) -> None:
        for key in ("m", "n", "k", "commands", "replicas"):
            within(f"workload.{key}", getattr(self, key), 1)


@dataclass(slots=True)
class Decode:
    """Token after token through the layers of a model."""

    name: str = MISSING
    requests: int = 1  # side by side in a closed loop, else in all; a replay takes its own
    prompt_tokens: int = 0  # columns of a prompt before the first token; a replay takes its own
    tokens: int = 64  # generated a request; a replay takes its own
    users: int = 1  # columns of each step, as if in step for ever (ordering=none)
    layers: int | None = None  # None: all of the model's, or as many as fit into memory (said aloud)
    dtype: Dtype = Dtype.fp32
    cache: Cache = Cache.cold
    replicas: int | None = None

    def __post_init__(self) -> None:
        for key in ("requests", "tokens", "users", "replicas"):
            within(f"workload.{key}", getattr(self, key), 1)
        within("workload.layers", self.layers, 1, MOST_LAYERS)
        within("workload.prompt_tokens", self.prompt_tokens, 0)


@dataclass(slots=True)
class Prefill:
    """Whole prompts through the layers of a model."""

    name: str = MISSING
    prompts: int = 1  # a replay takes its own
    tokens: int = 256
    layers: int | None = None
    dtype: Dtype = Dtype.fp32
    cache: Cache = Cache.cold
    replicas: int | None = None

    def __post_init__(self) -> None:
        for key in ("prompts", "tokens", "replicas"):
            within(f"workload.{key}", getattr(self, key), 1)
        within("workload.layers", self.layers, 1, MOST_LAYERS)


@dataclass(slots=True)
class Model:
    """Published dimensions of a transformer."""

    name: str = MISSING
    hidden: int = MISSING
    layers: int = MISSING
    q_heads: int = MISSING
    kv_heads: int = MISSING
    head_dim: int = MISSING
    intermediate: int = MISSING
    gated: bool = True
    vocab: int | None = None  # width of the LM head; null: no sampling

    def __post_init__(self) -> None:
        for key in ("hidden", "q_heads", "kv_heads", "head_dim", "intermediate"):
            within(f"model.{key}", getattr(self, key), 1)
        within("model.layers", self.layers, 1, MOST_LAYERS)
        within("model.vocab", self.vocab, 1, MOST_VOCAB)


@dataclass(slots=True)
class Mode:
    """An execution strategy."""

    name: str = MISSING

    def __post_init__(self) -> None:
        check_mode(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Its settings, as the mode takes them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}


@dataclass(slots=True)
class MultiStream(Mode):
    """Launches over several streams."""

    streams: int = 4

    def __post_init__(self) -> None:
        check_mode(self.name)
        within("mode.streams", self.streams, 2, 64)
        if self.streams & (self.streams - 1):
            raise ConfigError("mode.streams", self.streams, "must be a power of two")


@dataclass(slots=True)
class Graph(Mode):
    """Launches recorded into CUDA graphs, or lists of a step's instructions."""

    cached: int = 64  # graphs, or lists, kept at a time; beyond, the one used longest ago is updated or dropped

    def __post_init__(self) -> None:
        check_mode(self.name)
        within("mode.cached", self.cached, 1, 4096)


@dataclass(slots=True)
class Persistent(Mode):
    """No launches: a kernel that stays."""

    patience_s: float = 60.0  # without a command the kernel ends, and the run fails

    def __post_init__(self) -> None:
        check_mode(self.name)
        within("mode.patience_s", self.patience_s, 0.1, 86_400)


MODE_SETTINGS: dict[str, type[Mode]] = {
    "multistream": MultiStream,
    "graph": Graph,
    "torch_graph": Graph,
    "megakernel": Graph,
    "persistent": Persistent,
}


def mode_settings(name: str) -> Mode:
    """The settings of a mode as they are when nothing is said."""
    return MODE_SETTINGS.get(name, Mode)(name=name)


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


@dataclass(slots=True)
class Closed:
    """Commands come as fast as the ring takes them."""

    kind: str = "closed"

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "closed")


@dataclass(slots=True)
class Constant:
    """Arrivals evenly spaced: requests, of gemv commands."""

    kind: str = "constant"
    rate_per_s: float = MISSING

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "constant")
        above_zero("arrival.rate_per_s", self.rate_per_s)


@dataclass(slots=True)
class Poisson:
    """Arrivals independent of each other."""

    kind: str = "poisson"
    rate_per_s: float = MISSING  # on average

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "poisson")
        above_zero("arrival.rate_per_s", self.rate_per_s)


@dataclass(slots=True)
class Bursty:
    """Bursts of `burst_size` arrivals, independent of each other."""

    kind: str = "bursty"
    rate_per_s: float = MISSING  # of arrivals, on average
    burst_size: int = 8
    peak_per_s: float | None = None  # within a burst; null: all at once

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "bursty")
        above_zero("arrival.rate_per_s", self.rate_per_s)
        within("arrival.burst_size", self.burst_size, 1, MOST_BURST)
        above_zero("arrival.peak_per_s", self.peak_per_s)
        if self.peak_per_s is not None and self.peak_per_s < self.rate_per_s:
            raise ConfigError("arrival.peak_per_s", self.peak_per_s, f"must be at least rate_per_s={self.rate_per_s}")


class TraceFormat(enum.Enum):
    """What a file of requests is written in."""

    auto = "auto"  # by how it begins
    azure = "azure"
    mooncake = "mooncake"
    csv = "csv"


@dataclass(slots=True)
class Replay:
    """Requests of a file come when they came."""

    kind: str = "replay"
    path: str = MISSING
    format: TraceFormat = TraceFormat.auto
    requests: int | None = 20  # the first so many; None: all
    speed: float = 1.0  # 2: twice the pace of the trace

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "replay")
        within("arrival.requests", self.requests, 1)
        above_zero("arrival.speed", self.speed)


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

    def __post_init__(self) -> None:
        fixed("scheduler.kind", self.kind, "none", "continuous")
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
