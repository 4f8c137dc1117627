"""Steps of a layer with experts by our own kernels: eight launches, or one replay of a CUDA graph of these.

No launch depends on the routing: the GEMMs read the columns of each expert from the map of the step, on the GPU. The
kernels of a graph read their operands' addresses from a table, which is filled and uploaded before each replay.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.command import as_records
from launchopt.devices.base import Counters, GpuDevice
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cuda.expert_gemm import ExpertGemm
from launchopt.devices.cuda.graph_cache import Graphs
from launchopt.devices.cuda.op_kernels import geometry
from launchopt.devices.cuda.op_plans import three, to_launch
from launchopt.devices.steps.expert_operands import GEMMS, LAUNCHES, OPERANDS, WORDS, StepOperands, launch_all
from launchopt.errors import RunError
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.expert_layout import ROUTER
from launchopt.streams.expert_stream import ExpertStream
from launchopt.types import Table

UPLOAD_CALLS = 1  # calls besides a replay
WORD_BYTES = 8


class ExpertSteps:
    """Launches steps. captured: as replays of a graph. early: with programmatic dependent launch (PDL)."""

    def __init__(self, device: GpuDevice, captured: bool, early: bool) -> None:
        stream = device.work
        if not isinstance(stream, ExpertStream):
            raise RunError("these kernels need a stream of a layer with experts")
        self._device, self._stream, self._captured = device, stream, captured
        self._early = early
        self.counters = Counters(graph_replays=0) if captured else Counters()
        self._alone = cupy.asarray(np.array([0, stream.layer.columns], np.int32))
        arrays = device.arenas.arrays
        addresses = {key: int(array.data.ptr) for key, array in arrays.items()}
        self._operands = StepOperands(stream, addresses, int(self._alone.data.ptr))
        self._context: Table = device.base.contexts[0]
        self._plans = np.array([self._plan(name) for name in LAUNCHES], np.int64)
        self._words = np.zeros(WORDS, np.int64)
        self._scratch = cupy.empty(stream.layout.region_bytes, np.uint8)
        self._graphs: Graphs | None = None
        if captured:
            self._pointers = Pointers(device.stream, WORDS)
            # The kernels are loaded first: a capture fails at a kernel that is not loaded.
            self.load()
            self._graphs = Graphs(device.stream, 1, self.counters)
            self._graphs.make("step", "step", self._launch_indirect)

    def _plan(self, name: str) -> list[int]:
        """Return the row of the plans table of a launch."""
        kernels, defines = self._device.kernels, {"INDIRECT": int(self._captured), "PDL": int(self._early)}
        if name in GEMMS:
            function, launch = kernels.function("expert_gemm", "expert_gemm", "", **defines), self._gemm(name).launch()
        else:
            shape = self._stream.layout.singles[name]
            made = geometry(shape, 1, three(self._device.row_elements(shape)), (0, 0, 0))
            function, launch = kernels.function("ops", made.function_name, "", **defines), to_launch(made)
        return kernels.row(function, launch, self._early)

    def _gemm(self, name: str) -> ExpertGemm:
        layer, layout, which = self._stream.layer, self._stream.layout, GEMMS[name]
        shape = (layout.singles["router"], layout.gate_up(1), layout.down(1))[which]
        experts, columns = (1, layer.columns) if which == ROUTER else (layer.experts, layer.rows)
        _, *rows = three(self._device.row_elements(shape))
        return ExpertGemm(shape.m, shape.k, experts, columns, (rows[0], rows[1]), layout.weights[which].slot_bytes)

    def load(self) -> None:
        """Launch a step with outputs to scratch memory: the driver loads kernels late, and may have evicted a graph."""
        self._operands.fill_apart(self._words, int(self._scratch.data.ptr))
        self._launch(self._words)
        self._device.synchronize()

    def _launch(self, words: Table) -> None:
        """Launch all kernels, or replay their graph, with the operands in `words`."""
        if not self._captured:
            self._device.check(launch_all(self._context, self._plans, words))
            return
        self._pointers.stage()[:] = words
        self._pointers.upload(WORDS)
        graph = None if self._graphs is None else self._graphs.get("step")
        if graph is None:
            self._launch_indirect()
        else:
            assert self._graphs is not None
            self._graphs.replay(graph)

    def _launch_indirect(self) -> None:
        """Launch all kernels, each with the address of its addresses in the table."""
        words = np.zeros(WORDS, np.int64)
        words[::OPERANDS] = self._pointers.device + WORD_BYTES * OPERANDS * np.arange(len(LAUNCHES))
        self._device.check(launch_all(self._context, self._plans, words))

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a step. The batch may have only its first commands, as in a warm-up run."""
        count = len(batch)
        start_ns = self._device.enter(SEVERAL, count)
        self._operands.fill(self._words, int(as_records(batch.words[:1])["slot_c"][0]))
        self._launch(self._words)
        what = (Strategy.graph, UPLOAD_CALLS, WORD_BYTES * WORDS)
        if not self._captured:
            what = (Strategy.kernel, len(LAUNCHES) - 1, 0)
        strategy, more_calls, uploaded = what
        self._device.leave(batch, slice(0, count), strategy, flush_ns, start_ns, more_calls, uploaded)
        if self._captured:
            self.counters.replayed()

    def close(self) -> None:
        """Destroy the graph."""
        if self._graphs is not None:
            self._graphs.close()
