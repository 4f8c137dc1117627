"""Steps of a layer with experts by our own kernels: eight launches or fewer, or one replay of a CUDA graph of these.

No launch depends on the routing: the GEMMs read the columns of each expert from the map of the step, on the GPU. The
kernels of a graph read their operands' addresses from a table, which is filled and uploaded before each replay.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.command import INDEX_BYTES, as_records
from launchopt.devices.base import Counters, GpuDevice
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cuda.expert_gemm import ExpertGemm
from launchopt.devices.cuda.graph_cache import Graphs
from launchopt.devices.cuda.op_kernels import geometry
from launchopt.devices.cuda.op_plans import three, to_launch
from launchopt.devices.steps.expert_fusions import FUSED, FusedLaunches, Memory, fusions_for, launches_of
from launchopt.devices.steps.expert_operands import GEMMS, OPERANDS, StepOperands, launch_all
from launchopt.errors import RunError
from launchopt.recording.launch_rows import Strategy
from launchopt.stack import Stack
from launchopt.streams.expert_layout import ROUTER
from launchopt.streams.expert_stream import ExpertStream
from launchopt.types import Table

UPLOAD_CALLS = 1  # calls besides a replay
WORD_BYTES = 8
LEAST_CAPABILITY = 90  # of kernels that unpack quantised weights, times 10


class ExpertSteps:
    """Launches steps.

    stack: its fusions, and whether launches are programmatic (PDL). captured: as replays of a graph. left_out: fusions
    that steps of so many tokens do not have.
    """

    def __init__(self, device: GpuDevice, stack: Stack, captured: bool) -> None:
        stream = device.work
        if not isinstance(stream, ExpertStream):
            raise RunError("these kernels need a stream of a layer with experts")
        gpu = cupy.cuda.Device()
        if stream.packing and int(gpu.compute_capability) < LEAST_CAPABILITY:
            raise RunError("our GEMM of experts needs compute capability 9.0 for quantised weights: use weights=none")
        self._device, self._stream, self._captured, self._early = device, stream, captured, stack.pdl
        self.counters = Counters(graph_replays=0) if captured else Counters()
        fuse, self.left_out = fusions_for(stack.fuse, stream.layer.columns)
        self._launches = launches_of(fuse, bool(stream.packing))
        multiprocessors = int(gpu.attributes["MultiProcessorCount"])
        self._fused = FusedLaunches(stream.layout, fuse, stack.pdl, multiprocessors)
        words = self._fused.words
        self._memory = cupy.zeros(sum(words), np.int32)
        device.synchronize()  # another CUDA stream has set them to 0
        first = int(self._memory.data.ptr)
        places = np.cumsum([0, *words[:-1]]).tolist()
        self._places = Memory(*(first + INDEX_BYTES * place for place in places))
        self._alone = cupy.asarray(np.array([0, stream.layer.columns], np.int32))
        arrays = device.arenas.arrays
        addresses = {key: int(array.data.ptr) for key, array in arrays.items()}
        self._operands = StepOperands(stream, addresses, self._launches, int(self._alone.data.ptr))
        self._context: Table = device.base.contexts[0]
        self._plans = np.array([self._plan(name) for name in self._launches], np.int64)
        self._words = np.zeros(OPERANDS * len(self._launches), np.int64)
        self._scratch = cupy.empty(stream.layout.region_bytes, np.uint8)
        self._graphs: Graphs | None = None
        if captured:
            self._pointers = Pointers(device.stream, len(self._words))
            # The kernels are loaded first: a capture fails at a kernel that is not loaded.
            self.load()
            self._graphs = Graphs(device.stream, 1, self.counters)
            self._graphs.make("step", "step", self._launch_indirect)

    def _plan(self, name: str) -> list[int]:
        """Return the row of the plans table of a launch."""
        kernels, defines = self._device.kernels, {"INDIRECT": int(self._captured), "PDL": int(self._early)}
        if name in FUSED:
            fused = self._fused.of(name, self._places)
            file = kernel = fused.kernel
            launch, defines = fused.launch, {**defines, **fused.defines}
        elif name in GEMMS:
            file = kernel = "expert_gemm"
            launch = self._gemm(name).launch()
        else:
            shape = self._stream.layout.singles[name]
            made = geometry(shape, 1, three(self._device.row_elements(shape)), (0, 0, 0))
            file, kernel, launch = "ops", made.function_name, to_launch(made)
        return kernels.row(kernels.function(file, kernel, "", **defines), launch, self._early)

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
        self._pointers.upload(len(words))
        graph = None if self._graphs is None else self._graphs.get("step")
        if graph is None:
            self._launch_indirect()
        else:
            assert self._graphs is not None
            self._graphs.replay(graph)

    def _launch_indirect(self) -> None:
        """Launch all kernels, each with the address of its addresses in the table."""
        words = np.zeros(len(self._words), np.int64)
        words[::OPERANDS] = self._pointers.device + WORD_BYTES * OPERANDS * np.arange(len(self._launches))
        self._device.check(launch_all(self._context, self._plans, words))

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a step. The batch may have only its first commands, as in a warm-up run."""
        count = len(batch)
        start_ns = self._device.enter(SEVERAL, count)
        self._operands.fill(self._words, int(as_records(batch.words[:1])["slot_c"][0]))
        self._launch(self._words)
        what = (Strategy.graph, UPLOAD_CALLS, WORD_BYTES * len(self._words))
        if not self._captured:
            what = (Strategy.kernel, len(self._launches) - 1, 0)
        strategy, more_calls, uploaded = what
        self._device.leave(batch, slice(0, count), strategy, flush_ns, start_ns, more_calls, uploaded)
        if self._captured:
            self.counters.replayed()

    def close(self) -> None:
        """Destroy the graph."""
        if self._graphs is not None:
            self._graphs.close()
