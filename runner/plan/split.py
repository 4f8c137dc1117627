"""Jobs whose GPUs split each layer of a model (`parallel.tensor`): what they need, and the memory that they share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from launchopt.devices.peers.nccl_library import require
from launchopt.devices.peers.segment import PeerSegment, Team
from launchopt.errors import ConfigError
from launchopt.kernels.shared_peers import MOST_RANKS
from launchopt.streams.chains.chain import Stream, chain_of
from runner.config.groups import AllReduce, Ordering, Record
from runner.config.schema import Config
from runner.plan.job import Job


def require_gpus(config: Config) -> None:
    """Raise ConfigError if `device.gpus` names more or fewer GPUs than split the model, or nothing can be split."""
    tensor, device = config.parallel.tensor, config.device
    if tensor == 1:
        if config.parallel.all_reduce is AllReduce.nccl:
            raise _nccl_refused("adds the parts of GPUs that split a model: add parallel.tensor=2")
        return
    if device.gpus is None and (device.index or device.pin_cpu is not None):
        key, value = ("device.index", device.index) if device.index else ("device.pin_cpu", device.pin_cpu)
        raise ConfigError(key, value, "does not go with parallel.tensor: name the GPUs with device.gpus")
    if device.gpus is not None and len(device.gpus) != tensor:
        wanted = ",".join(map(str, range(tensor)))
        why = f"needs as many GPUs, and device.gpus names {len(device.gpus)}: leave it out, or type [{wanted}]"
        raise ConfigError("parallel.tensor", tensor, f"{why}; on the cpu device these are cores")
    workload = config.workload
    if not workload.has_layers or workload.instead_of_model:
        raise _refused(config, f"workload={workload.name} has no model to split: use layer or decode")
    if config.ordering is not Ordering.per_request:
        raise _refused(config, f"ordering={config.ordering.value} has no order of all-reduces: use per_request")
    if config.record.commands is Record.all:
        raise ConfigError("record.commands", "all", "is for one GPU: leave it out with parallel.tensor")
    if not config.batching.stall:
        raise ConfigError(
            "batching.stall", "false", "must be true with parallel.tensor, which flushes at no time limit"
        )


def with_gpus(config: Config, kind: str) -> Config:
    """Return the config with the first GPUs, or cores of the CPU device, if GPUs split a model and none are named.

    ConfigError if this process has too few cores; GPUs are checked later.
    """
    tensor = config.parallel.tensor
    if tensor == 1 or config.device.gpus is not None:
        return config
    cores = sorted(os.sched_getaffinity(0))
    if kind == "cpu" and len(cores) < tensor:
        raise _refused(config, f"needs a core for each part on the cpu device, and this process has {len(cores)}")
    first = cores[:tensor] if kind == "cpu" else [*range(tensor)]
    return replace(config, device=replace(config.device, gpus=first))


def require_same_batches(config: Config, stream: Stream, kind: str) -> None:
    """Raise ConfigError if the GPUs that split a model might form different batches, or are too many."""
    if config.parallel.tensor == 1:
        return
    requests, most = chain_of(stream).requests, config.batching.max_batch
    if config.scheduler.kind == "none":
        is_closed = not config.arrival.has_requests and config.arrival.is_closed
        if not is_closed or requests > most:
            why = "in a closed loop" if not is_closed else f"with batching.max_batch={requests} or more"
            raise _refused(config, f"GPUs must form the same batches: use scheduler=continuous, or run {why}")
    if config.parallel.all_reduce is AllReduce.nccl:
        _require_nccl(kind)
    if kind == "cuda" and config.parallel.tensor > MOST_RANKS:
        raise _refused(config, f"at most {MOST_RANKS} GPUs of a host can split a model")


def _require_nccl(kind: str) -> None:
    """Raise ConfigError if NCCL does not run on a kind of device, or is not installed."""
    if kind == "cpu":
        raise _nccl_refused("needs GPUs, and the device is the CPU: type device=cuda, or parallel.all_reduce=own")
    require()


def new_team(jobs: Sequence[Job]) -> PeerSegment:
    """Return new memory for consumers that split a model: on the CPU device also for the activations of each."""
    job = jobs[0]
    stream, arena = chain_of(job.stream), chain_of(job.stream).activations
    memory_bytes = stream.arenas[arena] * arena.slot_bytes if job.device_kind == "cpu" else 0
    return PeerSegment.create(len(jobs), memory_bytes)


def member(job: Job, segment: PeerSegment) -> Team:
    """Return what a job's consumer needs to find the others."""
    return Team(segment.name, job.consumer, job.stream.tensor, job.spin_us, job.sleep_us, job.nccl)


def _nccl_refused(why: str) -> ConfigError:
    return ConfigError("parallel.all_reduce", "nccl", why)


def _refused(config: Config, why: str) -> ConfigError:
    return ConfigError("parallel.tensor", config.parallel.tensor, why)
