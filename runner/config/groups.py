"""Dataclasses of the groups device, timing, queue, batching, record, sampling, scheduler and slo, which check ranges.

Modes (modes.py), workloads, arrivals and models declare their options in launchopt.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from omegaconf import MISSING

from launchopt.errors import ConfigError
from launchopt.options import check_options, fixed, option
from launchopt.producing.production import Routing
from launchopt.sampling import SamplingKind


class Verify(enum.Enum):
    """How many outputs of independent commands are checked."""

    sampled = "sampled"  # a random sample, as large as `verify_budget_s` allows; all outputs where time is enough
    full = "full"


class Tuning(enum.Enum):
    """Which modes take the fastest of the algorithms that cuBLASLt proposes for a GEMM, instead of its first."""

    all = "all"
    none = "none"


class Ordering(enum.Enum):
    """Order of a request's commands: each waits for the previous one, unless dependencies are ignored or broken."""

    per_request = "per_request"
    none = "none"  # dependencies are ignored, and the result says so
    violated = "violated"  # dependencies are broken on purpose, so that the check must fail


class Record(enum.Enum):
    """Rows of a detailed table that are written: all or none."""

    all = "all"
    none = "none"


class DeviceKind(enum.Enum):
    """Kind of the device that runs the work."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass(slots=True)
class Device:
    """The device, and the core of the host that the consumer runs on."""

    kind: DeviceKind = option(DeviceKind.auto, "auto: the GPU if there is one, else the CPU")
    index: int = option(0, "number of the GPU, as CUDA counts them", low=0)
    gpus: list[int] | None = option(None, "several GPUs, each with a consumer; of the cpu device: cores", low=0)
    routing: Routing = option(Routing.round_robin, "the one of device.gpus that gets a request")
    threads: int | None = option(None, "BLAS threads of the cpu device; null: all cores but one", low=1, high=1024)
    pin_cpu: int | None = option(None, "core that the consumer is pinned to; null: none", low=0)

    def __post_init__(self) -> None:
        check_options("device", self)
        if self.gpus is None:
            return
        if not self.gpus:
            raise ConfigError("device.gpus", "[]", "must name one GPU or more, such as [0,1]")
        if self.index or self.pin_cpu is not None:
            key, value = ("device.index", self.index) if self.index else ("device.pin_cpu", self.pin_cpu)
            raise ConfigError(key, value, "does not go with device.gpus: leave one of them out")


class AllReduce(enum.Enum):
    """What adds the parts of the GPUs that split a model."""

    own = "own"
    nccl = "nccl"


@dataclass(slots=True)
class Parallel:
    """GPUs that execute one model together."""

    tensor: int = option(1, "GPUs that split each layer: the first ones, or those of device.gpus", low=1, high=64)
    all_reduce: AllReduce = option(AllReduce.own, "what adds the parts of GPUs: our kernel, or NCCL")

    def __post_init__(self) -> None:
        check_options("parallel", self)


class TimingKind(enum.Enum):
    """Method by which times on the device are measured."""

    host = "host"  # the host's clock, and CUDA events around the whole run
    events = "events"  # like host, and CUDA events around sampled launches
    cupti = "cupti"  # like events, and CUPTI's record of every kernel; the run counts as traced
    torch = "torch"  # like events, and a Kineto trace of each repeat by torch.profiler; counts as traced, too


@dataclass(slots=True)
class Timing:
    """Settings of the timing of a run."""

    kind: TimingKind = option(TimingKind.events, "what is measured on the device")
    sample_every: int = option(64, "one in this many launches is timed on the device", low=1)

    def __post_init__(self) -> None:
        check_options("timing", self)


@dataclass(slots=True)
class Queue:
    """Settings of the ring between producer and consumer."""

    # 4,096 records of 64 bytes: larger than any bucket in use, and small enough for the L2.
    capacity: int = option(4096, "records of 64 bytes", low=2, high=1 << 24, is_power_of_two=True)
    spin_us: float | None = option(
        None, "time of spinning for the other side; null: 5,000 with 4 cores or more, else 200", low=0, high=1e6
    )
    sleep_us: float = option(50.0, "time of each sleep after the spin", low=1, high=1e6)

    def __post_init__(self) -> None:
        check_options("queue", self)


@dataclass(slots=True)
class Batching:
    """Conditions under which a bucket is flushed."""

    max_batch: int = option(64, "commands that fill a bucket", low=1)
    timeout_us: float = option(150.0, "longest wait of a bucket's oldest command", low=0, high=1e9)
    idle_us: float | None = option(None, "also flush when nothing has arrived for this time", low=0, high=1e9)
    stall: bool = option(True, "also flush, with order kept, when everything left waits for commands in buckets")

    def __post_init__(self) -> None:
        check_options("batching", self)


@dataclass(slots=True)
class Recording:
    """Choice of the tables that are written beside summary.parquet."""

    launches: Record = option(Record.all, "write launches.parquet")
    commands: Record = option(Record.none, "write commands.parquet")
    tokens: Record = option(Record.none, "write tokens.parquet")


class Where(enum.Enum):
    """Processor that samples tokens."""

    auto = "auto"  # on the device
    cpu = "cpu"
    gpu = "gpu"


@dataclass(slots=True)
class TokenSampling:
    """Rule that chooses a token from its logits. Its seed is that of the run."""

    kind: SamplingKind = option(SamplingKind.none, "how a token is chosen")
    where: Where = option(Where.auto, "where tokens are sampled; auto: on the device")
    temperature: float = option(1.0, "divisor of the logits", is_above_zero=True)
    top_k: int = option(50, "number of largest logits that top_k chooses from", low=1)
    top_p: float = option(0.9, "probability of the tokens that top_p chooses from")

    def __post_init__(self) -> None:
        check_options("sampling", self)
        if not 0 < self.top_p <= 1:
            raise ConfigError("sampling.top_p", self.top_p, "must be above 0 and at most 1")


class Prefixes(enum.Enum):
    """How the first tokens of prompts that earlier prompts had are found in the KV cache."""

    none = "none"  # they are not: every token of a prompt has a step
    hash = "hash"  # a hash table of blocks
    radix = "radix"  # a tree with a node for each run of blocks


@dataclass(slots=True)
class Scheduler:
    """Rule for the next step of a request.

    none: each request continues once its own token is complete. continuous: all running requests continue together, in
    rounds.
    """

    kind: str = MISSING
    chunk_tokens: int | None = option(None, "most columns of a prompt's step; null: whole prompts", low=1)
    budget_tokens: int | None = option(None, "most columns of a step, over all requests", low=1)
    max_running: int | None = option(None, "most requests in a step; null: all", low=1)
    ahead: bool = option(False, "while a step runs, push all commands of the next one but the last")
    prefixes: Prefixes = option(Prefixes.none, "how cached beginnings of prompts, which need no steps, are found")
    prefix_blocks: int | None = option(None, "blocks that the cache of prefixes keeps; null: all", low=1)

    def __post_init__(self) -> None:
        fixed("scheduler.kind", self.kind, "none", "continuous")
        if self.ahead and self.kind == "continuous":
            why = "goes with scheduler=none: the requests of a continuous step are known only when it begins"
            raise ConfigError("scheduler.ahead", "true", why)
        if self.prefixes is not Prefixes.none and self.kind != "continuous":
            why = "goes with scheduler=continuous, which holds back requests whose prefix is being computed"
            raise ConfigError("scheduler.prefixes", self.prefixes.value, why)
        if self.prefixes is Prefixes.none and self.prefix_blocks is not None:
            why = "belongs to scheduler.prefixes=hash or radix: give both, or neither"
            raise ConfigError("scheduler.prefix_blocks", self.prefix_blocks, why)
        check_options("scheduler", self)
        if self.budget_tokens is not None and (self.chunk_tokens is None or self.budget_tokens < self.chunk_tokens):
            raise ConfigError(
                "scheduler.budget_tokens", self.budget_tokens, f"must be at least chunk_tokens={self.chunk_tokens}"
            )


@dataclass(slots=True)
class Slo:
    """Latency objectives of goodput, which counts the requests that meet all of them; null: no such objective."""

    ttft_ms: float | None = option(None, "arrival to first token", is_above_zero=True)
    tpot_ms: float | None = option(None, "each further token, on average over a request", is_above_zero=True)

    def __post_init__(self) -> None:
        check_options("slo", self)
