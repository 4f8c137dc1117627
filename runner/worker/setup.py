"""What is set up before the runs of a job: modes, with the cost of their setup as columns, and space for commands."""

from __future__ import annotations

import time
from collections.abc import Mapping

from launchopt.command import ShapeKey
from launchopt.devices.base import Device, is_gpu
from launchopt.modes.base import Mode, Prepared
from launchopt.recording.columns import Row
from launchopt.streams.chains.chain import chain_of
from runner.plan.job import Arm, Job

COSTS = ("capture", "instantiate", "upload", "update", "compile")  # costs of modes that have a column


def prepared_with_costs(mode: Mode, device: Device, limits: Mapping[ShapeKey, int]) -> tuple[Prepared, Row]:
    """Make a mode ready to launch; return it, and the columns of its setup costs."""
    start_ns, before = time.monotonic_ns(), _parts_ns(device)
    prepared = mode.prepare(device, limits)
    device.warm_up()
    after = _parts_ns(device)
    parts_ms = [
        None if end is None or begin is None else (end - begin) / 1e6 for begin, end in zip(before, after, strict=True)
    ]
    tuning_ms, compile_ms = parts_ms
    return prepared, {
        "setup_ms": (time.monotonic_ns() - start_ns) / 1e6,
        "tuning_ms": tuning_ms,
        "compile_ms": compile_ms,
        "tuning": ("all" if device.lt.tunes else "none") if is_gpu(device) else None,
    }


def _parts_ns(device: Device) -> tuple[int | None, int | None]:
    """Return the time so far of tuning, and of compiling our own kernels, ns; None on a device without them."""
    return (device.lt.tuning_ns, device.kernels.compilation_ns) if is_gpu(device) else (None, None)


def most_held(job: Job, modes: list[Mode]) -> int:
    """Return how many commands all buckets of an arm can hold together, at most: the maximum over all arms."""
    held_by = [held(job, arm, mode) for arm, mode in zip(job.arms, modes, strict=True)]
    if job.stream.has_steps:
        held_by += [arm.max_batch * chain_of(job.stream).most_rows(arm.together) for arm in job.arms]
    return max(held_by)


def held(job: Job, arm: Arm, mode: Mode) -> int:
    """Return how many commands all buckets of an arm can hold together."""
    return sum(arm.buckets(job.stream, mode)) * arm.together


def cost_columns(prepared: Prepared, setup: Row) -> Row:
    """Return the columns of setup costs, and of the work that a mode did beside the commands.

    setup: as of `prepared_with_costs`.
    """
    counters = prepared.counters()
    parts = {f"{name}_ms": counters.costs_ns.get(name) for name in COSTS}
    return {
        **dict.fromkeys(parts),
        **setup,
        **{name: ns / 1e6 for name, ns in parts.items() if ns is not None},
        "padded_commands": counters.padded_commands,
        "graph_replays": counters.graph_replays,
        "streams": prepared.path.stream_count,
        "library": prepared.library,
    }


def collective_columns(device: Device) -> Row:
    """Return the columns of the all-reduces of a run; null if no model is split."""
    if device.split is None:
        return dict.fromkeys(("collectives", "all_reduce_us", "all_reduce_wait_us"))
    if (found := device.split.collectives()) is None:
        return dict.fromkeys(("collectives", "all_reduce_us", "all_reduce_wait_us"))
    calls, total_ns, wait_ns = found
    us = {"all_reduce_us": total_ns, "all_reduce_wait_us": wait_ns}
    return {"collectives": calls, **{name: ns / calls / 1e3 if calls else None for name, ns in us.items()}}
