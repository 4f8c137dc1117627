"""From a checked config to a job: reads the trace, finds the device, sizes the operands. Starts nothing.

Everything that can be refused is refused here, before a folder is made or a byte of an arena allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from omegaconf import OmegaConf

from launchopt.arrivals import process
from launchopt.arrivals.replay import read_requests
from launchopt.arrivals.requests import Requests
from launchopt.devices import find_device
from launchopt.devices.base import DeviceInfo
from launchopt.driver import Schedule
from launchopt.errors import ArenaMemoryError, ConfigError, DeviceError
from launchopt.modes import MODES, mode_class
from launchopt.modes.base import Takes
from launchopt.sampling import Sampling, SamplingKind
from launchopt.timing import cupti, torch_trace
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.decode import decode, decode_requests, linears
from launchopt.workloads.footprint import COLD_CACHES, Cache, replicas_for
from launchopt.workloads.gemv import gemv
from launchopt.workloads.model import ModelShape
from launchopt.workloads.prefill import prefill, prefill_requests
from launchopt.workloads.trace import TraceStream
from runner.at_least import at_least
from runner.groups import Closed, Decode, Gemv, Ordering, Prefill, Record, Replay, TimingKind, Where, mode_settings
from runner.job import Arm, Job, Stream
from runner.programs import OwnSize, Steps, program_of
from runner.schema import ALL, Config
from runner.trace_workload import Trace, trace_stream

MEMORY_SHARE = 0.9  # of what is free; the rest is for libraries, scratch of the check and the unforeseen
FIXED_BYTES = {"cpu": 768 << 20, "cuda": 2 << 30}  # ceilings' buffers, workspace, chunks of the check
UNLIMITED = 1 << 30
UNBREAKABLE = {  # why ordering=violated cannot be asked of a mode
    Takes.commands: "launches commands one at a time, as they arrive: it has no order to break",
    Takes.steps: "runs a request's steps whole: it has no order to break",
}
MANY_CORES, SPIN_US_MANY_CORES, SPIN_US_FEW_CORES = 4, 5000.0, 200.0
HOST_RECORD_BYTES = 1 + 160  # of the check after a run: which commands ran, and their slots


@dataclass(frozen=True, slots=True)
class Plan:
    """A job, less its folder, and what the user should be told about it."""

    config: Config
    composed: dict[str, Any]
    stream: Stream
    info: DeviceInfo
    arms: tuple[Arm, ...]
    notices: tuple[str, ...]
    residency: str | None
    refused: dict[str, str]  # of against=[all], the modes that cannot run this, and why

    def job(self, folder: Path) -> Job:
        """The job, writing into `folder`."""
        config = self.config
        return Job(
            run_id=f"{folder.parent.name}/{folder.name}",
            folder=folder,
            config=self.composed,
            stream=self.stream,
            arms=self.arms,
            device_kind=self.info.kind,
            device_index=config.device.index,
            threads=config.device.threads,
            pin_cpu=config.device.pin_cpu,
            timing=config.timing.kind.value,
            sample_every=0 if config.timing.kind is TimingKind.host else config.timing.sample_every,
            capacity=config.queue.capacity,
            spin_us=_spin_us(config),
            sleep_us=config.queue.sleep_us,
            seed=config.seed,
            verify_columns=config.verify_columns,
            residency=self.residency,
            record_launches=config.record.launches is Record.all,
            record_commands=config.record.commands is Record.all,
            violated=config.ordering is Ordering.violated,
            on_stall=config.batching.stall,
            sampling=sampling_of(config),
            samples_on_host=self.sampling_where == "cpu",
            schedule=_schedule(config),
        )

    @property
    def sampling_where(self) -> str | None:
        """cpu or gpu; None where nothing is sampled."""
        sampling = self.config.sampling
        if sampling.kind is SamplingKind.none:
            return None
        device = {"cpu": "cpu", "cuda": "gpu"}[self.info.kind]
        return device if sampling.where is Where.auto else sampling.where.value


def make_plan(config: Config, composed: Any) -> Plan:
    """Check what needs the machine; LaunchoptError says what is wrong."""
    _require_records(at_least(config, model_shape(config), None).commands, _what_to_lower(config))
    requests = _requests(config)
    if config.device.pin_cpu is not None and config.device.pin_cpu not in os.sched_getaffinity(0):
        cores = sorted(os.sched_getaffinity(0))
        raise ConfigError("device.pin_cpu", config.device.pin_cpu, f"must be one of this process's cores: {cores}")
    info, why = find_device(config.device.kind.value, config.device.index)
    if config.timing.kind is TimingKind.cupti:
        if info.kind == "cpu":
            raise DeviceError("timing=cupti: traces kernels on a GPU, and the device is the CPU; use timing=host")
        cupti.require()
    if config.timing.kind is TimingKind.torch:
        torch_trace.require()
    if config.sampling.where is Where.gpu and info.kind == "cpu":
        raise ConfigError("sampling.where", "gpu", "the device is the CPU: must be auto or cpu")
    notices = [f"device: {info.kind} ({info.name}), {why}"]
    if config.ordering is Ordering.violated:
        notices.append("ordering=violated: batches break the order within requests on purpose; their check must fail")
    arms = _arms(config)
    stream = _fitting(config, info, requests, arms, notices)
    arms, refused = _able(config, arms, info.kind, stream)
    notices += [f"mode={mode} is left out: {why}" for mode, why in refused.items()]
    container = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    assert isinstance(container, dict)
    residency = _residency(config, stream, info)
    plain = {str(k): v for k, v in container.items()}
    return Plan(config, plain, stream, info, arms, tuple(notices), residency, refused)


def _arms(config: Config) -> tuple[Arm, ...]:
    """The mode that was asked for, last, and those it is compared with; ConfigError where one lacks a package."""
    everything = config.against == [ALL]
    names = [name for name in MODES if name != config.mode.name] if everything else config.against
    batching = config.batching
    common = (batching.max_batch, batching.timeout_us, batching.idle_us)
    others = [Arm(name, *common, mode_settings(name).options) for name in names]
    return (*others, Arm(config.mode.name, *common, config.mode.options))


def _able(config: Config, arms: tuple[Arm, ...], kind: str, stream: Stream) -> tuple[tuple[Arm, ...], dict[str, str]]:
    """Those arms that can run the stream here, and of `against=[all]` why the others cannot; else that is refused."""
    able, refused = [], {}
    for arm in arms:
        mode = mode_class(arm.mode)
        why = mode.refusal(kind, stream) or mode.lacks()
        takes = mode.takes_of(stream)
        if why is None and config.ordering is Ordering.violated:
            asked = arm.mode == config.mode.name or takes is Takes.steps  # beside another, one that keeps order may run
            why = UNBREAKABLE.get(takes) if asked else None
        if why is None:
            able.append(arm)
        elif arm.mode == config.mode.name or config.against != [ALL]:
            raise ConfigError("mode" if arm.mode == config.mode.name else "against", arm.mode, why)
        else:
            refused[arm.mode] = why
    return tuple(able), refused


def sampling_of(config: Config) -> Sampling:
    """How tokens are sampled, as the library takes it."""
    sampling = config.sampling
    return Sampling(sampling.kind, sampling.temperature, sampling.top_k, sampling.top_p, config.seed)


def _schedule(config: Config) -> Schedule:
    scheduler = config.scheduler
    if scheduler.kind == "none":
        return Schedule()
    return Schedule(True, scheduler.budget_tokens or UNLIMITED, scheduler.max_running or UNLIMITED)


def _spin_us(config: Config) -> float:
    """As asked; else so long that no sleep falls into a step, where there are cores to spare."""
    if config.queue.spin_us is not None:
        return config.queue.spin_us
    return SPIN_US_MANY_CORES if len(os.sched_getaffinity(0)) >= MANY_CORES else SPIN_US_FEW_CORES


def _arrivals(config: Config, count: int) -> NDArray[np.int64]:
    """When each of `count` arrivals is due, ns since the start; all at once in a closed loop."""
    arrival = config.arrival
    try:
        if arrival.kind == "constant":
            return process.constant(arrival.rate_per_s, count)
        if arrival.kind == "poisson":
            return process.poisson(arrival.rate_per_s, count, config.seed)
        if arrival.kind == "bursty":
            return process.bursty(arrival.rate_per_s, arrival.burst_size, arrival.peak_per_s, count, config.seed)
    except ValueError as error:
        raise ConfigError("arrival.rate_per_s", arrival.rate_per_s, str(error)) from None
    return np.zeros(count, np.int64)


def _requests(config: Config) -> Requests | None:
    """The requests of a file, or those that the workload describes; None where there are none."""
    workload, arrival = config.workload, config.arrival
    if isinstance(workload, Gemv | Trace):
        return None
    if isinstance(arrival, Replay):
        requests = read_requests(Path(arrival.path), arrival.format.value, arrival.requests)
        if config.ordering is not Ordering.none:
            return _replayed(config, requests)
        if np.any(requests.after >= 0):
            raise ConfigError("ordering", "none", f"requests of {arrival.path} wait for others; use per_request")
        return requests
    if config.ordering is Ordering.none:
        return None
    if isinstance(workload, Prefill):
        count, prompt, tokens = workload.prompts, workload.tokens, 1
    else:
        count, prompt, tokens = workload.requests, workload.prompt_tokens, workload.tokens
    return Requests(_arrivals(config, count), np.full(count, prompt), np.full(count, tokens))


def _replayed(config: Config, requests: Requests) -> Requests:
    """At the asked speed; of a prefill the prompts alone."""
    due_ns = (requests.arrival_ns / config.arrival.speed).astype(np.int64)
    if not isinstance(config.workload, Prefill):
        return Requests(due_ns, requests.context_tokens, requests.generated_tokens, requests.after)
    if not requests.context_tokens.all():
        raise ConfigError("workload", "prefill", f"a request of {config.arrival.path} has no prompt")
    return Requests(due_ns, requests.context_tokens, np.ones(len(requests), np.int64), requests.after)


def _fitting(
    config: Config, info: DeviceInfo, requests: Requests | None, arms: tuple[Arm, ...], notices: list[str]
) -> Stream:
    """The stream; with as many layers as fit where the user did not say how many. ArenaMemoryError where none do."""
    room = int(info.memory_free_bytes * MEMORY_SHARE)
    workload = config.workload
    least = at_least(config, model_shape(config), requests)
    _require_records(least.commands, _what_to_lower(config))
    if least.operand_bytes > room:
        raise _too_large(f"at least {least.commands}", least.operand_bytes, room, info, _what_to_lower(config))
    if isinstance(workload, Trace):
        replay = trace_stream(workload, info.cache_bytes, config.batching.max_batch, notices)
        _require_room(info, replay, arms, room, _what_to_lower(config))
        return replay
    build = _builder(config, info, requests)
    if isinstance(workload, Gemv):
        stream = build(1)
        _require_room(info, stream, arms, room, _what_to_lower(config))
        return stream
    layers = workload.layers or config.model.layers
    stream = build(layers)
    while workload.layers is None and layers > 1 and _needed(info, stream, arms) > room:
        layers = min(layers - 1, max(1, layers * room // _needed(info, stream, arms)))
        stream = build(layers)
    _require_room(info, stream, arms, room, _what_to_lower(config))
    if layers < config.model.layers and not isinstance(workload, OwnSize):
        why = "as asked" if workload.layers else f"as many as fit into {room / 1e9:.1f} GB of {info.memory_name}"
        notices.append(f"layers: {layers} of {config.model.name}'s {config.model.layers}, {why}")
    return stream


def _what_to_lower(config: Config) -> str:
    """The settings that need less memory when lower."""
    if isinstance(config.workload, Gemv):
        return "workload.commands or batching.max_batch"
    if isinstance(config.workload, Trace):
        return "workload.commands or workload.repeat"
    if isinstance(config.arrival, Replay):
        return "workload.layers or arrival.requests"
    if isinstance(config.workload, Prefill):
        return "workload.layers or workload.prompts or workload.tokens"
    if config.ordering is Ordering.none:
        return "workload.layers or workload.tokens"
    return "workload.layers or workload.requests or workload.tokens"


def _require_room(info: DeviceInfo, stream: Stream, arms: tuple[Arm, ...], room: int, smaller: str) -> None:
    needed = _needed(info, stream, arms)
    if needed > room:
        raise _too_large(f"{stream.commands}", needed, room, info, smaller)
    _require_records(stream.commands, smaller)


def _too_large(commands: str, needed: int, room: int, info: DeviceInfo, smaller: str) -> ArenaMemoryError:
    return ArenaMemoryError(
        f"{commands} commands need {needed / 1e9:.1f} GB for operands and records, and"
        f" {room / 1e9:.1f} GB of {info.memory_name} may be used: lower {smaller}"
    )


def _require_records(commands: int, smaller: str) -> None:
    """ArenaMemoryError where what is kept of so many commands does not fit into main memory."""
    host = commands * HOST_RECORD_BYTES
    free = int(psutil.virtual_memory().available * MEMORY_SHARE)
    if host > free:
        raise ArenaMemoryError(
            f"records of {commands} commands or more need {host / 1e9:.1f} GB, and {free / 1e9:.1f} GB of main memory"
            f" may be used: lower {smaller}"
        )


def _needed(info: DeviceInfo, stream: Stream, arms: tuple[Arm, ...]) -> int:
    """Bytes of the device's memory: arenas, scratch, and what is taken whatever the stream."""
    scratch = 0
    for arm in arms:
        mode = mode_class(arm.mode)
        limits = arm.limits(stream, mode.takes_of(stream))
        scratch += mode.scratch_bytes(stream, limits, info.pack_bytes_per_launch)
    host = stream.commands * HOST_RECORD_BYTES if info.kind == "cpu" else 0
    return stream.arena_bytes + scratch + FIXED_BYTES[info.kind] + host


def _builder(config: Config, info: DeviceInfo, requests: Requests | None) -> Callable[[int], Stream]:
    """A function from a number of layers to the stream."""
    workload, dtype = config.workload, config.workload.dtype

    def replicas(weights: int, multiple: int = 1) -> int:
        if workload.replicas is not None:
            return int(workload.replicas)
        return replicas_for(workload.cache, weights * dtype.itemsize, info.cache_bytes, multiple)

    if isinstance(workload, Gemv):
        copies = replicas(workload.m * workload.k, min(config.batching.max_batch, workload.commands))
        gemm = (workload.m, workload.n, workload.k, workload.commands)
        due_ns = None if isinstance(config.arrival, Closed) else _arrivals(config, workload.commands)
        return lambda layers: gemv(*gemm, dtype, copies, workload.shuffle, config.seed, due_ns)

    model = model_shape(config)
    program = None
    if isinstance(workload, Steps):
        assert requests is not None
        program = program_of(workload, model, requests)
    weights_a_layer = program.weights if program else sum(m * k for _, m, k in model.linears())

    vocab = None if config.sampling.kind is SamplingKind.none else config.model.vocab

    def build(layers: int) -> Stream:
        copies = replicas(weights_a_layer * layers)
        if config.ordering is not Ordering.none:
            assert requests is not None
            chunk = config.scheduler.chunk_tokens
            return ChainStream(program or linears(model), layers, requests, dtype, copies, vocab, chunk, config.seed)
        if requests is not None:
            of_requests = prefill_requests if isinstance(workload, Prefill) else decode_requests
            return of_requests(model, layers, requests, config.arrival.speed, dtype, copies)
        if isinstance(workload, Prefill):
            return prefill(model, layers, workload.prompts, workload.tokens, dtype, copies)
        assert isinstance(workload, Decode)
        return decode(model, layers, workload.tokens, workload.users, dtype, copies)

    return build


def stream_on(config: Config, info: DeviceInfo) -> Stream:
    """The stream of a config with all its layers, on a device like `info`: to ask who could run it, not to run it."""
    if isinstance(config.workload, Trace):
        return trace_stream(config.workload, info.cache_bytes, config.batching.max_batch, [])
    layers = getattr(config.workload, "layers", None) or config.model.layers
    return _builder(config, info, _requests(config))(layers)


def model_shape(config: Config) -> ModelShape:
    """The model of the config, as the library's arithmetic takes it."""
    model = config.model
    return ModelShape(
        model.name,
        model.hidden,
        model.layers,
        model.q_heads,
        model.kv_heads,
        model.head_dim,
        model.intermediate,
        model.gated,
    )


def _residency(config: Config, stream: Stream, info: DeviceInfo) -> str | None:
    """Why inputs may come from a cache instead of memory, where they may."""
    if config.workload.cache is Cache.hot:
        return "inputs fit in the cache, as asked (workload.cache=hot)"
    if info.kind == "cpu":
        return "a CPU's caches, shared with other tenants, cannot be ruled out"
    if isinstance(stream, ChainStream) and stream.requests > 1:
        return "requests of one batch share weights, which are read once"
    if stream.input_bytes < COLD_CACHES * info.cache_bytes:
        return f"inputs cycle over {stream.input_bytes / 1e6:.0f} MB, the L2 holds {info.cache_bytes / 1e6:.0f} MB"
    if isinstance(stream, TraceStream):
        weights = stream.fewest_weights
    else:
        weights = min(slots for arena, slots in stream.arenas.items() if arena.is_weight)
    if weights is not None and weights < config.batching.max_batch:
        return f"commands of one batch share weights ({weights} of a shape), which the L2 serves again"
    return None
