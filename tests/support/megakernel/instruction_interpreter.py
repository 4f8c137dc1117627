"""A NumPy interpreter of instruction lists (`instructions`): the reference for the megakernel.

Input: a list, and arrays by the address at which each begins. `Placed` invents such addresses for the host's arenas.
Output: the values that the instructions write, in any order that respects their waits. The ops are those of the CPU
device, in fp32, rounded to the storage type where the GPU rounds.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from launchopt.command import INDEX_BYTES, Dtype, Op
from launchopt.devices.arenas import STORAGE, Arenas, SeqState, from_float32, to_float32
from launchopt.devices.base import GpuDevice
from launchopt.devices.cpu.ops import STATEFUL, Sequences, apply
from launchopt.devices.cublaslt.launch_tables import MOVES, ContextWord, ShapeColumn
from launchopt.devices.cublaslt.tables import Tables
from launchopt.devices.cuda.op_kernels import SeqAddresses
from launchopt.devices.instructions.order import waits_of
from launchopt.devices.instructions.words import VECTOR_OPS, Instruction, Instructions, Word
from launchopt.devices.steps.stages import LtSteps
from launchopt.kernels.shared_megakernel import JOIN
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.chain import ChainStream

FIRST_ADDRESS = 1 << 32
GAP_BYTES = 1 << 20  # between two arrays, so that an access past the end of one hits no other
ALIGNMENT_BYTES = 256


class Memory:
    """Contiguous arrays by the address of their first byte. bytes: the same arrays as uint8, by the same addresses.

    norm_epsilon: of norms that are executed on these arrays.
    """

    def __init__(self, arrays: Mapping[int, NDArray[Any]], norm_epsilon: float) -> None:
        self.norm_epsilon = norm_epsilon
        self._starts = sorted(arrays)
        self.bytes = {start: arrays[start].reshape(-1).view(np.uint8) for start in self._starts}

    def view(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a view with this shape, and strides in bytes. IndexError: it is not within one array."""
        at = bisect.bisect_right(self._starts, address) - 1
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        end = address + last + np.dtype(dtype).itemsize
        start = self._starts[at]
        if at < 0 or end > start + self.bytes[start].size:
            raise IndexError(f"{address:#x} to {end:#x} is not within an array")
        return np.ndarray(shape, dtype, self.bytes[start], address - start, strides)


class _State(SeqState):
    """The positions and pages of requests, at their addresses in memory."""

    def __init__(self, positions: NDArray[np.int32], table: NDArray[np.int32]) -> None:
        self.positions, self.table, self.requests = positions, table, len(table)


class Placed:
    """A stream's operands on the host, at invented addresses.

    steps: the input of a `StepCompiler`. state: the addresses of the sequences' state, or None. memory: all arrays.
    """

    def __init__(self, stream: ChainStream, arenas: Arenas, state: SeqState | None = None) -> None:
        self.work = stream
        of_state = [] if state is None else [state.positions, state.table]
        arrays = _apart([*arenas.arrays.values(), *of_state])
        bases = dict(zip(arenas.arrays, arrays, strict=False))
        shapes, strides = np.zeros((len(stream.shapes), len(ShapeColumn)), np.int64), stream.strides()
        for row, shape in zip(shapes, stream.shapes, strict=True):
            for i, operand in enumerate(stream.operands(shape)):
                row[ShapeColumn.BASE_A + i], row[ShapeColumn.BYTES_A + i] = (
                    bases.get(operand.arena, 0),
                    operand.slot_bytes,
                )
            row[MOVES] = strides[shape]
        limits = {shape: stream.together(shape) for shape in stream.shapes}
        self.steps = LtSteps(cast(GpuDevice, self), limits, Tables(shapes, np.zeros((1, len(ContextWord)), np.int64)))
        self.state: SeqAddresses | None = None
        if state is not None:
            positions, table = list(arrays)[-2:]
            self.state = SeqAddresses(positions, table, state.requests)
        self.memory = Memory(arrays, stream.norm_epsilon)


def _apart(arrays: Iterable[NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """Return arrays by invented addresses, in order."""
    found, at = {}, FIRST_ADDRESS
    for array in arrays:
        found[at] = array
        at += -(-(array.nbytes + GAP_BYTES) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return found


def random_order(instructions: Instructions, seed: int) -> list[int]:
    """Return a random order of all instructions that respects their waits."""
    generator = np.random.default_rng(seed)
    waits = waits_of(instructions)
    left, after = [len(own) for own in waits], [list[int]() for _ in waits]
    for i, own in enumerate(waits):
        for j in own:
            after[j].append(i)
    ready, order = [i for i, count in enumerate(left) if not count], list[int]()
    while ready:
        order.append(ready.pop(int(generator.integers(len(ready)))))
        for i in after[order[-1]]:
            left[i] -= 1
            if not left[i]:
                ready.append(i)
    return order


def run(instructions: Instructions, memory: Memory, dtype: Dtype, order: Iterable[int] | None = None) -> None:
    """Execute all instructions, in `order` or that of the list. ValueError: one would run before one it waits for."""
    waits, done = waits_of(instructions), set[int]()
    for i in range(len(instructions)) if order is None else order:
        if i in done or not done.issuperset(waits[i]):
            raise ValueError(f"instruction {i} ran twice, or before one of {waits[i]}, which it waits for")
        execute(instructions[i], memory, dtype)
        done.add(i)
    if len(done) < len(instructions):
        raise ValueError(f"of {len(instructions)} instructions only {len(done)} ran")


def execute(row: Instruction, memory: Memory, dtype: Dtype) -> None:
    """Execute one instruction, without regard to its waits."""
    if int(row[Word.OP]) == JOIN:
        return
    word = {each: int(row[each]) for each in Word}
    op, first, requests = Op(word[Word.OP]), word[Word.FIRST_REQUEST], word[Word.REQUESTS]
    a, b, c = _operands(op, word, memory, dtype)
    if op is Op.GEMM:
        c[:] = from_float32(np.matmul(to_float32(b, dtype), to_float32(a, dtype).transpose(0, 2, 1)), dtype)
    elif op in STATEFUL:
        theta = float(row[Word.THETA : Word.THETA + 1].view(np.float64)[0])
        state, attention = _state(word, memory), _attention(word, theta)
        sequences = Sequences(range(first, first + requests), attention, state)
        apply(op, a, b, c, dtype, sequences, memory.norm_epsilon)
    else:
        apply(op, a, b, c, dtype, None, memory.norm_epsilon)


Words = dict[Word, int]


def _operands(op: Op, word: Words, memory: Memory, dtype: Dtype) -> tuple[Any, Any, Any]:
    """Return views of A, B and C as `cpu.ops.apply` takes them; C stands for operands that the op lacks."""
    storage = STORAGE[dtype]
    m, n, k, requests = (word[each] for each in (Word.M, Word.N, Word.K, Word.REQUESTS))

    def rows(role: str, count: int, features: int) -> Any:
        strides = word[Word[f"STRIDE_{role}"]], word[Word[f"LD{role}"]] * dtype.itemsize, dtype.itemsize
        return memory.view(word[Word[role]], (requests, count, features), strides, storage)

    def indices(role: str) -> Any:
        return memory.view(word[Word[role]], (requests, n), (word[Word[f"STRIDE_{role}"]], INDEX_BYTES), np.int32)

    def pool(role: str) -> Any:
        pages = word[Word.ALL_REQUESTS] * word[Word.PAGES]
        sizes = pages, 2, word[Word.PAGE_TOKENS], word[Word.KV_HEADS], word[Word.HEAD_DIM]
        strides = _packed(sizes, dtype.itemsize)
        return memory.view(word[Word[role]], (requests, *sizes), (word[Word[f"STRIDE_{role}"]], *strides), storage)

    if op is Op.SLOT_MAP:
        slots = indices("C")
        return slots, slots, slots
    b, c = rows("B", n, k), pool("C") if op is Op.KV_WRITE else rows("C", n, m)
    if op is Op.GEMM:
        return rows("A", m, k), b, c
    if op in VECTOR_OPS:
        return rows("A", 1, m), b, c
    if op is Op.ADD:
        return rows("A", n, m), b, c
    if op is Op.KV_WRITE:
        return indices("A"), b, c
    if op is Op.ROPE and word[Word.QK_NORM]:
        return rows("A", 1, 2 * word[Word.HEAD_DIM]), b, c
    return pool("A") if op in (Op.QK, Op.AV) else c, b, c


def _packed(sizes: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of an array without gaps."""
    return tuple(itemsize * int(np.prod(sizes[i + 1 :])) for i in range(len(sizes)))


def _state(word: Words, memory: Memory) -> SeqState:
    requests, pages = word[Word.ALL_REQUESTS], word[Word.PAGES]
    positions = memory.view(word[Word.POSITIONS], (2, requests), (INDEX_BYTES * requests, INDEX_BYTES), np.int32)
    table = memory.view(word[Word.TABLE], (requests, pages), (INDEX_BYTES * pages, INDEX_BYTES), np.int32)
    return _State(positions, table)


def _attention(word: Words, theta: float) -> Attention:
    heads = word[Word.Q_HEADS], word[Word.KV_HEADS], word[Word.HEAD_DIM]
    is_paged = word[Word.PAGES] > 1
    sizes = word[Word.CTX], word[Word.PAGE_TOKENS]
    return Attention(*heads, *sizes, theta, word[Word.ALL_REQUESTS], is_paged, bool(word[Word.QK_NORM]))
