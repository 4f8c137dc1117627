"""What kernels that copy do, on the host: feedback between steps, and the copies of packed batches."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE
from launchopt.devices.feedback.host import HostFeedback
from launchopt.sampling import Sampling, SamplingKind
from support.cuda.fake_memory import require_inside


def memory_at(address: int, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """Return the host's memory at an address as an array, to read or to write."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    require_inside(address, size)
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind).reshape(shape)


def fed_back(feed: dict[str, int], row_words: NDArray[np.uint64], dtype: Dtype, sampling: Sampling) -> None:
    """Feed rows back as struct Feedback says; `row_words`: the rows' arguments, [ROW_WORDS, rows]."""
    sources, targets, histories, places, drawn = row_words
    samples, kind = sampling.kind is not SamplingKind.none, STORAGE[dtype]
    finals = np.stack([memory_at(int(each), (feed["vocab" if samples else "hidden"],), kind) for each in sources])
    table = None
    if samples:
        rows = feed["vocab"], feed["row_bytes"] // dtype.itemsize
        table = memory_at(feed["embedding"], rows, kind)[:, : feed["hidden"]]
    numbers = (drawn >> np.uint64(32)).astype(np.uint32), drawn.astype(np.uint32)
    inputs, ids = HostFeedback(dtype, sampling, table).advance(finals, *numbers)
    for i, (target, history, place) in enumerate(
        zip(targets.tolist(), histories.tolist(), places.tolist(), strict=True)
    ):
        memory_at(target, (feed["hidden"],), kind)[:] = inputs[i]
        if history:
            memory_at(history, (feed["hidden"],), kind)[:] = finals[i]
        if place:
            memory_at(place, (1,), np.int32)[:] = 0 if ids is None else ids[i]


def _slots(slots: int, count: int) -> list[int]:
    found: list[int] = memory_at(slots, (count,), np.uint32).tolist()
    return found


def gather(grid: tuple[int, int], block: tuple[int], arguments: tuple[int, ...]) -> None:
    """Copy slots of an arena into adjacent slots of scratch memory, as the kernels of slot_copy do."""
    arena, scratch, slots, unit, width = map(int, arguments)
    for i, slot in enumerate(_slots(slots, grid[1])):
        ctypes.memmove(scratch + 16 * i * width, arena + 16 * slot * unit, 16 * width)


def scatter(grid: tuple[int, int], block: tuple[int], arguments: tuple[int, ...]) -> None:
    scratch, arena, slots, unit, width = map(int, arguments)
    for i, slot in enumerate(_slots(slots, grid[1])):
        ctypes.memmove(arena + 16 * slot * unit, scratch + 16 * i * width, 16 * width)
