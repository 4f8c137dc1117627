"""NCCL's all-reduce, launched by the compiled loops in the place of our own kernel (`parallel.all_reduce=nccl`).

A plan of NCCL is a row of the plans table like that of a kernel, but its function is 0, and its parameters are the
words of `NcclWord`. `NcclPlans.launch_function` gives the function that loops call in the place of cuLaunchKernelEx. It
calls NCCL for such plans, and the driver for all others. So other runs have no additional work.

NCCL adds adjacent elements. Commands that are not adjacent are the pieces of one group, which NCCL launches together.
This module needs no GPU.
"""

from __future__ import annotations

import enum

import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.cublaslt.kernel_plans import CONFIG_BYTES
from launchopt.devices.cublaslt.launch import CONFIG_STREAM_BYTES
from launchopt.devices.cublaslt.launch_tables import KernelColumn, PlanColumn, PlanKind
from launchopt.devices.peers.nccl_library import SUM, TYPES, Communicator
from launchopt.errors import ConfigError
from launchopt.native import call_words, compiled, load_word
from launchopt.types import Int

FAILED = 10_000  # added to an ncclResult_t, to distinguish it from a CUresult
STREAM_BYTES = int(CONFIG_STREAM_BYTES)

Three = tuple[int, int, int]


class NcclWord(enum.IntEnum):
    """Words of the parameters of a plan. The loops write the first four (A, B, C, request) before each launch."""

    B = 1
    C = 2
    ALL_REDUCE = 4  # address of ncclAllReduce
    GROUP_START = 5  # address of ncclGroupStart
    GROUP_END = 6
    COMMUNICATOR = 7  # ncclComm_t
    TYPE = 8  # ncclDataType_t
    COUNT = 9  # elements of a piece
    PIECES = 10
    STRIDE_B = 11  # bytes from one piece to the next
    STRIDE_C = 12


WORDS = 1 + max(NcclWord)


@compiled
def _word(words: Int, word: Int) -> Int:
    return load_word(words + 8 * word)


@compiled
def all_reduce(words: Int, stream: Int) -> Int:
    """Add the pieces of a plan; return the first ncclResult_t that is not 0. words: address of the parameters."""
    pieces, status = _word(words, NcclWord.PIECES), np.int64(0)
    b, c = _word(words, NcclWord.B), _word(words, NcclWord.C)
    if pieces > 1:
        status = np.int64(call_words(_word(words, NcclWord.GROUP_START), (np.int64(0),)))
    for piece in range(pieces):
        if status == 0:
            arguments = (
                b + piece * _word(words, NcclWord.STRIDE_B),
                c + piece * _word(words, NcclWord.STRIDE_C),
                _word(words, NcclWord.COUNT),
                _word(words, NcclWord.TYPE),
                np.int64(SUM),
                _word(words, NcclWord.COMMUNICATOR),
                stream,
            )
            status = np.int64(call_words(_word(words, NcclWord.ALL_REDUCE), arguments))
    if pieces > 1 and status == 0:
        status = np.int64(call_words(_word(words, NcclWord.GROUP_END), (np.int64(0),)))
    return status


class NcclPlans:
    """Makes plans of all-reduces, and owns the memory that they point to."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator, self._keep = communicator, list[object]()
        names = ("ncclAllReduce", "ncclGroupStart", "ncclGroupEnd")
        self._calls = [*map(communicator.address, names), communicator.handle]

    def row(self, shape: ShapeKey, size: int, rows: Three, strides_bytes: Three) -> list[int]:
        """Return the row of the plans table for `size` commands. rows, strides_bytes: as of `all_reduce_launch`."""
        if rows[1] != rows[2]:
            raise ConfigError("parallel.all_reduce", "nccl", "adds rows only into rows of the same length")
        # The elements between two rows are no data; they are added, too.
        count, pieces = (shape.n - 1) * rows[1] + shape.k, size
        if strides_bytes[1] == strides_bytes[2] == shape.n * shape.k * shape.dtype.itemsize:
            count, pieces = size * shape.n * shape.k, 1
        values, config = np.zeros(WORDS, np.int64), np.zeros(CONFIG_BYTES, np.uint8)
        values[NcclWord.ALL_REDUCE :] = [*self._calls, TYPES[shape.dtype], count, pieces, *strides_bytes[1:]]
        self._keep += [values, config]
        row = [0] * len(PlanColumn)
        row[KernelColumn.CONFIG], row[PlanColumn.KIND] = config.ctypes.data, PlanKind.KERNEL
        row[KernelColumn.PARAMETERS] = row[KernelColumn.OPERANDS] = values.ctypes.data
        return row

    def launch_function(self, driver: int) -> int:
        """Return the address of the function that takes the place of cuLaunchKernelEx, whose address is `driver`."""
        from numba import cfunc, types

        word = types.int64

        @cfunc(types.int32(word, word, word, word))  # type: ignore[untyped-decorator]
        def launch(config: Int, function: Int, parameters: Int, extra: Int) -> Int:
            if function != 0:
                return call_words(driver, (config, function, parameters, extra))
            status = all_reduce(parameters, load_word(config + STREAM_BYTES))
            return status if status == 0 else FAILED + status

        self._keep.append(launch)
        return int(launch.address)
