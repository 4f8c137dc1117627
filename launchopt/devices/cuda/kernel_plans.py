"""Our own CUDA kernels as plans of `lt_launch`: compiled at run time, launched by the same compiled loops as cuBLASLt.

In: a source of launchopt/kernels, a function in it, grid, block and arguments. Out: a row of the plans table: the
addresses of a CUlaunchConfig, the function, and the pointers to its parameters. The first four parameters (A, B, C,
request) are written before each launch, the rest stays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.cublaslt import launch as lt
from launchopt.errors import RunError
from launchopt.kernels import source
from launchopt.native import call_words, compiled
from launchopt.types import Int

# Of cuda.h (CUDA 12 and 13): CUlaunchConfig is seven unsigned ints, the stream, a pointer to attributes, their count;
# CUlaunchAttribute an id, padding to 8 bytes, and a value of 64.
CONFIG_BYTES, ATTRIBUTES_BYTES, ATTRIBUTE_COUNT_BYTES, ATTRIBUTE_BYTES = 56, 40, 48, 72
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID: the next launch may begin before this one has ended
CLUSTER_DIMENSION = 4  # also one, of three unsigned ints
OCCUPANCY = "cuOccupancyMaxActiveClusters"
LARGEST_STATIC_SHARED_BYTES = 48 << 10


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid and block of a kernel, its dynamic shared memory, and its arguments behind the first four."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    words: NDArray[np.int64]  # one argument by value, of as many words as it has


def launch_address() -> int:
    """Address of `cuLaunchKernelEx` in the driver."""
    address = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx, ctypes.c_void_p).value
    assert address is not None
    return address


@compiled
def _launch(call: NDArray[np.int64], grid: NDArray[np.uint32], blocks: Int) -> Int:
    """Words of `call`: the function's address, and its arguments; an array costs less to pass than as many numbers."""
    grid[0] = blocks
    return call_words(call[0], (call[1], call[2], call[3], np.int64(0)))


@compiled
def _launch_with(
    call: NDArray[np.int64],
    grid: NDArray[np.uint32],
    blocks: Int,
    values: NDArray[np.int64],
    words: NDArray[np.int64],
) -> Int:
    for i in range(len(values)):
        values[i] = words[i]
    return _launch(call, grid, blocks)


class KernelLaunch:
    """A kernel with its own parameters, whose launch is little more than the driver's call: CuPy makes them anew.

    parameters: NumPy scalars of the kernel's types, or arrays of the words of a struct; the first may be given anew at
    each launch, as an integer, or so may all of them, as words.
    """

    def __init__(
        self,
        function: Any,
        block: int,
        parameters: Sequence[np.generic | NDArray[np.int64]],
        stream: Any,
        shared_bytes: int = 0,
    ) -> None:
        words = [np.atleast_1d(value) for value in parameters]
        sizes = [-(-value.nbytes // 8) for value in words]
        places = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._values = np.zeros(sum(sizes), np.int64)
        for place, value in zip(places, words, strict=True):  # little-endian: a narrower value is the front of its word
            self._values[place:].view(np.uint8)[: value.nbytes] = value.view(np.uint8)
        self._pointers = self._values.ctypes.data + 8 * places
        self._config = np.zeros(CONFIG_BYTES, np.uint8)
        self._grid = self._config[:28].view(np.uint32)
        self._grid[:] = (1, 1, 1, block, 1, 1, shared_bytes)
        self._config[lt.CONFIG_STREAM_BYTES : lt.CONFIG_STREAM_BYTES + 8].view(np.int64)[0] = stream.ptr
        self._attribute = _programmatic(self._config)
        self._attribute_count = self._config[ATTRIBUTE_COUNT_BYTES : ATTRIBUTE_COUNT_BYTES + 4].view(np.uint32)
        self._attribute_count[0] = 0
        self._function = function
        config, pointers = self._config.ctypes.data, self._pointers.ctypes.data
        self._call = np.array([launch_address(), config, function.kernel.ptr, pointers], np.int64)

    def __call__(self, blocks: int, first: int) -> None:
        """Launch `blocks` blocks with `first` as the first parameter; RunError where the driver refuses."""
        self._values[0] = first
        _check(_launch(self._call, self._grid, blocks))

    def with_words(self, blocks: int, words: NDArray[np.int64], early: bool = False) -> None:
        """Launch `blocks` blocks with all parameters anew; RunError where the driver refuses.

        early: with programmatic stream serialization (PDL), of a kernel that waits for what was launched before it.
        """
        if len(words) != len(self._values):
            raise ValueError(f"{len(words)} words for {len(self._values)}")
        self._attribute_count[0] = early
        _check(_launch_with(self._call, self._grid, blocks, self._values, words))


def _programmatic(config: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Have launches of a CUlaunchConfig use programmatic stream serialization; returns what must be kept for that."""
    return _with_attribute(config, PROGRAMMATIC_STREAM_SERIALIZATION, 1)


def _with_attribute(config: NDArray[np.uint8], attribute_id: int, *values: int) -> NDArray[np.uint8]:
    """Give a CUlaunchConfig its only attribute, of 32-bit values; returns what must be kept for that."""
    attribute = np.zeros(ATTRIBUTE_BYTES, np.uint8)
    attribute[:4].view(np.uint32)[0] = attribute_id
    attribute[8 : 8 + 4 * len(values)].view(np.uint32)[:] = values
    config[ATTRIBUTES_BYTES:ATTRIBUTE_COUNT_BYTES].view(np.int64)[0] = attribute.ctypes.data
    config[ATTRIBUTE_COUNT_BYTES : ATTRIBUTE_COUNT_BYTES + 4].view(np.uint32)[0] = 1
    return attribute


def clusters_at_once(function: Any, size: int, threads: int, shared_bytes: int) -> int:
    """How many clusters of `size` blocks of a kernel can be on the GPU together; RunError where the driver refuses."""
    function.max_dynamic_shared_size_bytes = shared_bytes
    config, found = np.zeros(CONFIG_BYTES, np.uint8), ctypes.c_int()
    config[:28].view(np.uint32)[:] = (size, 1, 1, threads, 1, 1, shared_bytes)
    kept = _with_attribute(config, CLUSTER_DIMENSION, size, 1, 1)
    handle, where = ctypes.c_void_p(function.kernel.ptr), ctypes.c_void_p(config.ctypes.data)
    _check(ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters(ctypes.byref(found), handle, where), OCCUPANCY)
    del kept  # the driver has read it
    return found.value


def _check(status: int, call: str = "cuLaunchKernelEx") -> None:
    if status:
        raise RunError(f"{call} failed with CUresult {status}")


class KernelPlans:
    """Compiles sources for one element type, and keeps what its plans point to."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype = dtype
        self._modules: dict[tuple[str, ...], Any] = {}
        self._keep: list[Any] = []

    def function(self, file: str, name: str, head: str = "", **defines: int) -> Any:
        """A kernel of launchopt/kernels/`file`.cu, compiled with -DDTYPE and `defines`; `head`: a text before it."""
        options = (f"-DDTYPE={int(self._dtype)}", *(f"-D{key}={value}" for key, value in defines.items()))
        key = (file, head, *options)
        if key not in self._modules:
            import cupy  # only here: rows are made, and tested, without it

            self._modules[key] = cupy.RawModule(code=head + source(file), options=("-std=c++17", *options))
        return self._modules[key].get_function(name)

    def row(self, function: Any, launch: Launch, early: bool = False) -> list[int]:
        """A row of the plans table; `early`: launched with programmatic stream serialization (PDL)."""
        if launch.shared_bytes > LARGEST_STATIC_SHARED_BYTES:
            function.max_dynamic_shared_size_bytes = launch.shared_bytes
        config = np.zeros(CONFIG_BYTES, np.uint8)
        config[:28].view(np.uint32)[:] = (*launch.grid, *launch.block, launch.shared_bytes)
        if early:
            self._keep.append(_programmatic(config))
        values = np.concatenate([np.zeros(4, np.int64), launch.words])
        # Behind the four: all the words as one parameter, or each as one. The driver looks at as many as a kernel has.
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.int64)
        self._keep += [config, values, pointers, function]
        row = [0] * lt.PLAN_COLUMNS
        row[lt.CONFIG], row[lt.KERNEL_FUNCTION] = config.ctypes.data, function.kernel.ptr
        row[lt.PARAMETERS], row[lt.OPERANDS], row[lt.KIND] = pointers.ctypes.data, values.ctypes.data, lt.KERNEL
        return row
