"""Compile our own CUDA kernels at run time, and make their plans, which compiled loops launch like plans of cuBLASLt.

`KernelPlans.row` takes a function of launchopt/kernels, a grid, a block and arguments. It makes a row of the plans
table (cublaslt.launch_tables): addresses of a CUlaunchConfig, of the function, and of the pointers to its parameters.
The launch loops write the first four parameters (A, B, C, request) before each launch. The other parameters stay.
"""

from __future__ import annotations

import ctypes
import enum
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.cupy_types import CudaStream, KernelFunction, KernelModule
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import KernelColumn, PlanColumn, PlanKind
from launchopt.errors import RunError
from launchopt.kernels import source
from launchopt.native import call_words, compiled
from launchopt.streams.model import NORM_EPSILON
from launchopt.types import Array, Int, Table

# Sizes and offsets from cuda.h (CUDA 12 and 13). CUlaunchConfig: seven unsigned ints, the stream, a pointer to
# attributes, and their count. CUlaunchAttribute: an id, padding to 8 bytes, and a value of 64 bytes.
CONFIG_BYTES, ATTRIBUTES_BYTES, ATTRIBUTE_COUNT_BYTES, ATTRIBUTE_BYTES = 56, 40, 48, 72
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID: this launch may begin before the previous one ends
CLUSTER_DIMENSION = 4  # CUlaunchAttributeID; its value is three unsigned ints
OCCUPANCY = "cuOccupancyMaxActiveClusters"
LARGEST_STATIC_SHARED_BYTES = 48 << 10  # a kernel that needs more shared memory must have an attribute set


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid and block of a kernel, its dynamic shared memory in bytes, and its arguments after the first four."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    words: Table  # arguments after the first four: 8-byte parameters, or the words of one struct, passed by value


def launch_address() -> int:
    """Return the address of `cuLaunchKernelEx` in the driver."""
    address = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx, ctypes.c_void_p).value
    assert address is not None
    return address


class CallWord(enum.IntEnum):
    """Words of a call of `cuLaunchKernelEx`."""

    LAUNCH = 0  # address of cuLaunchKernelEx
    CONFIG = 1  # address of the CUlaunchConfig
    FUNCTION = 2  # CUfunction
    PARAMETERS = 3  # address of the array of pointers to the parameters


@compiled
def _launch(call: Table, grid: NDArray[np.uint32], blocks: Int) -> Int:
    """Launch `blocks` blocks and return the driver's status.

    call: [CallWord], an array, since passing four integers from Python costs more. grid: the first words of the
    CUlaunchConfig.
    """
    grid[0] = blocks
    arguments = (call[CallWord.CONFIG], call[CallWord.FUNCTION], call[CallWord.PARAMETERS], np.int64(0))
    return call_words(call[CallWord.LAUNCH], arguments)


@compiled
def _launch_with(call: Table, grid: NDArray[np.uint32], blocks: Int, values: Table, words: Table) -> Int:
    """Copy `words` to `values`, the kernel's parameters; then launch `blocks` blocks and return the driver's status."""
    for i in range(len(values)):
        values[i] = words[i]
    return _launch(call, grid, blocks)


class KernelLaunch:
    """A kernel with its parameters in memory, so that a launch costs little more than the driver's call.

    CuPy would pack the parameters at every launch. block: threads per block. parameters: NumPy scalars of the kernel's
    types, or arrays with the words of a struct. A launch may replace the first parameter, or all of them.
    """

    def __init__(
        self,
        function: KernelFunction,
        block: int,
        parameters: Sequence[np.generic | Table],
        stream: CudaStream,
        shared_bytes: int = 0,
    ) -> None:
        words = [np.atleast_1d(value) for value in parameters]
        sizes = [-(-value.nbytes // 8) for value in words]
        places = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._values = np.zeros(sum(sizes), np.int64)
        # On a little-endian machine, a narrow value is in the first bytes of its word.
        for place, value in zip(places, words, strict=True):
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
        """Launch `blocks` blocks with `first` as the first parameter; RunError if the driver refuses."""
        self._values[0] = first
        _check(_launch(self._call, self._grid, blocks))

    def with_words(self, blocks: int, words: Table, early: bool = False) -> None:
        """Launch `blocks` blocks with `words` as all parameters; RunError if the driver refuses.

        early: with programmatic stream serialization (PDL). The kernel itself must wait for earlier launches.
        """
        if len(words) != len(self._values):
            raise ValueError(f"{len(words)} words for {len(self._values)}")
        self._attribute_count[0] = early
        _check(_launch_with(self._call, self._grid, blocks, self._values, words))


def _programmatic(config: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give a CUlaunchConfig the attribute for PDL; return the attribute's memory, which the caller must keep."""
    return _with_attribute(config, PROGRAMMATIC_STREAM_SERIALIZATION, 1)


def _with_attribute(config: NDArray[np.uint8], attribute_id: int, *values: int) -> NDArray[np.uint8]:
    """Give a CUlaunchConfig one attribute of 32-bit values; return its memory, which the caller must keep."""
    attribute = np.zeros(ATTRIBUTE_BYTES, np.uint8)
    attribute[:4].view(np.uint32)[0] = attribute_id
    attribute[8 : 8 + 4 * len(values)].view(np.uint32)[:] = values
    config[ATTRIBUTES_BYTES:ATTRIBUTE_COUNT_BYTES].view(np.int64)[0] = attribute.ctypes.data
    config[ATTRIBUTE_COUNT_BYTES : ATTRIBUTE_COUNT_BYTES + 4].view(np.uint32)[0] = 1
    return attribute


def clusters_at_once(function: KernelFunction, size: int, threads: int, shared_bytes: int) -> int:
    """Return how many clusters of `size` blocks can run on the GPU at once; RunError if the driver refuses."""
    function.max_dynamic_shared_size_bytes = shared_bytes
    config, found = np.zeros(CONFIG_BYTES, np.uint8), ctypes.c_int()
    config[:28].view(np.uint32)[:] = (size, 1, 1, threads, 1, 1, shared_bytes)
    kept = _with_attribute(config, CLUSTER_DIMENSION, size, 1, 1)
    handle, where = ctypes.c_void_p(function.kernel.ptr), ctypes.c_void_p(config.ctypes.data)
    _check(ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters(ctypes.byref(found), handle, where), OCCUPANCY)
    del kept  # the attribute must exist during the call
    return found.value


def _check(status: int, call: str = "cuLaunchKernelEx") -> None:
    if status:
        raise RunError(f"{call} failed with CUresult {status}")


class KernelPlans:
    """Compiles kernels for one element type and makes their plans. It owns the memory that the plans point to.

    norm_epsilon: of the norms in the kernels.
    """

    def __init__(self, dtype: Dtype, norm_epsilon: float = NORM_EPSILON) -> None:
        self._macros = f"-DDTYPE={int(dtype)}", f"-DNORM_EPSILON={float(norm_epsilon)}f"
        self._modules: dict[tuple[str, ...], KernelModule] = {}
        self._keep: list[object] = []
        self.compilation_ns = 0  # time spent on compiling kernels, or on finding them in CuPy's cache
        self._memory: dict[Hashable, Array] = {}

    def memory(self, key: Hashable, make: Callable[[], Array]) -> Array:
        """Return an array of the GPU that plans refer to, which is made once for each key and lives as long as they."""
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

    def function(self, file: str, name: str, head: str = "", **defines: int) -> KernelFunction:
        """Compile a kernel of launchopt/kernels/`file`.cu with `defines`. head: text before the source."""
        options = (*self._macros, *(f"-D{key}={value}" for key, value in defines.items()))
        key = (file, head, *options)
        start_ns = time.monotonic_ns()
        if key not in self._modules:
            import cupy  # imported here, since tests make rows without CuPy

            self._modules[key] = cupy.RawModule(code=head + source(file), options=("-std=c++17", *options))
        found = self._modules[key].get_function(name)  # the first one compiles the module
        self.compilation_ns += time.monotonic_ns() - start_ns
        return found

    def row(self, function: KernelFunction, launch: Launch, early: bool = False) -> list[int]:
        """Return the row of the plans table for a launch. early: with programmatic stream serialization (PDL)."""
        if launch.shared_bytes > LARGEST_STATIC_SHARED_BYTES:
            most = max(function.max_dynamic_shared_size_bytes, launch.shared_bytes)  # of all its plans
            function.max_dynamic_shared_size_bytes = most
        config = np.zeros(CONFIG_BYTES, np.uint8)
        config[:28].view(np.uint32)[:] = (*launch.grid, *launch.block, launch.shared_bytes)
        if early:
            self._keep.append(_programmatic(config))
        values = np.concatenate([np.zeros(4, np.int64), launch.words])
        # After the first four parameters, a kernel takes one struct or single words. Each word gets a pointer, and the
        # driver reads as many pointers as the kernel has parameters.
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.int64)
        self._keep += [config, values, pointers, function]
        row = [0] * len(PlanColumn)
        row[KernelColumn.CONFIG], row[KernelColumn.FUNCTION] = config.ctypes.data, function.kernel.ptr
        row[KernelColumn.PARAMETERS], row[KernelColumn.OPERANDS], row[PlanColumn.KIND] = (
            pointers.ctypes.data,
            values.ctypes.data,
            PlanKind.KERNEL,
        )
        return row
