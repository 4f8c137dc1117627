"""The consumers of a job: one for each entry of `device.gpus`, which is a GPU, or a core of the CPU device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from launchopt.devices import find_device
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError, DeviceError
from launchopt.producing.production import Routing
from launchopt.streams.chains.chain import Stream, chain_of
from launchopt.streams.chains.chain_table import ChainColumn
from runner.config.groups import Ordering, Prefixes, Record
from runner.config.schema import Config
from runner.plan.job import Job


def first_index(config: Config) -> int:
    """Return the number of the GPU that is looked for first."""
    return config.device.gpus[0] if config.device.gpus else config.device.index


def facts_of_all(config: Config, info: DeviceInfo) -> DeviceInfo:
    """Return the facts that hold on every GPU of `device.gpus`, and check that each exists. info: of the first."""
    gpus = config.device.gpus
    if gpus is None:
        return info
    if info.kind == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        if missing := [core for core in gpus if core not in cores]:
            raise _refused(gpus, f"{missing[0]} is no core of this process; on the cpu device these are cores: {cores}")
        if config.device.threads not in (None, 1):
            raise ConfigError("device.threads", config.device.threads, "must be 1, as a consumer has one core")
        return replace(info, memory_free_bytes=info.memory_free_bytes // len(gpus))
    try:
        infos = [info, *(find_device("cuda", index)[0] for index in gpus[1:])]
    except DeviceError as error:
        raise _refused(gpus, str(error).partition(": ")[2]) from None
    if other := next((each for each in infos if each.name != info.name), None):
        raise _refused(gpus, f"GPU {other.index} is an {other.name}, GPU {info.index} an {info.name}")
    return replace(info, memory_free_bytes=min(each.memory_free_bytes for each in infos))


def require_routable(config: Config, stream: Stream) -> None:
    """Raise ConfigError for a job whose commands cannot be routed to the consumers of `device.gpus`."""
    gpus, routing = config.device.gpus, config.device.routing
    if routing is Routing.prefix and config.scheduler.prefixes is Prefixes.none:
        why = "routes by cached tokens of prompts: add scheduler=continuous scheduler.prefixes=hash"
        raise ConfigError("device.routing", "prefix", why)
    if routing is not Routing.round_robin and (gpus is None or config.parallel.tensor > 1):
        among = "every GPU of parallel.tensor gets every command: leave it out"
        why = among if config.parallel.tensor > 1 else "chooses among several GPUs: add device.gpus=[0,1]"
        raise ConfigError("device.routing", routing.value, why)
    if gpus is None or len(gpus) == 1 or config.parallel.tensor > 1:
        return
    if config.record.commands is Record.all:
        raise ConfigError("record.commands", "all", "is for one GPU: leave it out with device.gpus")
    if config.ordering is Ordering.violated:
        raise ConfigError("ordering", "violated", "is for one GPU: leave it out with device.gpus")
    if not stream.has_steps and (stream.has_groups or stream.ordered_requests):
        raise _refused(gpus, "commands of this workload depend on each other, so they stay on one GPU")
    roots, what = stream.commands, "commands"
    if stream.has_steps:
        roots, what = int(np.count_nonzero(chain_of(stream).table[:, ChainColumn.AFTER] < 0)), "requests to route"
    if roots < len(gpus):
        raise _refused(gpus, f"the workload has {roots} {what}: fewer than GPUs")
    turn = config.batching.max_batch  # commands that a GPU gets in a row, in a closed loop
    is_closed = config.arrival.is_closed and not stream.span_ns
    if not stream.has_steps and is_closed and roots <= (len(gpus) - 1) * turn:
        why = f"each gets batching.max_batch={turn} of the {roots} commands at a time, and one gets none"
        raise _refused(gpus, f"{why}: use batching.max_batch={-(-roots // len(gpus))} or less")


def notices(config: Config, info: DeviceInfo) -> list[str]:
    """Return what the user should know of a run with several consumers."""
    gpus = config.device.gpus
    if gpus is None or len(gpus) == 1:
        return []
    if config.parallel.tensor > 1:
        found = [
            f"parallel.tensor: {len(gpus)} GPUs split each layer; batches are not flushed after batching.timeout_us"
        ]
    else:
        found = [f"device.gpus: {len(gpus)} consumers, {config.device.routing.value}"]
    if info.kind == "cpu" and len(gpus) == len(os.sched_getaffinity(0)):
        found.append("the producer shares a core with a consumer, as no other is left")
    return found


def jobs_of(job: Job, config: Config) -> tuple[Job, ...]:
    """Return the job of each consumer."""
    gpus = config.device.gpus
    if gpus is None:
        return (job,)
    if len(gpus) > 1 and not job.is_split:
        job = replace(job, consumers=len(gpus), routing=config.device.routing)
    jobs = [replace(job, consumer=at, gpu=gpu if len(gpus) > 1 else None) for at, gpu in enumerate(gpus)]
    if job.device_kind == "cpu":
        return tuple(replace(each, pin_cpu=core, threads=1) for each, core in zip(jobs, gpus, strict=True))
    return tuple(replace(each, device_index=gpu) for each, gpu in zip(jobs, gpus, strict=True))


def _refused(gpus: Sequence[int], why: str) -> ConfigError:
    return ConfigError("device.gpus", f"[{','.join(map(str, gpus))}]", why)
