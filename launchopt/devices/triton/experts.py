"""Steps of a layer with experts as serving engines launch them: grouped GEMMs in Triton, tuned for the layer.

A step has seven launches: the router, top-k, the blocks of each expert's rows (kernels/expert_align.cu), the first
GEMM, which gathers its inputs through the blocks, the activation, the second GEMM, and the weighted sum. Triton
compiles both GEMMs of experts. The router is cuBLASLt's GEMM or our own, whichever is faster. Engines use CUDA kernels
for the other launches, and so do these steps.

A captured step begins with one more launch, which copies the operands of the next step from a table of all steps. Only
a jump to another step is uploaded.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.command import as_records
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cuda.graph_cache import Graphs
from launchopt.devices.prepared import Counters
from launchopt.devices.steps.expert_operands import OPERANDS, launch_all
from launchopt.devices.triton.expert_gemms import WORD_BYTES, ExpertLaunches
from launchopt.devices.triton.expert_operands import LAUNCHES, READ_BLOCKS, WORDS, Operands
from launchopt.devices.triton.expert_tuning import blocks_bytes, rows_to_try
from launchopt.errors import RunError
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES
from launchopt.types import Table

TURNS = 16  # steps whose GEMMs are timed together, so that weights come from memory
UPLOAD_CALLS = 1  # calls besides a replay, if it jumps to a step
NONE = np.zeros(0, np.int64)


class TritonExpertSteps:
    """Launches steps. captured: as replays of a graph. early: with programmatic dependent launch (PDL).

    chosen: the fastest configuration of each GEMM of experts, and its ns.
    """

    def __init__(self, device: GpuDevice, captured: bool, early: bool) -> None:
        stream = device.work
        if not isinstance(stream, ExpertStream):
            raise RunError("these kernels need a stream of a layer with experts")
        self._device, self._stream, self._captured = device, stream, captured
        self.counters = Counters(graph_replays=0) if captured else Counters()
        self._context: Table = device.base.contexts[0]
        self._alone = cupy.asarray(np.array([0, stream.layer.columns], np.int32))
        self._scratch = cupy.empty(stream.layout.region_bytes, np.uint8)
        launches = self._tuned((captured, early))
        self.chosen = launches.chosen
        self._plans = np.array([launches.row(name) for name in LAUNCHES], np.int64)
        self._words = np.zeros(WORDS, np.int64)
        self._next: int | None = None  # the step whose operands the next replay finds
        self._graphs: Graphs | None = None
        if captured:
            self._prepare_graph(early)

    def _tuned(self, how: tuple[bool, bool]) -> ExpertLaunches:
        """Return the launches with the fastest kernels. The blocks of the first timed step are those of every step."""
        layer, stream, scratch = self._stream.layer, self._stream, int(self._scratch.data.ptr)
        tried = rows_to_try(layer, float(stream.active.mean()))
        slot = max(-(-blocks_bytes(layer, rows) // SLOT_ALIGNMENT_BYTES) for rows in tried) * SLOT_ALIGNMENT_BYTES
        turns = min(TURNS, stream.steps)
        self._blocks = cupy.empty((turns, slot), np.uint8)
        addresses = {key: int(array.data.ptr) for key, array in self._device.arenas.arrays.items()}
        self._operands = Operands(stream, addresses, int(self._alone.data.ptr), int(self._blocks.data.ptr))
        words = np.zeros((turns, len(LAUNCHES), OPERANDS), np.int64)
        for step in range(turns):
            self._operands.apart(words[step].reshape(-1), step, scratch)
            words[step, READ_BLOCKS, OPERANDS - 1] += step * slot
        return ExpertLaunches(self._device, stream, how, words, tried)

    def _prepare_graph(self, early: bool) -> None:
        """Make the table of all steps, and behind them one whose outputs go to scratch memory; capture a step."""
        device, steps = self._device, self._stream.steps
        table = np.zeros((steps + 1, WORDS), np.int64)
        for step in range(steps):
            self._operands.of_step(table[step], step)
        self._operands.apart(table[steps], 0, int(self._scratch.data.ptr))
        self._table, self._own_words = cupy.asarray(table), cupy.empty(WORDS, np.int64)
        device.synchronize()
        self._number = Pointers(device.stream, 1)
        kernels, launch = device.kernels, Launch((1, 1, 1), (32, 1, 1), 0, NONE)
        function = kernels.function("next_operands", "next_operands", "", PDL=int(early))
        self._first = np.array(kernels.row(function, launch, early), np.int64)
        # The kernels are loaded first: a capture fails at a kernel that is not loaded.
        self.load()
        self._graphs = Graphs(device.stream, 1, self.counters)
        self._graphs.make("step", "step", self._launch_captured)

    def load(self) -> None:
        """Launch a step with outputs to scratch memory: the driver loads kernels late, and may have evicted a graph."""
        if self._captured:
            self._jump(self._stream.steps)
            self._next = None
        else:
            self._operands.apart(self._words, 0, int(self._scratch.data.ptr))
        self._launch()
        self._device.synchronize()

    def _jump(self, step: int) -> int:
        """Let the next replay be of a step; return the bytes of the upload."""
        jumps, self._next = step != self._next, step + 1
        if jumps:
            self._number.stage()[:] = step
            self._number.upload(1)
        return WORD_BYTES * jumps

    def _launch(self) -> None:
        graph = None if self._graphs is None else self._graphs.get("step")
        if not self._captured:
            self._device.check(launch_all(self._context, self._plans, self._words))
        elif graph is None:
            self._launch_captured()
        else:
            assert self._graphs is not None
            self._graphs.replay(graph)

    def _launch_captured(self) -> None:
        """Launch all kernels with the addresses of their operands' addresses, of which the first one is the table's."""
        first, number = int(self._own_words.data.ptr), self._number.device
        self._device.check(lt.launch(self._context, self._first, int(self._table.data.ptr), number, first, WORDS))
        words = first + WORD_BYTES * np.arange(WORDS, dtype=np.int64)
        self._device.check(launch_all(self._context, self._plans, words))

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a step. The batch may have only its first commands, as in a warm-up run."""
        count, uploaded = len(batch), 0
        start_ns = self._device.enter(SEVERAL, count)
        step = int(as_records(batch.words[:1])["slot_c"][0]) // self._stream.layout.region.units
        if self._captured:
            uploaded = self._jump(step)
        else:
            self._operands.of_step(self._words, step)
        self._launch()
        strategy, more_calls = Strategy.triton, len(LAUNCHES) - 1
        if self._captured:
            strategy, more_calls = Strategy.graph, UPLOAD_CALLS * (uploaded > 0)
        self._device.leave(batch, slice(0, count), strategy, flush_ns, start_ns, more_calls, uploaded)
        if self._captured:
            self.counters.replayed()

    def close(self) -> None:
        """Destroy the graph."""
        if self._graphs is not None:
            self._graphs.close()
