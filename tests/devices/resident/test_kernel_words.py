"""The structs that kernels/persistent.cu and its host share: struct Shape and struct Queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cuda.libraries import imported

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.resident.ring import is_sent, shape_words
from launchopt.kernels.shared import ENTRY_WORDS, GROUPS, QUEUE, SHAPE


@pytest.mark.parametrize(("m", "n", "swapped"), [(300, 3, False), (5, 77, True)])
def test_words_of_a_shape_match_its_struct(m: int, n: int, swapped: bool) -> None:
    words, is_swapped = shape_words(ShapeKey(m, n, 20, Dtype.fp16), (21, 22, 23))
    assert is_swapped == swapped
    shape = dict(zip(SHAPE.names or (), words, strict=True))
    assert shape == {
        "rows": max(m, n),
        "columns": min(m, n),
        "k": 20,
        "row_elements": 22 if swapped else 21,
        "column_elements": 21 if swapped else 22,
        "row_step": 23 if swapped else 1,
        "column_step": 1 if swapped else 23,
        "least_rows": 4096 // (20 * 2),
    }


def test_sizes_that_one_warp_runs() -> None:
    small = [(16, 1, 64, Dtype.fp32), (1, 3, 4, Dtype.fp32), (1, 1, 128, Dtype.bf16)]
    not_small = [(17, 1, 64), (16, 2, 64), (16, 1, 66), (16, 1, 68)]
    assert all(is_sent(ShapeKey(*shape)) for shape in small)
    assert not any(is_sent(ShapeKey(*shape, Dtype.fp32)) for shape in not_small)


def on_gpu(address: int, values: Any = None) -> Any:
    """Return the part of a CuPy array that `seal` reads."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address), values=values)


def sealed(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, int], dict[str, int]]:
    """Return a sealed `Resident`, names of its tables by address, and its kernel parameters by name."""
    resident: Any = imported("launchopt.devices.resident.kernel")

    made: Any = resident.Resident.__new__(resident.Resident)
    made._ring, made._host_done = np.zeros(1, np.int64), np.zeros(1, np.int64)
    made._host_outputs, made._control = np.zeros((2, 1), np.int64)
    words = 1 << 40
    made._words, made._arrived = on_gpu(words), on_gpu(1 << 42)
    made._done = words + 8 * ENTRY_WORDS * (1 << resident.ENTRY_BITS)
    made._shapes, made._blocks, made._patience_ns = [[0] * 8] * 3, 7, 11
    uploaded: list[Any] = []

    def asarray(values: Any) -> Any:
        uploaded.append(on_gpu(1 << 44 | len(uploaded), values))
        return uploaded[-1]

    monkeypatch.setattr(resident, "cupy", SimpleNamespace(asarray=asarray))
    made.seal()
    parameters = uploaded[-1].values
    assert parameters.dtype == np.int64
    after_done = made._done + (8 << resident.CAPACITY_BITS)
    expected = {
        "ring": made._ring.ctypes.data,
        "host_done": made._host_done.ctypes.data,
        "host_outputs": made._host_outputs.ctypes.data,
        "control": made._control.ctypes.data,
        "entries": words,
        "done": made._done,
        "ticket": after_done,
        "gone": after_done + 8,
        "progress": after_done + 16,
        "arrived": 1 << 42,
        "shapes": 1 << 44,
        "shape_count": 3,
        "capacity_bits": resident.CAPACITY_BITS,
        "entry_bits": resident.ENTRY_BITS,
        "workers": GROUPS * 7 - 1,
        "patience_ns": 11,
        "direct_bytes": resident.DIRECT_BYTES,
    }
    return resident, expected, dict(zip(QUEUE.names or (), parameters.tolist(), strict=True))


def test_words_of_a_queue_match_its_struct(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, parameters = sealed(monkeypatch)
    assert parameters == expected
