"""Groups of a step's rows on the CPU, each computed as one call for all requests of a launch.

A `Bind` takes the records of a group, [rows, requests, WORDS], and returns a function that computes the group. Values
between the rows of a group stay in fp32, except where the op behind reads what the group also stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COLLECTIVES, HALF_BITS, LOW_HALF, Op, RecordWord
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.base import HostDevice
from launchopt.devices.cpu.ops import Place, Sequences, Wide, attend, keep, norm, rotated, silu_mul
from launchopt.streams.chains.groups import Group, Kind
from launchopt.streams.chains.placement import Row
from launchopt.types import Array, Words

Bind = Callable[[Words], Callable[[], None]]
Slots = NDArray[np.int64]


class Binder:
    """Binds the groups of one kind of step. rows: its rows. shape_of: the index of the shape of each row."""

    def __init__(self, device: HostDevice, rows: Sequence[Row], shape_of: Sequence[int]) -> None:
        self._device, self._rows, self._shape_of = device, rows, shape_of
        self._views, self._dtype = device.compute.views, device.work.dtype
        self._norm_epsilon = device.work.norm_epsilon

    def bind_of(self, group: Group) -> Bind:
        """Return the `Bind` of a group."""
        binds: dict[Kind, Callable[[Words, int, int], Callable[[], None]]] = {
            Kind.merged: self._gemm,
            Kind.epilogue: self._epilogue,
            Kind.elementwise: self._elementwise,
            Kind.add_norm: self._add_norm,
            Kind.reduce: self._reduce,
            Kind.rope_kv: self._attention,
            Kind.attention: self._attention,
            Kind.gemm: self._gemm,
        }
        bind = binds[group.kind]
        return lambda words: bind(words, group.first, group.stop)

    def row(self, at: int) -> Bind:
        """Return the `Bind` of a single row. Requests with one column that share a weight are one GEMM."""

        def bind(words: Words) -> Callable[[], None]:
            index, records, compute = self._shape_of[at], words[0], self._device.compute
            shape = self._device.work.shapes[index]
            if shape.op is Op.GEMM and shape.n == 1 and words.shape[1] > 1:
                return partial(self._multiplied, records, at)
            slots = zip(*(_slots(records, role).tolist() for role in range(3)), strict=True)
            operands = [self._operands(index, own) for own in slots]
            if shape.op in COLLECTIVES:
                return partial(compute.exchange, shape.op, [(b, c) for _, b, c in operands])

            def run() -> None:
                for i, (a, b, c) in enumerate(operands):
                    compute.run(index, a, b, c, records[i : i + 1])

            return run

        return bind

    def _operands(self, index: int, slots: tuple[int, ...]) -> tuple[Array, Array, Array]:
        a, b, c = (view[slot : slot + 1] for view, slot in zip(self._views[index], slots, strict=True))
        return a, b, c

    def _multiplied(self, records: Words, at: int) -> None:
        wide = self._wide(records, at, 1)
        self._store(records, at, self._products(records, at, wide, self._features(at)))

    def _features(self, at: int) -> int:
        """Return the features of the output of row `at`."""
        return self._device.work.shapes[self._shape_of[at]].m

    def _wide(self, records: Words, at: int, role: int) -> Wide:
        """Return an operand of row `at` as fp32, [requests, rows, features]. role: 0, 1, 2 for A, B, C."""
        taken: Wide = to_float32(self._views[self._shape_of[at]][role][_slots(records, role)], self._dtype)
        return taken

    def _store(self, records: Words, at: int, wide: Wide) -> None:
        """Store outputs, [requests, rows, features], in C of row `at` and of merged GEMMs behind it."""
        outputs, rounded = self._views[self._shape_of[at]][2], from_float32(wide, self._dtype)
        if wide.shape[2] == outputs.shape[2]:
            outputs[_slots(records, 2)] = rounded
            return
        for slot, own in zip(_slots(records, 2).tolist(), rounded, strict=True):
            _widened(outputs[slot], wide.shape[2], 1)[:] = own

    def _products(self, records: Words, at: int, inputs: Wide, features: int) -> Wide:
        """Return inputs @ A.T in fp32, one for each weight. features: those of A, and of GEMMs merged with it."""
        index = self._shape_of[at]
        weights, shape = self._views[index][0], self._device.work.shapes[index]
        slots, out = _slots(records, 0), np.empty((*inputs.shape[:2], features), np.float32)
        for slot in np.unique(slots).tolist():
            own = slots == slot
            weight = weights[slot] if shape.packing else _widened(weights[slot], features, 0)
            given, wide = inputs[own][..., : shape.k], self._device.compute.weights(index, weight[None])[0]
            flat = given.reshape(-1, shape.k) @ wide.T
            out[own] = flat.reshape(*given.shape[:2], -1)
        return out

    def _epilogue(self, words: Words, first: int, stop: int) -> Callable[[], None]:
        """Bind GEMM, bias and ReLU. The result is rounded once, like that of cuBLASLt's epilogue."""

        def run() -> None:
            wide = self._products(words[0], first, self._wide(words[0], first, 1), self._features(first))
            self._store(words[2], first + 2, np.maximum(wide + self._wide(words[1], first + 1, 0), 0))

        return run

    def _elementwise(self, words: Words, first: int, stop: int) -> Callable[[], None]:
        """Bind bias, ReLU and scale."""

        def run() -> None:
            wide = np.maximum(self._wide(words[0], first, 1) + self._wide(words[0], first, 0), 0)
            self._store(words[2], first + 2, wide * self._wide(words[2], first + 2, 0))

        return run

    def _add_norm(self, words: Words, first: int, stop: int) -> Callable[[], None]:
        """Bind the residual add and the norm of its rounded output."""

        def run() -> None:
            self._store(words[0], first, self._wide(words[0], first, 0) + self._wide(words[0], first, 1))
            self._norm(words[1], first + 1)

        return run

    def _reduce(self, words: Words, first: int, stop: int) -> Callable[[], None]:
        """Bind an all-reduce, the residual add, and perhaps the norm of its rounded output."""
        parts = self._views[self._shape_of[first]][1]
        given = [parts[slot] for slot in _slots(words[0], 1).tolist()]
        sums = np.empty((len(given), *parts.shape[1:]), parts.dtype)

        def run() -> None:
            self._device.compute.exchange(Op.ALL_REDUCE, [*zip(given, sums, strict=True)])
            self._store(words[1], first + 1, self._wide(words[1], first + 1, 0) + to_float32(sums, self._dtype))
            if stop - first > 2:
                self._norm(words[2], first + 2)

        return run

    def _norm(self, records: Words, at: int) -> None:
        """Compute the norm of row `at`."""
        gain = self._wide(records, at, 0)
        self._store(records, at, norm(self._wide(records, at, 1), gain, self._norm_epsilon))

    def _gemm(self, words: Words, first: int, stop: int) -> Callable[[], None]:
        """Bind a GEMM, or merged GEMMs as one, with the norm before, and the add or SiLU(gate) * up behind.

        Only the result is rounded.
        """
        ops = [row.op for row in self._rows[first:stop]]
        at, gemms = ops.index(Op.GEMM), [i for i in range(first, stop) if ops[i - first] is Op.GEMM]
        features, last = sum(map(self._features, gemms)), at if ops[-1] is Op.GEMM else len(ops) - 1

        def run() -> None:
            wide = self._wide(words[0], first, 1)
            if at:
                wide = norm(wide, self._wide(words[0], first, 0), self._norm_epsilon)
            wide = self._products(words[at], first + at, wide, features)
            if ops[-1] is Op.ADD:
                wide = wide + self._wide(words[-1], stop - 1, 0)
            elif ops[-1] is Op.SILU_MUL:
                with np.errstate(over="ignore"):  # exp(-x) of a very negative gate is infinite: the gate is 0
                    wide = silu_mul(wide)
            self._store(words[last], first + last, wide)

        return run

    def _attention(self, words: Words, first: int, stop: int) -> Callable[[], None]:
        """Bind rotary embedding and KV write, or attention, or both."""
        by_op = {row.op: (first + i, words[i]) for i, row in enumerate(self._rows[first:stop])}
        requests = (words[0][:, RecordWord.SLOT_C_REQUEST] >> np.uint64(HALF_BITS)).tolist()

        def run() -> None:
            compute = self._device.compute
            assert compute.stream.attention is not None
            assert compute.state is not None
            sequences = Sequences(requests, compute.stream.attention, compute.state)
            for i, request in enumerate(requests):
                if request < compute.state.requests:
                    place = Place(sequences.attention, sequences.state, request, self._norm_epsilon)
                    self._attend(place, by_op, i)

        return run

    def _attend(self, place: Place, by_op: dict[Op, tuple[int, Words]], i: int) -> None:
        """Compute one request of a group of `_attention`."""

        def operand(op: Op, role: int) -> Array:
            at, records = by_op[op]
            return self._views[self._shape_of[at]][role][int(_slots(records, role)[i])]

        dtype = self._dtype
        if Op.ROPE in by_op:
            turned = rotated(place, operand(Op.ROPE, 0), operand(Op.ROPE, 1), dtype)
            keep(place, turned, operand(Op.KV_WRITE, 2))
            if Op.QK not in by_op:
                operand(Op.ROPE, 2)[:] = turned
        else:
            turned = operand(Op.QK, 1)
        if Op.QK in by_op:
            pool = operand(Op.QK, 0)
            operand(Op.AV, 2)[:] = from_float32(attend(place, to_float32(turned, dtype), pool, dtype), dtype)


def _slots(records: Words, role: int) -> Slots:
    """Return the slots of A, B or C (role 0, 1, 2) of records, [requests]."""
    half, low = np.uint64(HALF_BITS), np.uint64(LOW_HALF)
    of_ab, of_c = records[:, RecordWord.SLOTS_AB], records[:, RecordWord.SLOT_C_REQUEST]
    slots: Slots = (of_ab & low, of_ab >> half, of_c & low)[role].astype(np.int64)
    return slots


def _widened(view: Array, features: int, axis: int) -> Array:
    """Return a view of a matrix with more features than its own op has, those of adjacent ops, along an axis."""
    if view.shape[axis] == features:
        return view
    shape = [*view.shape]
    shape[axis] = features
    return np.lib.stride_tricks.as_strided(view, shape, view.strides)
