"""A step as a list of instructions, for a kernel that runs a whole step in one launch.

In: a `StepBatch`, and where operands lie (the tables of `LtSteps`). Out: int64 [instructions, WORDS], a row an
instruction, its columns those of `Word`: which op of which row of the step, for how many requests, their addresses as
`lt_steps` derives them, how they lie from request to request and from row to row, the words of attention as in struct
Args (kernels/storage.cuh), the op's grid, and which earlier instructions must have ended before it may begin.

An instruction is a row of the step for requests that lie evenly spaced in it: all of them where the batch is even, else
each run of them has its own, and if the step has several columns a request each has. Who waits for whom follows from
memory alone (`dependencies`). Keys, values and their pages are found by positions that only the device knows: an op on
the cache counts as reading, or writing, all of a layer's. Positions are exact, for the requests are in the instruction.
An instruction that has to wait for more than four is preceded by joins, which only wait (op JOIN). A GEMM that reads
what an earlier one wrote may be sent its inputs element by element, as they are made: whose they are says MAIL, and it
does not wait for that one otherwise. Nothing else follows from having had mail: not that anything was stored.

FUSED is 0: no instruction stands for several rows yet. Whoever makes one calls `with_dependencies` afterwards.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import INDEX_BYTES, W_MN, W_SLOT_C_REQUEST, Op
from launchopt.devices import dependencies as dep
from launchopt.devices import lt_launch as lt
from launchopt.devices.lt_steps import LtSteps
from launchopt.devices.op_kernels import SeqAddresses, Three, geometry
from launchopt.devices.runs import HIGH, run_end, slots_of
from launchopt.step_batcher import StepBatch
from launchopt.workloads.chain import ChainStream


class Word(enum.IntEnum):
    """A column of a list."""

    OP = 0
    M = 1
    N = 2  # columns a request
    K = 3
    REQUESTS = 4  # of this instruction
    FIRST_REQUEST = 5
    A = 6  # address, of the first request
    B = 7
    C = 8
    STRIDE_A = 9  # bytes from request to request
    STRIDE_B = 10
    STRIDE_C = 11
    LDA = 12  # elements from row to row
    LDB = 13
    LDC = 14
    Q_HEADS = 15  # from here to THETA as in struct Args
    KV_HEADS = 16
    HEAD_DIM = 17
    CTX = 18
    PAGE_TOKENS = 19
    PAGES = 20
    POSITIONS = 21
    TABLE = 22
    ALL_REQUESTS = 23  # of the stream
    THETA = 24  # bits of a float64
    GRID_X = 25  # of a GEMM: tiles of rows, 1, requests
    GRID_Y = 26
    GRID_Z = 27
    WAITS = 28  # how many of the next four are used
    WAIT0 = 29  # an earlier instruction, or NOBODY
    WAIT1 = 30
    WAIT2 = 31
    WAIT3 = 32
    MAIL = 33  # the earlier GEMM whose outputs are its inputs, or NOBODY
    LEVEL = 34  # how many instructions at most come one after another before it
    FUSED = 35
    ROW = 36  # of the step; NOBODY of a join


WORDS = len(Word)
MOST_WAITS = 4
NOBODY = -1
JOIN = -1  # in OP
GEMM_TILE_ROWS = 8
# To which operands must be aligned for weights to be copied ahead of time, and what k must be whole ones of.
VECTOR_BYTES, SLICE_BYTES = 16, 256
POSITIONED_OPS = (Op.ROPE, Op.QK, Op.SOFTMAX, Op.AV)
VECTOR_OPS = (Op.BIAS, Op.SCALE, Op.NORM)

Instruction = NDArray[np.int64]  # [WORDS]
Instructions = NDArray[np.int64]  # [instructions, WORDS]
Spans = list[dep.Span]


class StepCompiler:
    """Lists of `steps`' stream. `state`: where its sequences' state is, where there is one.

    tile_rows: rows of a GEMM that are one virtual block.
    """

    def __init__(self, steps: LtSteps, state: SeqAddresses | None = None, tile_rows: int = GEMM_TILE_ROWS) -> None:
        self._steps, self._state, self._tile_rows = steps, state, tile_rows
        self._stream: ChainStream = steps.stream
        self._blanks: dict[tuple[int, int], Instruction] = {}

    def compilable(self, batch: StepBatch) -> bool:
        """Whether each row is one instruction: requests lie evenly spaced in all, and have a column each, or alone."""
        return batch.size == 1 or (_columns(batch) == 1 and self._steps.runs(batch, 1) == 1)

    def compile(self, batch: StepBatch) -> Instructions:
        """The list of a batch."""
        indices, shapes = self._steps.indices(self._steps.kind_of(batch)), self._steps.tables.shapes
        whole = batch.words.reshape(batch.rows, batch.size, -1)
        alone, made = _columns(batch) > 1, []
        for row, index in enumerate(indices.tolist()):
            moves, words, first = shapes[index, lt.MOVE_A : lt.MOVE_C + 1].tolist(), whole[row], 0
            while first < batch.size:
                stop = first + 1 if alone else int(run_end(words, first, *moves))
                made.append(self._instruction(words, first, stop, row, index))
                first = stop
        return with_dependencies(np.array(made), self._stream.dtype.itemsize)

    def _instruction(self, words: NDArray[np.uint64], first: int, stop: int, row: int, index: int) -> Instruction:
        made, shape = self._blank(index, stop - first).copy(), self._steps.tables.shapes[index]
        slots = np.array(slots_of(words, first), np.int64)
        made[Word.A : Word.C + 1] = shape[lt.BASE_A : lt.BASE_C + 1] + slots * shape[lt.BYTES_A : lt.BYTES_C + 1]
        made[Word.FIRST_REQUEST], made[Word.ROW] = int(words[first, W_SLOT_C_REQUEST] >> HIGH), row
        return made

    def _blank(self, index: int, size: int) -> Instruction:
        """All of an instruction that is the same wherever its operands lie."""
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


def _columns(batch: StepBatch) -> int:
    """Of a request, in the step's first row."""
    return int(batch.words[0, W_MN] >> HIGH)


def with_dependencies(instructions: Instructions, itemsize: int) -> Instructions:
    """The same instructions in the same order, with joins between them where needed, who waits for whom, and LEVEL.

    Joins that were there before are left out first; what WAITS and so on said is not looked at.
    """
    real = instructions[instructions[:, Word.OP] != JOIN]
    touched = [accesses(row, itemsize) for row in real]
    spans, owners, is_write = [], [], []
    for i, each in enumerate(touched):
        for written, some in enumerate(each):
            spans += some
            owners += [i] * len(some)
            is_write += [bool(written)] * len(some)
    table = np.array(spans, np.int64).reshape(-1, dep.SPAN_COLUMNS)
    found = dep.conflicts(table, np.array(owners, np.int64), np.array(is_write, np.bool_), len(real))
    senders = [_sender(real, i, found[i], touched, itemsize) for i in range(len(real))]
    for i, sender in enumerate(senders):
        if sender != NOBODY:
            found[i, sender] = False  # before others are left out because they follow from it: they do not
    return _listed(real, dep.joined(dep.reduced(found), MOST_WAITS), senders)


def _listed(real: Instructions, steps: list[dep.Step], senders: list[int]) -> Instructions:
    place = {step.source: i for i, step in enumerate(steps)}
    made = np.zeros((len(steps), WORDS), np.int64)
    for row, step in zip(made, steps, strict=True):
        if step.source == dep.JOIN:
            row[Word.OP], row[Word.ROW], row[Word.MAIL] = JOIN, NOBODY, NOBODY
        else:
            row[:] = real[step.source]
            sender = senders[step.source]
            row[Word.MAIL] = NOBODY if sender == NOBODY else place[sender]
        row[Word.WAITS] = len(step.waits)
        row[Word.WAIT0 : Word.WAIT3 + 1] = NOBODY
        row[Word.WAIT0 : Word.WAIT0 + len(step.waits)] = step.waits
    made[:, Word.LEVEL] = dep.levels(waits_of(made))
    return made


def _sender(
    real: Instructions, i: int, conflicting: dep.Flags, touched: list[tuple[Spans, Spans]], itemsize: int
) -> int:
    """The GEMM whose outputs, or the first features of them, are the inputs of instruction i; NOBODY where none is."""
    row = real[i]
    if not streamable(row, itemsize):
        return NOBODY
    inputs, outputs = (np.array(spans[:1], np.int64) for spans in touched[i])  # B and C
    for j in reversed(np.flatnonzero(conflicting).tolist()):
        reads, writes = (np.array(spans, np.int64) for spans in touched[j])
        if not dep.overlaps(writes, inputs).any():
            continue
        sent = real[j][[Word.C, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_C]]
        wanted = row[[Word.B, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_B]]
        same = (sent == wanted) | [False, False, False, bool(row[Word.REQUESTS] == 1)]
        fits = row[Word.K] <= real[j][Word.M] and not real[j][Word.M] * itemsize % VECTOR_BYTES
        alone = not dep.overlaps(np.concatenate([reads, writes]), outputs).any()  # nothing else to wait for
        return j if same.all() and fits and alone and streamable(real[j], itemsize) else NOBODY
    return NOBODY


def streamable(row: Instruction, itemsize: int) -> bool:
    """Whether it is a GEMM of one column a request, which share weights, with operands of whole vectors."""
    if row[Word.OP] != Op.GEMM or row[Word.N] != 1 or (row[Word.STRIDE_A] and row[Word.REQUESTS] > 1):
        return False
    apart = row[Word.STRIDE_B] if row[Word.REQUESTS] > 1 else 0
    whole = (row[Word.A] | row[Word.B] | apart | row[Word.LDA] * itemsize) % VECTOR_BYTES == 0
    return bool(whole and row[Word.K] * itemsize % SLICE_BYTES == 0)


def waits_of(instructions: Instructions) -> list[list[int]]:
    """Of each instruction those that must have come before it: that it waits for, or has mail from."""
    counts = instructions[:, Word.WAITS].tolist()
    waits = instructions[:, Word.WAIT0 : Word.WAIT3 + 1].tolist()
    senders = [[] if sender == NOBODY else [sender] for sender in instructions[:, Word.MAIL].tolist()]
    return [sorted(row[:count] + own) for row, count, own in zip(waits, counts, senders, strict=True)]


def accesses(row: Instruction, itemsize: int) -> tuple[Spans, Spans]:
    """What an instruction may read, and what it may write."""
    word = {each: int(row[each]) for each in Word}
    op = Op(word[Word.OP])
    if op is Op.SLOT_MAP:
        return [_positions(word, is_next=True), _pages(word)], [
            *(_positions(word, is_next) for is_next in (False, True)),
            (word[Word.C], INDEX_BYTES * word[Word.N], word[Word.STRIDE_C], word[Word.REQUESTS]),
        ]
    reads = [_rows(word, "B", word[Word.K], itemsize)]
    if op is Op.GEMM:
        last_row = (word[Word.M] - 1) * word[Word.LDA]
        reads.append((word[Word.A], (last_row + word[Word.K]) * itemsize, word[Word.STRIDE_A], _requests(word, "A")))
    elif op in VECTOR_OPS:
        reads.append((word[Word.A], word[Word.M] * itemsize, 0, 1))
    elif op is Op.ADD:
        reads.append(_rows(word, "A", word[Word.M], itemsize))
    elif op is Op.KV_WRITE:
        reads.append((word[Word.A], INDEX_BYTES * word[Word.N], word[Word.STRIDE_A], _requests(word, "A")))
        return reads, [_pool(word, Word.C, itemsize)]
    elif op in (Op.QK, Op.AV):
        reads.append(_pool(word, Word.A, itemsize))
    if op in POSITIONED_OPS:
        reads += [_positions(word, is_next=False), _pages(word)]
    return reads, [_rows(word, "C", word[Word.M], itemsize)]


Words = dict[Word, int]


def _requests(word: Words, role: str) -> int:
    """How many operands there are: one where all requests share it."""
    return word[Word.REQUESTS] if word[Word[f"STRIDE_{role}"]] else 1


def _rows(word: Words, role: str, features: int, itemsize: int) -> dep.Span:
    """An operand of N rows a request. Of a single request rows of others may lie between them."""
    row_bytes, rows = word[Word[f"LD{role}"]] * itemsize, word[Word.N]
    requests = _requests(word, role)
    if requests == 1:
        return word[Word[role]], features * itemsize, row_bytes, rows
    return word[Word[role]], (rows - 1) * row_bytes + features * itemsize, word[Word[f"STRIDE_{role}"]], requests


def _pool(word: Words, role: Word, itemsize: int) -> dep.Span:
    """A layer's cache, whole."""
    tokens = word[Word.ALL_REQUESTS] * word[Word.PAGES] * word[Word.PAGE_TOKENS]
    return word[role], 2 * tokens * word[Word.KV_HEADS] * word[Word.HEAD_DIM] * itemsize, 0, 1


def _positions(word: Words, is_next: bool) -> dep.Span:
    """Where its requests' columns start, or where the next step's do."""
    first = word[Word.FIRST_REQUEST] + is_next * word[Word.ALL_REQUESTS]
    return word[Word.POSITIONS] + INDEX_BYTES * first, INDEX_BYTES * word[Word.REQUESTS], 0, 1


def _pages(word: Words) -> dep.Span:
    """The page table, whole."""
    return word[Word.TABLE], INDEX_BYTES * word[Word.ALL_REQUESTS] * word[Word.PAGES], 0, 1
