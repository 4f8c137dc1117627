"""A CUDA graph of a whole pass through a list with groups: one launch for all of its GEMMs, as engines capture a step.

The graph holds a pointer-array GEMM for each shape of each group, one behind another: the groups keep their order. The
GEMMs read pointers from one table, which is filled and uploaded before each replay, since every pass has outputs of its
own. The commands of a shape and a group stand side by side in the table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import cupy
import numpy as np

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.batching.batcher import shape_finder
from launchopt.command import WORDS, Flag, Records, ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.cublaslt.pointer_loops import fill_pass
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import by_pointers
from launchopt.devices.cuda.graph_cache import Graphs
from launchopt.devices.prepared import Counters
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream
from launchopt.streams.stream import commands_of
from launchopt.types import Table, Words

UPLOAD_CALLS = 1  # calls besides the replay


class Part(NamedTuple):
    """One GEMM of the graph: its place in the table of pointers, and its commands."""

    first: int
    size: int
    shape: int  # its index


class Layout(NamedTuple):
    """The table of pointers of a pass. order, shape_of: [commands], the command and the shape of each place."""

    order: Table
    shape_of: Table
    parts: list[Part]


def layout_of(stream: Stream, commands: int, limits: Mapping[ShapeKey, int]) -> Layout:
    """Return the layout of the first `commands` of a stream, a pass; all passes are alike. limits: of one GEMM."""
    blocks: list[Records] = []
    for block in commands_of(stream).blocks():
        blocks.append(block.records)
        if sum(map(len, blocks)) >= commands:
            break
    records = np.concatenate(blocks)[:commands]
    shape_of = shape_finder(list(limits)).classify(records, np.zeros(commands, np.int32)).astype(np.int64)
    ends = (records["flags"].astype(np.int64) & int(Flag.GROUP_END)) != 0
    group_of = np.cumsum(ends) - ends
    order = np.lexsort((shape_of, group_of))
    shape_of, most = shape_of[order], list(limits.values())
    starts = np.flatnonzero(np.diff(shape_of, prepend=-1) | np.diff(group_of[order], prepend=-1))
    parts = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), commands], strict=True):
        index = int(shape_of[start])
        for first in range(start, stop, most[index]):
            parts.append(Part(first, min(most[index], stop - first), index))
    return Layout(order, shape_of, parts)


class PassGraph:
    """The graph of a pass of `commands` commands."""

    def __init__(self, device: GpuDevice, limits: Mapping[ShapeKey, int], commands: int) -> None:
        self._device, self._tables, self._commands = device, device.base.fork(), commands
        self.counters = Counters(graph_replays=0)
        self._layout = layout_of(device.work, commands, limits)
        self._pointers = Pointers(device.stream, 3 * commands)
        widest = max(shape.n * row for shape in limits for row in device.row_elements(shape)[2:])
        self._scratch = cupy.empty(widest * device.work.dtype.itemsize, np.uint8)
        for index, most in enumerate(limits.values()):
            if sizes := sorted({part.size for part in self._layout.parts if part.shape == index}):
                self._tables.add(index, sizes, partial(self._plan, index, most))
        self._graphs = Graphs(device.stream, 1, self.counters)
        self._graphs.make("pass", "pass", self._record)
        self.load()

    def load(self) -> None:
        """Replay the graph once with outputs to scratch memory: other modes may have evicted its kernels."""
        self._fill(np.zeros((0, WORDS), np.uint64))
        self._replay()
        self._device.synchronize()

    def _plan(self, index: int, most: int, size: int) -> Row:
        return by_pointers(self._device, index, size, most)

    def _record(self) -> None:
        table, context, commands = self._pointers.device, self._tables.contexts[0], self._commands
        for first, size, shape in self._layout.parts:
            plan = self._tables.plans[self._tables.shapes[shape, ShapeColumn.PLAN0] + size]
            a, b, c = (table + 8 * (operand * commands + first) for operand in range(3))
            self._device.check(lt.launch(context, plan, a, b, c, 0))

    def _fill(self, words: Words) -> None:
        order, shape_of, _ = self._layout
        fill_pass(words, order, shape_of, self._tables.shapes, self._scratch.data.ptr, self._pointers.stage())
        self._pointers.upload(3 * self._commands)

    def _replay(self) -> None:
        graph = self._graphs.get("pass")
        assert graph is not None
        self._graphs.replay(graph)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Fill and upload the table of pointers, then replay the graph. A shorter batch is padded."""
        count = len(batch)
        start_ns = self._device.enter(SEVERAL, count)
        self._fill(batch.words)
        self.counters.spend("update", time.monotonic_ns() - start_ns)
        self._replay()
        uploaded = 24 * self._commands
        self._device.leave(batch, slice(0, count), Strategy.graph, flush_ns, start_ns, UPLOAD_CALLS, uploaded)
        self.counters.replayed(padded=self._commands - count)

    def close(self) -> None:
        """Destroy the graph."""
        self._graphs.close()
