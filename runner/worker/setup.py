"""Prepare a mode, and measure what its setup takes and on what: tuning, compilation, everything."""

from __future__ import annotations

import time
from collections.abc import Mapping

from launchopt.command import ShapeKey
from launchopt.devices.base import Device, is_gpu
from launchopt.modes.base import Mode, Prepared
from launchopt.recording.columns import Row


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


def collective_columns(device: Device) -> Row:
    """Return the columns of the all-reduces of a run; null if no model is split."""
    if device.split is None:
        return dict.fromkeys(("collectives", "all_reduce_us", "all_reduce_wait_us"))
    calls, total_ns, wait_ns = device.split.collectives()
    us = {"all_reduce_us": total_ns, "all_reduce_wait_us": wait_ns}
    return {"collectives": calls, **{name: ns / calls / 1e3 if calls else None for name, ns in us.items()}}
