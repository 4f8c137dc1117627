"""Whole steps on the CPU device: one launch per row, or per group of rows that a stack fuses.

A launch computes its row or group for all requests of a `StepBatch`, or for one request without `coalesce`. Groups are
bound to operands first, and then computed. A step that is kept recorded is a list of bound rows and groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np

from launchopt.batching.batch import Batch, StepBatch
from launchopt.command import HALF_BITS, RecordWord, ShapeKey
from launchopt.devices.base import HostDevice
from launchopt.devices.cpu.coalesced import CpuCoalesced
from launchopt.devices.cpu.groups import Bind, Binder
from launchopt.recording.launch_rows import Strategy
from launchopt.stack import Stack
from launchopt.streams.chains.chain import chain_of
from launchopt.streams.chains.groups import groups_of
from launchopt.types import Words

# Words of a record by which a recorded list is found again. NumPy takes longer to index with members of an enumeration.
KEY_WORDS = [int(word) for word in (RecordWord.MN, RecordWord.SLOTS_AB, RecordWord.SLOT_C_REQUEST)]


class CpuSteps:
    """Launches the steps of a device's workload.

    limits: the largest batch of each shape. stack: its fusions and `coalesce` are those of the launches. kept: most
    recorded lists that are kept.
    """

    def __init__(self, device: HostDevice, limits: Mapping[ShapeKey, int], stack: Stack, kept: int = 0) -> None:
        self.device, self.stream, self._coalesce = device, chain_of(device.work), stack.coalesce
        self._strategy, self._kept = Strategy.fused, kept
        self._rows = CpuCoalesced(device, list(limits))
        self._lists: OrderedDict[bytes, list[Callable[[], None]]] = OrderedDict()
        index = {shape: i for i, shape in enumerate(limits)}
        # By rows and columns of a step: the index of the shape of each row, and groups by their first row.
        self.kinds: dict[tuple[int, int], tuple[list[int], dict[int, tuple[int, Bind]]]] = {}
        for kind in range(len(self.stream.kinds)):
            rows = self.stream.rows(kind)
            shape_of = [index[self.stream.shape_of(row)] for row in rows]
            binder, groups = Binder(device, rows, shape_of), groups_of(self.stream, kind, stack)
            self.kinds[len(rows), rows[0].n] = (
                shape_of,
                {each.first: (each.stop, binder.bind_of(each)) for each in groups},
            )

    def launch(self, batch: StepBatch, flush_ns: int) -> None:
        """Make one launch per row or group, for all requests of the batch, or for each of them."""
        shape_of, groups = self._kind_of(batch)
        whole, at = batch.words.reshape(batch.rows, batch.size, -1), 0
        while at < batch.rows:
            stop, bind = groups.get(at, (at + 1, None))
            if bind is None:
                self._row(Batch(shape_of[at], whole[at], batch.reason), flush_ns)
            elif self._coalesce:
                self._group(batch, whole[at:stop], bind, flush_ns)
            else:
                for request in range(batch.size):
                    self._group(batch, whole[at:stop, request : request + 1], bind, flush_ns)
            at = stop

    def _kind_of(self, batch: StepBatch) -> tuple[list[int], dict[int, tuple[int, Bind]]]:
        return self.kinds[batch.rows, int(batch.words[0, RecordWord.MN] >> HALF_BITS)]

    def _row(self, batch: Batch, flush_ns: int) -> None:
        if self._coalesce:
            self._rows.submit(batch, flush_ns)
        else:
            self.device.submit_each(batch.words, np.full(len(batch.words), batch.shape_index, np.int32), flush_ns)

    def _group(self, batch: StepBatch, words: Words, bind: Bind, flush_ns: int) -> None:
        """Compute a group as one launch. words: [rows, requests, WORDS]."""
        start_ns = self.device.enter(-1, words.shape[1])
        bind(words)()
        own = Batch(-1, np.ascontiguousarray(words.reshape(-1, words.shape[2])), batch.reason)
        self.device.leave(own, slice(0, len(own.words)), self._strategy, flush_ns, start_ns)

    def replay(self, batch: StepBatch, flush_ns: int) -> None:
        """Compute the recorded lists of a batch's steps as one launch; record a list first if it is not kept.

        The results of each step but the last are fed back before the next step.
        """
        steps = self.stream.steps_of(batch.rows)
        parts = [batch.step(number, batch.rows // steps) for number in range(steps)]
        lists = [self._list_of(part) for part in parts]
        start_ns = self.device.enter(-1, batch.size)
        for number, calls in enumerate(lists):
            if number > 0:
                self.device.end_step(parts[number - 1].words[-batch.size :])
            for call in calls:
                call()
        self.device.leave(batch, slice(0, len(batch.words)), Strategy.graph, flush_ns, start_ns)

    def _list_of(self, batch: StepBatch) -> list[Callable[[], None]]:
        key = batch.words[:, KEY_WORDS].tobytes()
        calls = self._lists.pop(key, None) or self._record(batch)
        self._lists[key] = calls
        if len(self._lists) > self._kept:
            self._lists.popitem(last=False)
        return calls

    def _record(self, batch: StepBatch) -> list[Callable[[], None]]:
        shape_of, groups = self._kind_of(batch)
        # A copy, since the words of the batch are overwritten, and a call reads the requests from them.
        whole, at, calls = batch.words.reshape(batch.rows, batch.size, -1).copy(), 0, list[Callable[[], None]]()
        parts = [slice(0, batch.size)] if self._coalesce else [slice(i, i + 1) for i in range(batch.size)]
        binder = Binder(self.device, [], shape_of)
        while at < batch.rows:
            stop, bind = groups.get(at, (at + 1, binder.row(at)))
            calls += [bind(whole[at:stop, part]) for part in parts]
            at = stop
        return calls

    def close(self) -> None:
        """Drop the recorded lists."""
        self._lists.clear()
