"""Operands laid out as in an arena, with poison between rows and commands, and kernels that run on copies of them.

CuPy is imported only if a GPU exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE, from_float32, to_float32
from launchopt.devices.cuda.op_kernels import OpLaunch
from launchopt.kernels import source
from support.cuda_on_host import built
from support.cuda_on_host import launch as run_on_host


class Placed:
    """`commands` arrays of shape `shape`, with `padding` elements behind each row (axis 0).

    offset: elements before the first array. If all commands share one array, `commands` is 1 and `stride_bytes` 0.
    """

    def __init__(self, kind: Any, commands: int, shape: tuple[int, ...], padding: int = 0, offset: int = 0) -> None:
        inner = int(np.prod(shape[1:], dtype=np.int64))
        self.row_elements, self.offset = inner + padding, offset
        apart = shape[0] * self.row_elements + padding
        self.flat = np.empty(offset + commands * apart, kind)
        self.flat.view(np.uint8).fill(0xFF)
        size = self.flat.itemsize
        inside = np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[: len(shape) - 1][::-1].tolist()
        self._layout = ((commands, *shape), (apart, self.row_elements, *inside))
        self.view = self.view_of(self.flat)
        self.stride_bytes = apart * size if commands > 1 else 0

    def view_of(self, flat: NDArray[Any]) -> Any:
        """Return the arrays of all commands in a copy of `flat`."""
        shape, strides = self._layout
        by_bytes = tuple(stride * flat.itemsize for stride in strides)
        return np.lib.stride_tricks.as_strided(flat[self.offset :], shape, by_bytes)

    @property
    def between(self) -> NDArray[np.bool_]:
        """Return a mask of the elements of `flat` that belong to no command."""
        outside = np.ones(len(self.flat), np.bool_)
        self.view_of(outside)[...] = False
        return outside

    @property
    def offset_bytes(self) -> int:
        return self.offset * self.flat.itemsize

    def stack(self, count: int) -> Any:
        """Return the arrays of all commands; an array that they share is repeated `count` times."""
        if len(self.view) == count:
            return self.view
        return np.lib.stride_tricks.as_strided(self.view[0], (count, *self.view.shape[1:]), (0, *self.view.strides[1:]))

    def fill(self, generator: np.random.Generator, dtype: Dtype) -> Placed:
        """Fill the arrays with random numbers, in storage type."""
        values = generator.standard_normal(self.view.shape).astype(np.float32)
        self.view[...] = from_float32(values, dtype)
        return self

    def copy(self) -> Any:
        return self.flat.copy()


def placed(dtype: Dtype, commands: int, shape: tuple[int, ...], padding: int = 0, offset: int = 0) -> Placed:
    return Placed(STORAGE[dtype], commands, shape, padding, offset)


class HostKernels:
    """Kernels of one source, run on the host: the threads run one after another, in any order."""

    def __init__(self, name: str, functions: Sequence[str]) -> None:
        self._name, self._functions = name, list(functions)

    def launch(
        self, launch: OpLaunch, operands: list[Placed], request: int | None, dtype: Dtype, **macros: int | str
    ) -> list[NDArray[Any]]:
        """Launch as `Kernels.launch` does."""
        copies = [aligned_copy(operand.flat) for operand in operands]
        words = [copy.ctypes.data + operand.offset_bytes for copy, operand in zip(copies, operands, strict=True)]
        words += [] if request is None else [request]
        # All functions of a source have the same parameters. The function's index comes before them.
        given = [f"((char**)arguments)[{1 + i}]" for i in range(len(operands))]
        given += [] if request is None else [f"((i64*)arguments)[{1 + len(operands)}]"]
        given.append(f"*(Args*)((i64*)arguments + {1 + len(words)})")
        cases = (f"case {i}: {name}({', '.join(given)}); break;" for i, name in enumerate(self._functions))
        library = built(self._name, f"switch (*(i64*)arguments) {{ {' '.join(cases)} }}", DTYPE=int(dtype), **macros)
        which = self._functions.index(launch.function_name)
        arguments = np.concatenate([np.array([which, *words], np.int64), launch.args.view(np.int64)])
        threads = int(np.prod(launch.block))
        run_on_host(library, launch.grid, threads, launch.shared_bytes, arguments.ctypes.data)
        return copies


def aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that is aligned to 256 bytes, like memory of a GPU."""
    memory = np.empty(array.nbytes + 256, np.uint8)
    start = -memory.ctypes.data % 256
    copy = memory[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


class Kernels:
    """Kernels of one source, compiled once for each set of macros."""

    def __init__(self, name: str) -> None:
        self._name, self._modules = name, {}

    def launch(
        self, launch: OpLaunch, operands: list[Placed], request: int | None, dtype: Dtype, **macros: int | str
    ) -> list[NDArray[Any]]:
        """Run on copies of the operands, and return the copies.

        request: the fourth argument of the kernel; None: it is an operand, too.
        """
        import cupy

        options = ("-std=c++17", *(f"-D{key}={value}" for key, value in {"DTYPE": int(dtype), **macros}.items()))
        if options not in self._modules:
            self._modules[options] = cupy.RawModule(code=source(self._name), options=options)
        kernel = self._modules[options].get_function(launch.function_name)
        copies = [cupy.asarray(operand.flat) for operand in operands]
        words = [np.int64(copy.data.ptr + operand.offset_bytes) for copy, operand in zip(copies, operands, strict=True)]
        by_value = launch.args.view(np.dtype(f"V{launch.args.nbytes}"))
        words += [] if request is None else [np.int64(request)]
        kernel(launch.grid, launch.block, (*words, by_value), shared_mem=launch.shared_bytes)
        cupy.cuda.Device().synchronize()
        return [copy.get() for copy in copies]


def assert_same(found: NDArray[Any], expected: NDArray[Any], dtype: Dtype, units: float, scale: float = 1.0) -> None:
    """Check that all elements are equal, or differ by at most `units` roundings of max(`scale`, value)."""
    if found.dtype == np.int32:
        assert (found == expected).all()
        return
    differ = found.view(np.uint8).reshape(len(found), -1) != expected.view(np.uint8).reshape(len(found), -1)
    where = np.flatnonzero(differ.any(axis=1))
    got, wanted = (to_float32(array[where], dtype).astype(np.float64) for array in (found, expected))
    bound = units * dtype.unit_roundoff * np.maximum(np.abs(wanted), scale)
    wrong = ~(np.abs(got - wanted) <= bound)  # NaN is wrong
    assert not wrong.any(), (where[wrong][:5], got[wrong][:5], wanted[wrong][:5])
