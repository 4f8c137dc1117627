"""What may be configured: one dataclass a Hydra group. They validate and touch nothing else.

Hydra checks names and types when it composes; ranges and what must fit together are checked here when the
composed config becomes objects (`to_config`), before any process is started.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from launchopt.command import Dtype
from launchopt.errors import ConfigError, choices
from launchopt.modes import MODES, check_mode
from launchopt.workloads.footprint import Cache

LARGEST = 2**31 - 1  # sizes and counts are int32 in cuBLASLt and uint32 in a command record


class Ordering(enum.Enum):
    """Whether a request's commands wait for one another."""

    none = "none"


class Record(enum.Enum):
    """Which rows of a detailed table are kept."""

    all = "all"
    none = "none"


def _within(key: str, value: float | None, low: float, high: float = LARGEST) -> None:
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(key, value, f"must be from {low:.10g} to {high:.10g}")


def _above_zero(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(key, value, "must be above 0")


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
            _within(f"workload.{key}", getattr(self, key), 1)


@dataclass(slots=True)
class Decode:
    """Token after token through the layers of a model."""

    name: str = MISSING
    tokens: int = 64  # steps; a replay takes its own
    users: int = 1  # columns of each step
    layers: int | None = None  # None: all of the model's, or as many as fit into memory (said aloud)
    dtype: Dtype = Dtype.fp32
    cache: Cache = Cache.cold
    replicas: int | None = None

    def __post_init__(self) -> None:
        for key in ("tokens", "users", "layers", "replicas"):
            _within(f"workload.{key}", getattr(self, key), 1)


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
        for key in ("prompts", "tokens", "layers", "replicas"):
            _within(f"workload.{key}", getattr(self, key), 1)


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

    def __post_init__(self) -> None:
        for key in ("hidden", "layers", "q_heads", "kv_heads", "head_dim", "intermediate"):
            _within(f"model.{key}", getattr(self, key), 1)


@dataclass(slots=True)
class Mode:
    """An execution strategy."""

    name: str = MISSING

    def __post_init__(self) -> None:
        check_mode(self.name)


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
        _within("device.index", self.index, 0)
        _within("device.threads", self.threads, 1, 1024)
        _within("device.pin_cpu", self.pin_cpu, 0)


@dataclass(slots=True)
class Closed:
    """Commands come as fast as the ring takes them."""

    kind: str = "closed"


@dataclass(slots=True)
class Replay:
    """Requests of the Azure LLM inference trace come when they came."""

    kind: str = "replay"
    path: str = MISSING
    requests: int | None = 20  # the first so many; None: all
    speed: float = 1.0  # 2: twice the pace of the trace

    def __post_init__(self) -> None:
        _within("arrival.requests", self.requests, 1)
        _above_zero("arrival.speed", self.speed)


class TimingKind(enum.Enum):
    """What is measured on the device."""

    host = "host"  # host clock, and events around the whole run
    events = "events"  # also events around sampled launches
    cupti = "cupti"  # also every kernel; the run counts as traced


@dataclass(slots=True)
class Timing:
    """How a run is timed."""

    kind: TimingKind = TimingKind.events
    sample_every: int = 64  # one launch in so many is timed on the device

    def __post_init__(self) -> None:
        _within("timing.sample_every", self.sample_every, 1)


@dataclass(slots=True)
class Queue:
    """The ring between producer and consumer."""

    capacity: int = 4096  # records of 64 bytes: 256 KiB stay in the L2
    spin_us: float = 200.0  # spin so long for the other side,
    sleep_us: float = 50.0  # then sleep so long at a time

    def __post_init__(self) -> None:
        _within("queue.capacity", self.capacity, 2, 1 << 24)
        if self.capacity & (self.capacity - 1):
            raise ConfigError("queue.capacity", self.capacity, "must be a power of two")
        _within("queue.spin_us", self.spin_us, 0, 1e6)
        _within("queue.sleep_us", self.sleep_us, 1, 1e6)


@dataclass(slots=True)
class Batching:
    """When a bucket is flushed."""

    max_batch: int = 64
    timeout_us: float = 150.0
    idle_us: float | None = None  # also when nothing has arrived for so long

    def __post_init__(self) -> None:
        _within("batching.max_batch", self.max_batch, 1)
        _within("batching.timeout_us", self.timeout_us, 0, 1e9)
        _within("batching.idle_us", self.idle_us, 0, 1e9)


@dataclass(slots=True)
class Recording:
    """Which tables are written beside summary.parquet."""

    launches: Record = Record.all
    commands: Record = Record.none


@dataclass(slots=True)
class Config:
    """One experiment."""

    workload: Any = MISSING
    mode: Mode = MISSING
    model: Model = MISSING
    device: Device = MISSING
    arrival: Any = MISSING
    timing: Timing = MISSING
    queue: Queue = MISSING
    batching: Batching = MISSING
    record: Recording = field(default_factory=Recording)
    against: list[str] = field(default_factory=list)  # modes run in turn with `mode`, on the same operands
    ordering: Ordering = Ordering.none
    repeats: int = 1
    seed: int = 0
    verify_columns: int = 256  # of a GEMM with more, so many are compared, chosen at random
    table: Any = None  # a row of an experiment's tables: sets the groups above

    def __post_init__(self) -> None:
        for name in self.against:
            if name not in MODES or name == self.mode.name:
                others = sorted(set(MODES) - {self.mode.name})
                raise ConfigError(
                    "against", name, f"must be modes other than mode={self.mode.name}: {', '.join(others)}"
                )
        _within("repeats", self.repeats, 1, 10_000)
        _within("seed", self.seed, 0)
        _within("verify_columns", self.verify_columns, 2)
        if self.batching.max_batch > self.queue.capacity:
            raise ConfigError(
                "batching.max_batch",
                self.batching.max_batch,
                f"must be at most queue.capacity, which is {self.queue.capacity}",
            )
        is_gemv = isinstance(self.workload, Gemv)
        if is_gemv and isinstance(self.arrival, Replay):
            raise ConfigError(
                "arrival",
                "replay",
                f"a trace holds requests: workload={self.workload.name} has none; use decode or prefill",
            )
        if is_gemv and self.model.name != DEFAULT_MODEL:
            raise ConfigError(
                "model",
                self.model.name,
                f"workload={self.workload.name} has its own shape; use decode or prefill",
            )
        if not is_gemv and self.workload.layers is not None and self.workload.layers > self.model.layers:
            raise ConfigError(
                "workload.layers",
                self.workload.layers,
                f"must be at most {self.model.layers}: model={self.model.name} has no more",
            )


DEFAULT_MODEL = "predecessor"

SCHEMAS: dict[str, dict[str, type]] = {
    "workload": {"gemv": Gemv, "decode": Decode, "prefill": Prefill},
    "mode": {"base": Mode},
    "model": {"base": Model},
    "device": {"base": Device},
    "arrival": {"closed": Closed, "replay": Replay},
    "timing": {"base": Timing},
    "queue": {"base": Queue},
    "batching": {"base": Batching},
}


def register() -> None:
    """Put the schemas where the YAML files find them."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    for group, schemas in SCHEMAS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)


def to_config(composed: DictConfig) -> Config:
    """The composed config as checked objects; ConfigError says what is wrong with it."""
    _refuse_unknown(composed)
    try:
        config = OmegaConf.to_object(composed)
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(key, "???", f"is required: give {key}=...") from None
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key), "?", str(error).splitlines()[0]) from None
    assert isinstance(config, Config)
    return config


def _refuse_unknown(node: DictConfig, above: str = "") -> None:
    """ConfigError for a key that no schema has: `+key=value` adds one, and composing lets it pass."""
    kind: Any = OmegaConf.get_type(node)
    known = [each.name for each in fields(kind)] if is_dataclass(kind) else None
    for name in map(str, node):
        value = None if OmegaConf.is_missing(node, name) else node[name]
        if known is not None and name not in known:
            where = f"settings of {above.rstrip('.')}" if above else "settings"
            raise ConfigError(f"{above}{name}", value, f"no such setting; {where}: {choices(known)}")
        if isinstance(value, DictConfig):
            _refuse_unknown(value, f"{above}{name}.")
