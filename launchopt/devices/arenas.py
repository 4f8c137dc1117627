"""Operands in device memory: one array [slots, elements of a slot] per arena, in NumPy or CuPy.

`fill` gives inputs uniform random values, never zeros. `poison` sets every byte of everything else to 0xFF, which is a
NaN in fp32, fp16 and bf16. An element that no GEMM wrote then cannot pass for a result. bf16 is stored as uint16, since
neither NumPy nor CuPy computes in bf16.

An arena of quantised weights is uint8 [slots, bytes of a slot] (`launchopt.weights`). Its weights are those that the
same seed gives without quantisation, in the arena's dtype, and then quantised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np

from launchopt.command import Dtype
from launchopt.prefixes.sharing import SharedPrefixes
from launchopt.streams.chains.attention import Attention
from launchopt.streams.operands import ArenaKey, Fixed, Operand
from launchopt.types import Array
from launchopt.weights.quantiser import dequantised, quantised

POISON_BYTE = 0xFF
CHUNK_ELEMENTS = 1 << 22  # random numbers per call: 16 MiB of temporary memory
StorageScalar = np.float32 | np.float16 | np.uint16
STORAGE: dict[Dtype, type[StorageScalar]] = {Dtype.fp32: np.float32, Dtype.fp16: np.float16, Dtype.bf16: np.uint16}


def from_float32(values: Array, dtype: Dtype) -> Array:
    """Convert float32 to the storage type, rounded to nearest, ties to even. The shape stays."""
    if dtype is not Dtype.bf16:
        return values.astype(STORAGE[dtype])
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[(bits & 0x7FFFFFFF) > 0x7F800000] = 0x7FFF  # a NaN: rounding could carry into its sign and give 0
    return rounded


def to_float32(values: Array, dtype: Dtype) -> Array:
    """Convert the storage type to float32, without rounding. The shape stays."""
    if dtype is not Dtype.bf16:
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


def to_host(values: Array) -> Array:
    """Return an array of NumPy or CuPy as NumPy's."""
    return values if isinstance(values, np.ndarray) else values.get()


def wait(xp: ModuleType) -> None:
    """Wait for what the array module `xp` has submitted to its present stream.

    CuPy gives memory that Python has dropped to the next array, although work on this stream still uses it. Other
    streams do not wait for that work: what they write into the new array would change it. So the generator of random
    values must be done before a launch on another stream.
    """
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()


class Sources(NamedTuple):
    """Where the contents of arenas come from, if not from the seed and from new memory."""

    numbers: Mapping[ArenaKey, int] = {}  # the number with which the seed gives an arena's values; absent: its rank
    copied: frozenset[ArenaKey] = frozenset()  # arenas whose inputs are copied from elsewhere
    given: Mapping[ArenaKey, Array] = {}  # memory of some arenas, flat
    fixed: Mapping[ArenaKey, Fixed] = {}  # values of some arenas, which no seed gives


FROM_SEED = Sources()


class Arenas:
    """The arenas of a workload, on the device of the array module `xp` (numpy or cupy).

    fills: for each arena with inputs, (number of leading slots that hold inputs, largest distance of a value from the
    arena's center). None: all slots of A and B, and a distance of 1.
    """

    def __init__(
        self,
        xp: ModuleType,
        slots: Mapping[ArenaKey, int],
        fills: Mapping[ArenaKey, tuple[int, float]] | None = None,
        sources: Sources = FROM_SEED,
    ) -> None:
        self.xp, self._sources = xp, sources
        self.peers: Sequence[Array] = ()  # activations of the other GPUs that split the model, flat
        self.rank = 0  # number of this GPU among them
        inputs = {arena: (count, 1.0) for arena, count in slots.items() if arena.role != "c"}
        self._fills = inputs if fills is None else fills
        self.arrays = {arena: self._memory(arena, count) for arena, count in slots.items()}

    def _memory(self, arena: ArenaKey, slots: int) -> Array:
        if arena.packing:
            return self.xp.empty((slots, arena.slot_bytes), np.uint8)
        shape = slots, arena.slot_bytes // arena.dtype.itemsize
        if arena in self._sources.given:
            return self._sources.given[arena].reshape(shape)
        return self.xp.empty(shape, STORAGE[arena.dtype])

    def fill(self, seed: int) -> None:
        """Write random inputs, and wait for them. The same seed on the same device gives the same values."""
        for arena, flat in self.inputs():
            # written into the arena without a copy
            straight = arena.dtype is Dtype.fp32 and not arena.packing and self.is_random(arena)
            for chunk, values in self.expected(arena, seed, into=flat if straight else None):
                if not straight:
                    flat[chunk] = values
        wait(self.xp)

    def inputs(self) -> Iterator[tuple[ArenaKey, Array]]:
        """Yield each arena with inputs from the seed, and a flat view of them, with the padding of their slots."""
        for arena, array in sorted(self.arrays.items()):
            if arena in self._fills and arena not in self._sources.copied:
                yield arena, array[: self._fills[arena][0]].reshape(-1)

    def bound(self, arena: ArenaKey) -> float:
        """Return the largest distance of an input from the center of its arena."""
        return self._fills[arena][1]

    def is_random(self, arena: ArenaKey) -> bool:
        """Return whether the seed gives the inputs of an arena."""
        return arena not in self._sources.fixed

    def expected(self, arena: ArenaKey, seed: int, into: Array | None = None) -> Iterator[tuple[slice, Array]]:
        """Yield the inputs that `seed` gives, in the arena's storage type, in chunks: where a chunk lies, its values.

        A chunk of quantised weights is whole slots. into: a flat array that takes the values of an arena of fp32.
        """
        if arena.packing:
            yield from self._quantised(arena, seed)
        else:
            size = self._fills[arena][0] * self.arrays[arena].shape[1]
            yield from self._random(arena, seed, size, into)

    def _quantised(self, arena: ArenaKey, seed: int) -> Iterator[tuple[slice, Array]]:
        """Yield quantised weights: those of as many slots as fit into a chunk, at least of one."""
        slots, slot_bytes, at = self._fills[arena][0], arena.slot_bytes, 0
        elements = arena.plain.slot_bytes // arena.dtype.itemsize  # of a slot without quantisation
        chunks = (values for _, values in self._random(arena, seed, slots * elements))
        together = max(1, min(slots, CHUNK_ELEMENTS // elements)) * elements
        for values in _regrouped(self.xp, chunks, slots * elements, together):
            wide = values if arena.dtype is Dtype.fp32 else to_float32(values, arena.dtype)
            weights = wide.reshape(-1, elements)[:, : arena.rows * arena.cols].reshape(-1, arena.rows, arena.cols)
            packed = quantised(self.xp, weights, arena.packing, self.xp.empty((len(weights), slot_bytes), np.uint8))
            yield slice(at, at + packed.size), packed.reshape(-1)
            at += packed.size

    def _random(
        self, arena: ArenaKey, seed: int, size: int, into: Array | None = None
    ) -> Iterator[tuple[slice, Array]]:
        """Yield `size` random values in the dtype of an arena."""
        number, bound = self._sources.numbers.get(arena), self.bound(arena)
        number = sorted(self.arrays).index(arena) if number is None else number
        generator = self.xp.random.default_rng([seed, number])
        for start in range(0, size, CHUNK_ELEMENTS):
            chunk = slice(start, min(start + CHUNK_ELEMENTS, size))
            if arena in self._sources.fixed:
                yield chunk, from_float32(self.xp.asarray(self._sources.fixed[arena](chunk)), arena.dtype)
                continue
            out = None if into is None else into[chunk]
            values = generator.random(chunk.stop - chunk.start, dtype=np.float32, out=out)
            values *= 2 * bound
            values -= bound - arena.center
            yield chunk, values if arena.dtype is Dtype.fp32 else from_float32(values, arena.dtype)

    def outputs(self) -> Iterator[Array]:
        """Yield everything except inputs: a flat view of each arena's slots behind its inputs."""
        for arena, array in sorted(self.arrays.items()):
            filled, _ = self._fills.get(arena, (0, 0.0))
            yield array[filled:].reshape(-1)

    def poison(self) -> None:
        """Set everything except inputs to NaN."""
        for flat in self.outputs():
            flat.view(np.uint8).fill(POISON_BYTE)

    def matrices(self, arena: ArenaKey, slots: Array) -> Array:
        """Return copies of the slots with numbers `slots`, [len(slots), rows, cols], without rounding.

        They are float32; quantised weights are float64, which has every product of a code and a scale.
        """
        if arena.packing:
            return self.dequantised(arena, self.arrays[arena][self.xp.asarray(slots)])
        size = arena.rows * arena.cols
        taken = self.arrays[arena][self.xp.asarray(slots), :size]
        wide = taken if arena.dtype is Dtype.fp32 else to_float32(taken, arena.dtype)  # `taken` is a copy
        return wide.reshape(-1, arena.rows, arena.cols)

    def matrix(self, arena: ArenaKey, slot: int) -> Array:
        """Return one slot as float32 [rows, cols], without rounding. It is a view if the arena stores float32."""
        values = self.arrays[arena][slot, : arena.rows * arena.cols]
        wide = values if arena.dtype is Dtype.fp32 else to_float32(values, arena.dtype)
        return wide.reshape(arena.rows, arena.cols)

    def dequantised(self, arena: ArenaKey, packed: Array) -> Array:
        """Return the weights that slots stand for, float64 [n, rows, cols]. packed: the slots, [n, bytes of a slot]."""
        return dequantised(self.xp, packed, arena.rows, arena.cols, arena.packing, np.float64)

    def view(self, operand: Operand, rows: int, cols: int) -> Array:
        """Return a view of every slot of an operand in its storage type, [slots, rows, cols]. Slots may overlap.

        A slot of quantised weights is one row of bytes: [slots, 1, bytes of a slot].
        """
        array = self.arrays[operand.arena]
        if operand.arena.packing:
            return array[:, None]
        size = array.itemsize
        last = ((rows - 1) * operand.row_elements + cols) * size  # bytes of a slot, without the padding of its last row
        slots = 1 + (array.nbytes - last) // operand.slot_bytes
        view = self.xp.lib.stride_tricks.as_strided
        return view(array, (slots, rows, cols), (operand.slot_bytes, operand.row_elements * size, size))


def _regrouped(xp: ModuleType, chunks: Iterator[Array], total: int, most: int) -> Iterator[Array]:
    """Yield the `total` values of chunks in groups of `most`; the last group may be smaller."""
    group, filled, left = None, 0, total
    for chunk in chunks:
        taken = 0
        while taken < len(chunk):
            if group is None:
                group, filled = xp.empty(min(most, left), chunk.dtype), 0
            part = min(len(group) - filled, len(chunk) - taken)
            group[filled : filled + part] = chunk[taken : taken + part]
            filled, taken = filled + part, taken + part
            if filled == len(group):
                yield group
                group, left = None, left - filled


class SeqState:
    """The positions of requests and their pages of the KV cache, in memory of the array module `xp`.

    positions: int32 [2, requests], the position of a step's first column, and that of the next step's first column.
    table: int32 [requests, pages per request]. Both keep their addresses, so recorded launches may hold them. Only
    Op.SLOT_MAP changes positions. starts: int32 [requests], tokens that a request finds in the cache. prefixes: these
    tokens, in pages of other requests.
    """

    def __init__(
        self,
        xp: ModuleType,
        attention: Attention,
        requests: int,
        seed: int,
        prefixes: SharedPrefixes | None = None,
    ) -> None:
        table = attention.page_table(seed)
        starts = np.zeros(requests, np.int32) if prefixes is None else prefixes.cached.astype(np.int32)
        self.starts: Array = xp.asarray(starts)
        self.positions: Array = xp.zeros((2, requests), np.int32)
        self.table: Array = xp.asarray(table if prefixes is None else prefixes.pages(table))
        self.requests = requests
        self.reset()
        wait(xp)  # launches on other streams read them

    def reset(self) -> None:
        """Begin a run: a request has the tokens that it finds in the cache. Requests keep their pages."""
        self.positions[...] = self.starts
