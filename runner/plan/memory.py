"""Memory of a job: operands, scratch of its modes, and records, compared with the free memory and with the cache.

An ArenaMemoryError names the settings to lower.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from launchopt.command import RECORD_BYTES
from launchopt.devices.base import DeviceInfo
from launchopt.devices.cpu.info import reported_cache_bytes
from launchopt.devices.shares import whole_weight_bytes
from launchopt.errors import ArenaMemoryError, ConfigError
from launchopt.modes import mode_class
from launchopt.streams.chains.chain import Stream, chain_of
from launchopt.streams.footprint import COLD_CACHES, Cache
from runner.config.groups import Ordering
from runner.config.schema import Config
from runner.plan.job import Arm

# usable share of free memory; libraries need the rest, and on a CPU this machine's other processes
MEMORY_SHARE = {"cpu": 0.8, "cuda": 0.9}
# per element of the largest weight, on a CPU: fitted to one interrupted run of two layers of llama_3_8b, which took
# 7.5 GB in its warm-up beside 1.8 GB of operands; the end of its check was not measured
CHECK_BYTES_PER_ELEMENT = 40
OOM_KILLS = Path("/proc/vmstat")
FIXED_BYTES = {"cpu": 768 << 20, "cuda": 2 << 30}  # buffers of the ceilings, workspace, chunks of the check
# main memory per record of steps that are issued together: two copies of it, and up to four rows of the recorder
HELD_RECORD_BYTES = 2 * RECORD_BYTES + 4 * 32
HOST_RECORD_BYTES = 1 + 160  # per command, for the check after a run: a flag that it ran, and its slots


def what_to_lower(config: Config) -> str:
    """Return the settings whose lower values need less memory."""
    if config.workload.has_requests and config.arrival.has_requests:
        return "workload.layers or arrival.requests"
    return str(config.workload.lower(config.ordering is not Ordering.none))


def require_memory(info: DeviceInfo, stream: Stream, arms: tuple[Arm, ...], usable: int, to_lower: str) -> None:
    """Raise ArenaMemoryError if the job needs more than `usable` bytes of the device, or too much main memory.

    `to_lower` are the settings whose lower values need less memory.
    """
    needed = needed_bytes(info, stream, arms)
    if needed > usable:
        if stream.has_steps and stream.layers == 1:
            _require_a_layer(info, stream, usable)
        raise too_large(f"{stream.commands:,}", needed, usable, info, to_lower)
    require_records(stream.commands, to_lower)


def _require_a_layer(info: DeviceInfo, stream: Stream, usable: int) -> None:
    """Raise ArenaMemoryError if the weights of a layer, and their check, need more than `usable` bytes in any run."""
    check = _check_bytes(stream) if info.kind == "cpu" else 0
    weights = sum(arena.slot_bytes * slots for arena, slots in stream.arenas.items() if arena.is_weight)
    needed = FIXED_BYTES[info.kind] + check + weights
    if needed > usable:
        checked = f", {check / 1e9:.1f} GB of them to check its largest weight" if check else ""
        raise ArenaMemoryError(
            f"one layer needs {needed / 1e9:.1f} GB{checked}, and {usable / 1e9:.1f} GB of {info.memory_name} may be"
            " used: choose a smaller model"
        )


def too_large(commands: str, needed: int, usable: int, info: DeviceInfo, to_lower: str) -> ArenaMemoryError:
    """Return the error for a job of `commands` that needs `needed` bytes and may use `usable`."""
    subject = "1 command needs" if commands == "1" else f"{commands} commands need"
    return ArenaMemoryError(
        f"{subject} {needed / 1e9:.1f} GB for operands and records, and"
        f" {usable / 1e9:.1f} GB of {info.memory_name} may be used: lower {to_lower}"
    )


def require_held(arm: Arm, stream: Stream) -> None:
    """Raise ConfigError if the records of steps that an arm gets together do not fit into main memory."""
    if arm.together == 1:
        return
    chain = chain_of(stream)
    held = min(arm.max_batch, chain.requests) * chain.most_rows(arm.together) * HELD_RECORD_BYTES
    free = int(psutil.virtual_memory().available * MEMORY_SHARE["cpu"])
    if held > free:
        why = f"its records need {held / 1e9:.1f} GB, and {free / 1e9:.1f} GB of main memory are free"
        raise ConfigError("mode.tokens", arm.together, f"{why}: lower it")


def require_records(commands: int, to_lower: str) -> None:
    """Raise ArenaMemoryError if the records of this many commands do not fit into main memory."""
    host = commands * HOST_RECORD_BYTES
    free = int(psutil.virtual_memory().available * MEMORY_SHARE["cpu"])
    if host > free:
        raise ArenaMemoryError(
            f"records of {commands} commands or more need {host / 1e9:.1f} GB, and {free / 1e9:.1f} GB of main memory"
            f" may be used: lower {to_lower}"
        )


def needed_bytes(info: DeviceInfo, stream: Stream, arms: tuple[Arm, ...]) -> int:
    """Return the bytes of the device's memory at the peak: arenas, scratch, the check on a CPU, and a fixed part."""
    scratch = shared = 0
    for arm in arms:
        mode = mode_class(arm.mode, arm.options)
        limits = arm.limits(stream, mode.takes_of(stream))
        scratch += mode.scratch_bytes(stream, limits, info.pack_bytes_per_launch)
        if info.kind == "cuda":
            shared = max(shared, mode.shared_bytes(stream, limits))
    host = stream.commands * HOST_RECORD_BYTES + _check_bytes(stream) if info.kind == "cpu" else 0
    whole = whole_weight_bytes(chain_of(stream)) if stream.has_steps else 0  # for the check of a split model
    return stream.arena_bytes + whole + scratch + shared + FIXED_BYTES[info.kind] + host


def _check_bytes(stream: Stream) -> int:
    """Return the bytes for the check of a workload of steps. That of independent commands works on small chunks."""
    weights = [arena.rows * arena.cols for arena in stream.arenas if arena.is_weight]
    return CHECK_BYTES_PER_ELEMENT * max(weights, default=0) if stream.has_steps else 0


def residency_of(config: Config, stream: Stream, info: DeviceInfo) -> str | None:
    """Return the reason why inputs may come from a cache instead of memory; None if they cannot."""
    if config.workload.cache is Cache.hot:
        return "inputs fit in the cache, as asked (workload.cache=hot)"
    if info.kind == "cpu":
        reported, taken = reported_cache_bytes() >> 20, info.cache_bytes >> 20
        host = f"; this machine reports {reported} MiB, of which its cores' share is taken as {taken} MiB"
        return f"a CPU's caches, shared with other tenants, cannot be ruled out{host if taken < reported else ''}"
    if stream.batches_share_weights:
        return "requests of one batch share weights, which are read once"
    if stream.input_bytes < COLD_CACHES * info.cache_bytes:
        return f"inputs cycle over {stream.input_bytes / 1e6:.0f} MB, the L2 holds {info.cache_bytes / 1e6:.0f} MB"
    weights = stream.fewest_weights
    if weights is not None and weights < config.batching.max_batch:
        return f"commands of one batch share weights ({weights} of a shape), which the L2 serves again"
    return None


def oom_kills() -> int | None:
    """Return how many processes Linux has killed for lack of memory since it started; None if it does not say."""
    try:
        words = dict(line.split() for line in OOM_KILLS.read_text().splitlines())
        return int(words["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def out_of_memory(stream: Stream, kills_before: int | None) -> str:
    """Return what to say of a killed process whose likely cause was a lack of memory; no text if it was not."""
    kills, whole = oom_kills(), psutil.virtual_memory().total
    is_likely = stream.arena_bytes > whole / 2 if kills is None or kills_before is None else kills > kills_before
    if not is_likely:
        return ""
    used = f"its operands alone take {stream.arena_bytes / 1e9:.1f} of {whole / 1e9:.1f} GB"
    fewer = f"; try workload.layers={stream.layers // 2}" if stream.layers > 1 else ""
    return f", most likely out of memory: {used}{fewer}"
