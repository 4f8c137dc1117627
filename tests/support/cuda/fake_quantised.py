"""Stand-ins for our kernels that read quantised weights: both GEMVs, and step_gemm.cu without what it can fuse.

They compute from the addresses and words of a launch, and from the macros that the kernel was compiled with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE, from_float32, to_float32
from launchopt.kernels.shared import STEP_GEMM
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat
from launchopt.weights.quantiser import dequantised
from support.cuda.fake_kernels import Compute, Launched, Read, commands_of, words_at


def macros_of(options: Sequence[str]) -> dict[str, int]:
    """Return the macros with whole numbers among the options of a compilation."""
    words = (option.removeprefix("-D").split("=") for option in options if option.startswith("-D"))
    return {name: int(value) for name, value in words if value.isdecimal()}


def packing_of_macros(macros: Mapping[str, int]) -> Packing:
    """Return how a weight is stored that a kernel with these macros reads."""
    if "WEIGHTS" not in macros:
        return PLAIN
    return Packing(list(WeightFormat)[macros["WEIGHTS"]], list(Scales)[macros["SCALES"]])


def _rows(address: int, rows: int, features: int, step_bytes: int, dtype: Dtype) -> NDArray[Any]:
    """Return a view of rows in memory, `step_bytes` apart, in the storage type."""
    kind = np.dtype(STORAGE[dtype])
    size = (rows - 1) * step_bytes + features * kind.itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
    return np.lib.stride_tricks.as_strided(flat.view(kind), (rows, features), (step_bytes, kind.itemsize))


def weights_at(address: int, rows: int, k: int, packing: Packing) -> NDArray[np.float64]:
    """Return the values of the weight in a slot."""
    slot = np.frombuffer((ctypes.c_char * packing.end(rows, k)).from_address(address), np.uint8)
    found: NDArray[np.float64] = dequantised(np, slot[None], rows, k, packing, np.float64)[0]
    return found


def _multiply(a: NDArray[np.float64], b: NDArray[Any], c: NDArray[Any], dtype: Dtype) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads arbitrary values
        c[:] = from_float32((to_float32(b, dtype) @ a.T).astype(np.float32), dtype)


def gemv_quantised(macros: Mapping[str, int]) -> Compute:
    """Return a fake of gemv_quantised.cu, and of gemv_quantised_rows.cu."""
    dtype, packing = Dtype(macros["DTYPE"]), packing_of_macros(macros)

    def compute(launched: Launched) -> None:
        size = dtype.itemsize
        for (a, b, c), (m, n, k), (lda, ldb, ldc) in commands_of(launched):
            assert (lda, n) == (k, macros["N"])
            weights = weights_at(a, m, k, packing)
            _multiply(weights, _rows(b, n, k, ldb * size, dtype), _rows(c, n, m, ldc * size, dtype), dtype)

    return compute


def step_gemm(macros: Mapping[str, int]) -> Read:
    """Return a fake of step_gemm.cu for a quantised weight."""
    dtype, packing = Dtype(macros["DTYPE"]), packing_of_macros(macros)
    assert packing
    assert not macros["NORMED"] + macros["ADDS"] + macros["GATED"]

    def read(config: Any, parameters: int) -> Callable[[], object]:
        pointers = words_at(parameters, 5).tolist()
        a, b, c, _ = (int(words_at(pointer, 1)[0]) for pointer in pointers[:4])
        words = words_at(pointers[4], STEP_GEMM.itemsize // 8).view(STEP_GEMM)[0]
        rows, columns = int(words["rows"]), int(words["columns"])
        k = int(words["k_bytes"]) // dtype.itemsize
        assert words["a_step"] == packing.row_bytes(k, dtype.itemsize)
        assert words["scales_at"] == packing.scales_at(rows, k)
        assert words["across"] == packing.scales_shape(rows, k)[1]
        assert columns <= macros["COLUMNS"]
        given = _rows(b, columns, k, int(words["b_step"]), dtype)
        out = _rows(c, columns, rows, int(words["c_step"]), dtype)
        return lambda: _multiply(weights_at(a, rows, k, packing), given, out, dtype)

    return read
