"""Steps of a layer with experts by our own kernels: eight launches or fewer, or one replay of a CUDA graph of these.

No launch depends on the routing: the GEMMs read the columns of each expert from the map of the step, on the GPU. The
kernels of a graph read their operands' addresses from a table, which is filled and uploaded before each replay. If all
of them are fused, they find the operands of the next step by themselves, and only a jump to another step is uploaded.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.command import INDEX_BYTES, as_records
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cuda.expert_gemm import ExpertGemm
from launchopt.devices.cuda.graph_cache import Graphs
from launchopt.devices.cuda.op_kernels import geometry
from launchopt.devices.cuda.op_plans import three, to_launch
from launchopt.devices.prepared import Counters
from launchopt.devices.steps.expert_fusions import FUSED, FusedLaunches, Memory, fusions_for, launches_of
from launchopt.devices.steps.expert_operands import GEMMS, OPERANDS, StepOperands, launch_all
from launchopt.errors import RunError
from launchopt.kernels.shared_experts import STEPPED_WORDS
from launchopt.recording.launch_rows import Strategy
from launchopt.stack import Stack
from launchopt.streams.experts.layout import ROUTER
from launchopt.streams.experts.stream import ExpertStream
from launchopt.types import Table

UPLOAD_CALLS = 1  # calls besides a replay
WORD_BYTES = 8


class ExpertSteps:
    """Launches steps.

    stack: its fusions, and whether launches are programmatic (PDL). captured: as replays of a graph. left_out: fusions
    that are not made because the steps have too many tokens.
    """

    def __init__(self, device: GpuDevice, stack: Stack, captured: bool) -> None:
        stream = device.work
        if not isinstance(stream, ExpertStream):
            raise RunError("these kernels need a stream of a layer with experts")
        gpu = cupy.cuda.Device()
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
        self._words = np.zeros(OPERANDS * len(self._launches), np.int64)
        self._stepped = captured and set(self._launches) <= set(FUSED)
        self._next: int | None = None  # the step of the next replay if nothing is uploaded; None: not known
        if captured:
            self._pointers = Pointers(device.stream, STEPPED_WORDS if self._stepped else len(self._words))
        self._context: Table = device.base.contexts[0]
        self._plans = np.array([self._plan(name) for name in self._launches], np.int64)
        self._scratch = cupy.empty(stream.layout.region_bytes, np.uint8)
        self._graphs: Graphs | None = None
        if captured:
            # The kernels are loaded first: a capture fails at a kernel that is not loaded.
            self.load()
            self._graphs = Graphs(device.stream, 1, self.counters)
            self._graphs.make("step", "step", self._launch_captured)

    def _plan(self, name: str) -> list[int]:
        """Return the row of the plans table of a launch."""
        kernels, defines = self._device.kernels, {"INDIRECT": int(self._captured), "PDL": int(self._early)}
        if name in FUSED:
            state = self._pointers.device if self._stepped else 0
            stepped = (self._operands.stepped(self._launches.index(name), state),) if self._stepped else ()
            fused = self._fused.of(name, self._places, *stepped)
            file = kernel = fused.kernel
            launch, defines = fused.launch, {**defines, **fused.defines}
            defines["INDIRECT"] = int(self._captured and not self._stepped)
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
        self._find(0, self._operands.apart(int(self._scratch.data.ptr)))
        self._launch()
        self._device.synchronize()

    def _find(self, slot: int, apart: int = 0) -> int:
        """Give the next launches the operands of the step whose logits are in `slot`; return the bytes of the upload.

        apart: bytes from the step's outputs to those of the launches.
        """
        if self._stepped:
            step = slot // self._stream.layout.region.units
            if step == self._next:
                self._next += 1
                return 0
            self._next = None if apart else step + 1
            self._pointers.stage()[:] = (step, step, apart)
            return self._uploaded(STEPPED_WORDS)
        self._operands.fill(self._words, slot, apart)
        if not self._captured:
            return 0
        self._pointers.stage()[:] = self._words
        return self._uploaded(len(self._words))

    def _uploaded(self, words: int) -> int:
        self._pointers.upload(words)
        return WORD_BYTES * words

    def _launch(self) -> None:
        """Launch all kernels, or replay their graph."""
        graph = None if self._graphs is None else self._graphs.get("step")
        if not self._captured:
            self._device.check(launch_all(self._context, self._plans, self._words))
        elif graph is None:
            self._launch_captured()
        else:
            assert self._graphs is not None
            self._graphs.replay(graph)

    def _launch_captured(self) -> None:
        """Launch all kernels, each with the address of its addresses in the table."""
        words = np.zeros(len(self._words), np.int64)
        if not self._stepped:
            words[::OPERANDS] = self._pointers.device + WORD_BYTES * OPERANDS * np.arange(len(self._launches))
        self._device.check(launch_all(self._context, self._plans, words))

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a step. The batch may have only its first commands, as in a warm-up run."""
        count = len(batch)
        start_ns = self._device.enter(SEVERAL, count)
        uploaded = self._find(int(as_records(batch.words[:1])["slot_c"][0]))
        self._launch()
        strategy, more_calls = Strategy.kernel, len(self._launches) - 1
        if self._captured:
            strategy, more_calls = Strategy.graph, UPLOAD_CALLS * (uploaded > 0)
        self._device.leave(batch, slice(0, count), strategy, flush_ns, start_ns, more_calls, uploaded)
        if self._captured:
            self.counters.replayed()

    def close(self) -> None:
        """Destroy the graph."""
        if self._graphs is not None:
            self._graphs.close()
