"""Whole steps on the CPU device: one launch per row, or per group of rows that a mode fuses.

A launch computes its row or group for every request of a `StepBatch`, with NumPy calls on the arenas. It has one NVTX
range and is recorded as one launch call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import StepBatch
from launchopt.command import HALF_BITS, LOW_HALF, RecordWord, ShapeKey
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.base import HostDevice
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chain import chain_of
from launchopt.types import Array

Compute = Callable[[NDArray[np.uint64]], None]  # computes a group of rows, given one request's records of it
# Returns the groups of a kind of step: {first row: (one past the last row, function that computes the group)}.
Groups = Callable[["CpuSteps", int], dict[int, tuple[int, Compute]]]


class CpuSteps:
    """Launches the steps of a device's workload.

    limits: the largest batch of each shape. strategy: recorded for the launches of groups. groups: returns the groups
    of a kind of step.
    """

    def __init__(self, device: HostDevice, limits: Mapping[ShapeKey, int], strategy: Strategy, groups: Groups) -> None:
        self.device, self.stream, self._strategy = device, chain_of(device.work), strategy
        self._views, index = device.compute.views, {shape: i for i, shape in enumerate(limits)}
        self._kinds: dict[tuple[int, int], tuple[list[int], dict[int, tuple[int, Compute]]]] = {}
        for kind in range(len(self.stream.kinds)):
            self.rows = self.stream.rows(kind)
            self.shape_of = [index[self.stream.shape_of(row)] for row in self.rows]
            self._kinds[len(self.rows), self.rows[0].n] = (self.shape_of, groups(self, kind))

    def launch(self, batch: StepBatch, flush_ns: int) -> None:
        """Make one launch per row or group, for all requests of the batch."""
        shape_of, groups = self._kinds[batch.rows, int(batch.words[0, RecordWord.MN] >> HALF_BITS)]
        whole, at, device = batch.words.reshape(batch.rows, batch.size, -1), 0, self.device
        while at < batch.rows:
            stop, compute = groups.get(at, (at + 1, None))
            start_ns = device.enter(-1, batch.size)
            for request in range(batch.size):
                if compute is None:
                    index = np.full(1, shape_of[at], np.int32)
                    device.execute(whole[at, request : request + 1], index)
                else:
                    compute(whole[at:stop, request])
            part = slice(at * batch.size, stop * batch.size)
            device.leave(batch, part, Strategy.single if compute is None else self._strategy, flush_ns, start_ns)
            at = stop

    def operand(self, index: int, role: int, word: NDArray[np.uint64]) -> Array:
        """Return a view of a command's A, B or C (role 0, 1, 2), as a stack of one. index: number of its shape."""
        of_ab, of_c = word[RecordWord.SLOTS_AB], word[RecordWord.SLOT_C_REQUEST]
        slots = of_ab & LOW_HALF, of_ab >> HALF_BITS, of_c & LOW_HALF
        slot = int(slots[role])
        return self._views[index][role][slot : slot + 1]

    def merged(self, start: int, stop: int) -> Compute:
        """Return a function that computes rows `start` to `stop` as one GEMM; their operands are adjacent."""
        first = self.shape_of[start]
        features = sum(row.m for row in self.rows[start:stop])

        def compute(words: NDArray[np.uint64]) -> None:
            a, b, c = (self.operand(first, role, words[0]) for role in range(3))
            wide_a = np.lib.stride_tricks.as_strided(a, (1, features, a.shape[2]), a.strides)
            wide_c = np.lib.stride_tricks.as_strided(c, (1, c.shape[1], features), c.strides)
            self.device.compute.multiply(wide_a, b, wide_c)

        return compute

    def epilogue(self, start: int) -> Compute:
        """Return a function that computes GEMM, bias and ReLU in one call. It rounds once, like cuBLASLt's epilogue."""
        (gemm, bias, relu), dtype = self.shape_of[start : start + 3], self.stream.dtype

        def compute(words: NDArray[np.uint64]) -> None:
            a, b = (to_float32(self.operand(gemm, role, words[0]), dtype) for role in (0, 1))
            added = to_float32(self.operand(bias, 0, words[1]), dtype)
            wide = np.maximum(b @ a.transpose(0, 2, 1) + added, 0)
            self.operand(relu, 2, words[2])[:] = from_float32(wide, dtype)

        return compute

    def elementwise(self, start: int) -> Compute:
        """Return a function that computes bias, ReLU and scale as one call."""
        (bias, _, scale), dtype = self.shape_of[start : start + 3], self.stream.dtype

        def compute(words: NDArray[np.uint64]) -> None:
            given, added = (to_float32(self.operand(bias, role, words[0]), dtype) for role in (1, 0))
            factor = to_float32(self.operand(scale, 0, words[2]), dtype)
            self.operand(scale, 2, words[2])[:] = from_float32(np.maximum(given + added, 0) * factor, dtype)

        return compute
