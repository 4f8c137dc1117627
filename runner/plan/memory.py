"""Whether what a stream needs fits into the memory there is: its operands, what modes want beside them, its records.

In: a stream, or how many commands it will have; the device. Out: nothing, or an ArenaMemoryError: what to lower.
"""

from __future__ import annotations

import psutil

from launchopt.devices.base import DeviceInfo
from launchopt.errors import ArenaMemoryError
from launchopt.modes import mode_class
from runner.config.groups import Ordering
from runner.config.schema import Config
from runner.plan.job import Arm, Stream

MEMORY_SHARE = 0.9  # of what is free; the rest is for libraries, scratch of the check and the unforeseen
FIXED_BYTES = {"cpu": 768 << 20, "cuda": 2 << 30}  # ceilings' buffers, workspace, chunks of the check
HOST_RECORD_BYTES = 1 + 160  # of the check after a run: which commands ran, and their slots


def what_to_lower(config: Config) -> str:
    """Return the settings that need less memory when lower."""
    if config.workload.has_requests and config.arrival.has_requests:
        return "workload.layers or arrival.requests"
    return str(config.workload.lower(config.ordering is not Ordering.none))


def require_room(info: DeviceInfo, stream: Stream, arms: tuple[Arm, ...], room: int, smaller: str) -> None:
    """ArenaMemoryError where the stream needs more than `room` bytes of the device, or its records more than there is.

    `smaller`: the settings that need less memory when lower.
    """
    needed = needed_bytes(info, stream, arms)
    if needed > room:
        raise too_large(f"{stream.commands}", needed, room, info, smaller)
    require_records(stream.commands, smaller)


def too_large(commands: str, needed: int, room: int, info: DeviceInfo, smaller: str) -> ArenaMemoryError:
    """What to raise where so many commands need `needed` bytes, of `room`."""
    return ArenaMemoryError(
        f"{commands} commands need {needed / 1e9:.1f} GB for operands and records, and"
        f" {room / 1e9:.1f} GB of {info.memory_name} may be used: lower {smaller}"
    )


def require_records(commands: int, smaller: str) -> None:
    """ArenaMemoryError where what is kept of so many commands does not fit into main memory."""
    host = commands * HOST_RECORD_BYTES
    free = int(psutil.virtual_memory().available * MEMORY_SHARE)
    if host > free:
        raise ArenaMemoryError(
            f"records of {commands} commands or more need {host / 1e9:.1f} GB, and {free / 1e9:.1f} GB of main memory"
            f" may be used: lower {smaller}"
        )


def needed_bytes(info: DeviceInfo, stream: Stream, arms: tuple[Arm, ...]) -> int:
    """Bytes of the device's memory: arenas, scratch, and what is taken whatever the stream."""
    scratch = 0
    for arm in arms:
        mode = mode_class(arm.mode)
        limits = arm.limits(stream, mode.takes_of(stream))
        scratch += mode.scratch_bytes(stream, limits, info.pack_bytes_per_launch)
    host = stream.commands * HOST_RECORD_BYTES if info.kind == "cpu" else 0
    return stream.arena_bytes + scratch + FIXED_BYTES[info.kind] + host
