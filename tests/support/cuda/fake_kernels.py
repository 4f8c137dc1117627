"""A stand-in for the driver's cuLaunchKernelEx: a C function that reads its arguments by cuda.h, and runs Python.

`FakeKernels.kernel` makes a kernel of a Python function of a `Launched`. `elementwise` computes ops of ops.cu in NumPy.
Compiled loops launch these kernels, and tests check the outputs, on a machine without a GPU. fp32 only.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.cpu.ops import silu_mul
from support.cuda.fake_memory import require_inside

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
Read = Callable[
    [Config, int], Callable[[], object]
]  # takes a launch's configuration, and the address of the pointers to its parameters


def read_config(address: int) -> Config:
    """Return the configuration at an address."""
    return Config.from_address(address)


def words_at(address: int, count: int) -> NDArray[np.int64]:
    """Return a copy of `count` words of the host's memory."""
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)).copy()


class Captured(threading.local):
    """Where the launches of a thread go while it captures a stream; None: it captures none. A rank is a thread."""

    calls: list[Callable[[], object]] | None = None


class FakeKernels:
    """A fake of cuLaunchKernelEx, for kernels in Python. fail_at: number of the launch that returns an error.

    Kernels take four words and a struct of `words` words. Kernels made by `raw` take any parameters.
    """

    def __init__(self, words: int, fail_at: int | None = None) -> None:
        self._words, self._fail_at, self._count = words, fail_at, 0
        self._kernels: dict[int, Read] = {}
        self.launches: list[Launched] = []
        self.captured = Captured()
        self.function = LAUNCH_KERNEL(self._launch)

    @property
    def address(self) -> int:
        """Address of the function, as in a context."""
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        assert address is not None
        return address

    def kernel(self, compute: Compute = lambda launched: None) -> Any:
        """Return a kernel as CuPy does, as far as `KernelPlans.row` reads it."""

        def read(config: Config, parameters: int) -> Callable[[], object]:
            launched = self._launched(config, parameters)
            return lambda: (self.launches.append(launched), compute(launched))

        return self.raw(read)

    def raw(self, read: Read) -> Any:
        """Return a kernel with other parameters. `read` reads them at the launch."""
        handle = len(self._kernels) + 0x1000
        self._kernels[handle] = read
        return SimpleNamespace(kernel=SimpleNamespace(ptr=handle), max_dynamic_shared_size_bytes=0)

    def _launch(self, config_address: int, function: int, parameters: int, extra: int) -> int:
        if self._count + 1 == self._fail_at or extra or function not in self._kernels:
            return CUDA_ERROR_INVALID_VALUE
        self._count += 1
        run = self._kernels[function](read_config(config_address), parameters)
        if self.captured.calls is None:
            run()
        else:
            self.captured.calls.append(run)
        return 0

    def _launched(self, config: Config, parameters: int) -> Launched:
        pointers = words_at(parameters, 5).tolist()
        return Launched(
            (config.grid_x, config.grid_y, config.grid_z),
            (config.block_x, config.block_y, config.block_z),
            config.shared_bytes,
            config.stream,
            [(each.id, bytes(each.value)) for each in config.attributes[: config.attribute_count]],
            [int(words_at(pointer, 1)[0]) for pointer in pointers[:4]],
            words_at(pointers[4], self._words),
        )


def rows_at(address: int, rows: int, features: int, row_elements: int) -> Any:
    """Return a view, float32 [rows, features]."""
    extent = (rows - 1) * row_elements + features
    require_inside(address, 4 * extent)
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (extent,))
    return np.lib.stride_tricks.as_strided(flat, (rows, features), (4 * row_elements, 4))


Three = Sequence[int]


def commands_of(launched: Launched) -> list[tuple[Three, Three, Three]]:
    """Return for each command of a batch: addresses of A, B and C, (m, n, k), and elements from row to row."""
    sizes, leading, strides = (launched.words[i : i + 3].tolist() for i in (0, 3, 6))
    base = launched.operands[:3]
    return [
        ([address + z * stride for address, stride in zip(base, strides, strict=True)], sizes, leading)
        for z in range(launched.grid[2])
    ]


def elementwise(op: Op) -> Compute:
    """Return a fake kernel of BIAS, RELU, SCALE, ADD or SILU_MUL."""

    def compute(launched: Launched) -> None:
        for (a, b, c), (m, n, _), (lda, ldb, ldc) in commands_of(launched):
            given, out = rows_at(b, n, m, ldb), rows_at(c, n, m, ldc)
            if op is Op.SILU_MUL:
                out[:] = silu_mul(rows_at(b, n, 2 * m, ldb))
            elif op is Op.RELU:
                out[:] = np.maximum(given, 0)
            elif op is Op.ADD:
                out[:] = given + rows_at(a, n, m, lda)
            else:
                vector = rows_at(a, 1, m, m)
                out[:] = given * vector if op is Op.SCALE else given + vector

    return compute


def bias_relu_scale(launched: Launched) -> None:
    """Compute the kernel of fused.cu. Its arguments are bias, gain, B and C."""
    m, n, _, _, ldb, ldc, stride_a, stride_b, stride_c = launched.words[:9].tolist()
    bias, gain, given, out = launched.operands
    for z in range(launched.grid[2]):
        vectors = [rows_at(each + z * stride_a, 1, m, m) for each in (bias, gain)]
        with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads arbitrary values
            wide = np.maximum(rows_at(given + z * stride_b, n, m, ldb) + vectors[0], 0) * vectors[1]
        rows_at(out + z * stride_c, n, m, ldc)[:] = wide
