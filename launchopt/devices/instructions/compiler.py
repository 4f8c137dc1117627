"""Compile a step into a list of instructions, for a kernel that executes a whole step in one launch.

`StepCompiler.compile` turns a `StepBatch` into a list (launchopt/devices/instructions/words.py). An instruction is one
row of the step, that is one op, for requests whose operands are evenly spaced in memory. If this holds for all requests
of the batch, a row becomes one instruction. Otherwise each run of evenly spaced requests becomes an instruction. With
several columns per request, each request has an instruction of its own, so that its positions are exact.

The list contains for each instruction: the op, the requests, addresses and strides of the operands, the words of
attention as in struct Args, the grid, the fusion with neighbours (`fusion`), and the earlier instructions that must be
complete before it begins (`order`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import StepBatch
from launchopt.command import Op, as_records
from launchopt.devices.cublaslt.launch_tables import BASES, BYTES, MOVES
from launchopt.devices.cuda.op_kernels import SeqAddresses, Three, geometry
from launchopt.devices.instructions.fusion import fused, merged
from launchopt.devices.instructions.order import with_dependencies
from launchopt.devices.instructions.words import WORDS, Instruction, Instructions, Word
from launchopt.devices.runs import run_end
from launchopt.devices.steps.stages import LtSteps
from launchopt.kernels.shared_megakernel import TILE_ROWS
from launchopt.records import slots_of
from launchopt.streams.chains.chain import ChainStream


class StepCompiler:
    """Compiles lists for the workload stream of `steps`.

    state: addresses of positions and page table, if the workload has attention. tile_rows: rows of a GEMM in a virtual
    block. fuse: merge and fuse neighbouring instructions.
    """

    def __init__(
        self, steps: LtSteps, state: SeqAddresses | None = None, tile_rows: int = TILE_ROWS, fuse: bool = False
    ) -> None:
        self._steps, self._state, self._tile_rows, self._fuse = steps, state, tile_rows, fuse
        self._stream: ChainStream = steps.stream
        self._blanks: dict[tuple[int, int], Instruction] = {}

    def compilable(self, batch: StepBatch) -> bool:
        """Return whether each row of a batch becomes one instruction.

        It does if the batch has one request, or evenly spaced requests with one column each.
        """
        return batch.size == 1 or (columns_of(batch) == 1 and self._steps.runs(batch, 1) == 1)

    def compile(self, batch: StepBatch) -> Instructions:
        """Return the list of a batch."""
        indices, shapes = self._steps.indices(self._steps.kind_of(batch)), self._steps.tables.shapes
        whole = batch.words.reshape(batch.rows, batch.size, -1)
        alone, made = columns_of(batch) > 1, []
        for row, index in enumerate(indices.tolist()):
            moves, words, first = shapes[index, MOVES].tolist(), whole[row], 0
            while first < batch.size:
                stop = first + 1 if alone else int(run_end(words, first, *moves))
                made.append(self._instruction(words, first, stop, row, index))
                first = stop
        itemsize = self._stream.dtype.itemsize
        rows = np.array(made)
        if self._fuse:
            rows = fused(merged(rows, itemsize, self._tile_rows), itemsize)
        return with_dependencies(rows, itemsize)

    def _instruction(self, words: NDArray[np.uint64], first: int, stop: int, row: int, index: int) -> Instruction:
        made, shape = self._blank(index, stop - first).copy(), self._steps.tables.shapes[index]
        slots = np.array(slots_of(words, first), np.int64)
        made[Word.A : Word.C + 1] = shape[BASES] + slots * shape[BYTES]
        made[Word.FIRST_REQUEST], made[Word.ROW] = int(as_records(words[first : first + 1])["request"][0]), row
        return made

    def _blank(self, index: int, size: int) -> Instruction:
        """Return an instruction without its addresses: the words that do not depend on where its operands are.

        index: the shape. size: number of requests.
        """
        if (index, size) not in self._blanks:
            self._blanks[index, size] = self._new_blank(index, size)
        return self._blanks[index, size]

    def _new_blank(self, index: int, size: int) -> Instruction:
        stream, shape = self._stream, self._steps.stream.shapes[index]
        blank = np.zeros(WORDS, np.int64)
        a, b, c = (operand.row_elements for operand in stream.operands(shape))
        strides: Three = tuple(self._steps.tables.strides_bytes(index).tolist())
        if shape.op is Op.GEMM:
            args = np.array([shape.m, shape.n, shape.k, a, b, c, *strides], np.int64)
            grid = -(-shape.m // self._tile_rows), 1, size
        else:
            launch = geometry(shape, size, (a, b, c), strides, stream.attention, self._state)
            args, grid = launch.args, launch.grid
            blank[Word.Q_HEADS : Word.THETA + 1] = args[9:]
        blank[Word.OP], blank[Word.REQUESTS] = int(shape.op), size
        blank[Word.M : Word.K + 1] = args[:3]
        blank[Word.LDA : Word.LDC + 1] = args[3:6]
        blank[Word.STRIDE_A : Word.STRIDE_C + 1] = args[6:9]
        blank[Word.GRID_X : Word.GRID_Z + 1] = grid
        return blank


def columns_of(batch: StepBatch) -> int:
    """Return the columns per request in the batch's first row."""
    return int(as_records(batch.words[:1])["n"][0])
