"""A stand-in for the driver's cuLaunchKernelEx: a C function that reads what it is given, by cuda.h, and runs Python.

`FakeKernels.kernel` makes a kernel of a Python function of a `Launched`; `elementwise` has some of ops.cu's in NumPy.
So compiled loops can launch kernels, and their outputs be checked, on a machine without a GPU. fp32 only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op

LAUNCH_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)
CUDA_ERROR_INVALID_VALUE = 1
VALUE_BYTES = 64


class Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_ubyte * VALUE_BYTES))


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h: the compiler lays it out."""

    _fields_ = (
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Launched:
    """One launch, as the driver sees it."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int | None
    attributes: list[tuple[int, bytes]]
    operands: list[int]  # A, B, C, request
    words: NDArray[np.int64]  # the fifth parameter, by value


Compute = Callable[[Launched], None]


def read_config(address: int) -> Config:
    """What lies at an address."""
    return Config.from_address(address)


def _words(address: int, count: int) -> NDArray[np.int64]:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)).copy()


class FakeKernels:
    """Kernels that take four words and a struct of `words`; `fail_at`: the launch that returns an error."""

    def __init__(self, words: int, fail_at: int | None = None) -> None:
        self._words, self._fail_at = words, fail_at
        self._kernels: dict[int, Compute] = {}
        self.launches: list[Launched] = []
        self.capture: list[Callable[[], object]] | None = None  # while there is one, launches go there
        self._function = LAUNCH_KERNEL(self._launch)

    @property
    def address(self) -> int:
        """Of the function, as a context has it."""
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        return address

    def kernel(self, compute: Compute = lambda launched: None) -> Any:
        """What CuPy gives for a kernel, as far as `KernelPlans.row` looks at it."""
        handle = len(self._kernels) + 0x1000
        self._kernels[handle] = compute
        return SimpleNamespace(kernel=SimpleNamespace(ptr=handle), max_dynamic_shared_size_bytes=0)

    def _launch(self, config_address: int, function: int, parameters: int, extra: int) -> int:
        config = read_config(config_address)
        if len(self.launches) + 1 == self._fail_at or extra or function not in self._kernels:
            return CUDA_ERROR_INVALID_VALUE
        pointers = _words(parameters, 5).tolist()
        launched = Launched(
            (config.grid_x, config.grid_y, config.grid_z),
            (config.block_x, config.block_y, config.block_z),
            config.shared_bytes,
            config.stream,
            [(each.id, bytes(each.value)) for each in config.attributes[: config.attribute_count]],
            [int(_words(pointer, 1)[0]) for pointer in pointers[:4]],
            _words(pointers[4], self._words),
        )
        if self.capture is None:
            self._run(function, launched)
        else:
            self.capture.append(lambda: self._run(function, launched))
        return 0

    def _run(self, function: int, launched: Launched) -> None:
        self.launches.append(launched)
        self._kernels[function](launched)


def rows_at(address: int, rows: int, features: int, row_elements: int) -> Any:
    """float32 [rows, features], to read or to write."""
    flat = np.ctypeslib.as_array(
        ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), ((rows - 1) * row_elements + features,)
    )
    return np.lib.stride_tricks.as_strided(flat, (rows, features), (4 * row_elements, 4))


Three = Sequence[int]


def commands_of(launched: Launched) -> list[tuple[Three, Three, Three]]:
    """Of each command of a batch the addresses of A, B and C, (m, n, k), and elements from row to row."""
    sizes, leading, strides = (launched.words[i : i + 3].tolist() for i in (0, 3, 6))
    base = launched.operands[:3]
    return [
        ([address + z * stride for address, stride in zip(base, strides, strict=True)], sizes, leading)
        for z in range(launched.grid[2])
    ]


def elementwise(op: Op) -> Compute:
    """BIAS, RELU, SCALE or ADD."""

    def compute(launched: Launched) -> None:
        for (a, b, c), (m, n, _), (lda, ldb, ldc) in commands_of(launched):
            given, out = rows_at(b, n, m, ldb), rows_at(c, n, m, ldc)
            if op is Op.RELU:
                out[:] = np.maximum(given, 0)
            elif op is Op.ADD:
                out[:] = given + rows_at(a, n, m, lda)
            else:
                vector = rows_at(a, 1, m, m)
                out[:] = given * vector if op is Op.SCALE else given + vector

    return compute


def bias_relu_scale(launched: Launched) -> None:
    """fused.cu: bias, gain, B and C in place of A, B, C and the request."""
    m, n, _, _, ldb, ldc, stride_a, stride_b, stride_c = launched.words[:9].tolist()
    bias, gain, given, out = launched.operands
    for z in range(launched.grid[2]):
        vectors = [rows_at(each + z * stride_a, 1, m, m) for each in (bias, gain)]
        wide = np.maximum(rows_at(given + z * stride_b, n, m, ldb) + vectors[0], 0) * vectors[1]
        rows_at(out + z * stride_c, n, m, ldc)[:] = wide
