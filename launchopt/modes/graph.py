"""graph: one CUDA graph replay per batch, or per step of all its requests.

Independent commands: a graph holds one pointer-array GEMM of a fixed number of commands (a power of two, or the limit).
The pointers are uploaded before each replay. If a batch is smaller than its graph, the graph also computes padding,
which is counted in padded_commands.

Steps: a graph holds every launch of a step. Commands that share a weight are one wider GEMM. A graph is captured for a
set of requests and a copy of the weights. At most mode.cached=64 graphs are kept, or one per copy of the weights if
there are more copies (small models have many). After that a kept graph is updated to the new addresses. If the operands
of a step's requests are not evenly spaced in memory, the step is launched as in mode=coalesced. This is so for first
tokens, whose inputs are scattered over the embedding table.

Lists with groups: a graph holds a whole pass through the list, and the groups keep their order. It has a pointer-array
GEMM for each shape of a group. Passes of over MOST_PASS commands are launched in batches of a group.

A layer with experts: a graph holds a whole step, of our own kernels (mode=expert_kernel). They read on the GPU how many
tokens each expert has, so one graph serves every routing. A GEMM of the library has a fixed number of columns. With
mode.pdl=true a kernel begins while the one before ends. mode.fuse=[route,activate,combine] makes three launches of the
eight, each of which can be left out.

On the CPU device a graph is a recorded list of calls. At most mode.cached lists are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch
from launchopt.command import COMMAND_DTYPE, Dtype, Op, Records, RecordWord, ShapeKey
from launchopt.devices.base import Device, GpuDevice, HostDevice, gpu_of, is_host
from launchopt.devices.prepared import Counters
from launchopt.modes.base import HOPPER, Mode, Prepared, Takes, too_old
from launchopt.modes.options import KeepsGraphs
from launchopt.modes.stack import preset_stack
from launchopt.modes.stacked import Stacked
from launchopt.recording.launch_rows import Strategy
from launchopt.stack import EXPERT_FUSIONS, Fusion, Kernels, Stack
from launchopt.streams.chains.chain import Stream
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.list_stream import ListStream
from launchopt.types import Array

if TYPE_CHECKING:
    from launchopt.devices.steps.expert_steps import ExpertSteps
    from launchopt.devices.steps.graphs import BatchGraphs
    from launchopt.devices.steps.pass_graph import PassGraph
    from launchopt.streams.chains.groups import LeftOut

NO_FP32 = "multiplies the rows of experts by a kernel of our own, which takes fp16 and bf16: use workload.dtype=bf16"
MOST_PASS = 1 << 14  # most commands of a pass that is one launch
# Words of a record by which a list is found again. Plain integers, since NumPy takes longer to index with members.
KEY_WORDS = [int(word) for word in (RecordWord.MN, RecordWord.SLOTS_AB, RecordWord.SLOT_C_REQUEST)]
_Call = tuple[int, Array, Array, Array]  # shape index, and views of A, B and C


def quantised_experts(stream: Stream, capability: int) -> str | None:
    """Return why our GEMM of experts cannot read quantised weights on a GPU of this compute capability, or None."""
    if capability >= HOPPER or not (stream.packing and isinstance(stream, ExpertStream)):
        return None
    instead = "mode=baseline, or workload.weights=none"
    return too_old(f"our GEMM of experts with {stream.packing.format} weights", capability, instead)


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=graph."""


class Graph(Stacked):
    """One replay of a CUDA graph per batch, or per step."""

    name = "graph"
    takes = Takes.batches
    prefers_steps = True
    own_strategy = "graph"
    options: Options = Options()
    ops = frozenset(Op)

    @classmethod
    def stack_on(cls, stream: Stream) -> Stack:
        """Return the choices that hold for `stream`: our own kernels launch a layer with experts, in its own order."""
        is_of_experts = isinstance(stream, ExpertStream)
        return replace(cls.stack, coalesce=False, kernels=Kernels.own) if is_of_experts else cls.stack

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None."""
        if isinstance(stream, ExpertStream) and kind == "cuda" and stream.dtype is Dtype.fp32:
            return NO_FP32
        if isinstance(stream, ExpertStream) and kind == "cpu" and (fuse := cls.stack.fuse & set(EXPERT_FUSIONS)):
            return (
                f"mode.fuse=[{','.join(each for each in Fusion if each in fuse)}] needs a GPU, for kernels of our own"
            )
        return super().refusal(kind, stream)

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot compute with quantised weights. Our own kernels multiply those of experts."""
        return None if isinstance(stream, ExpertStream) else super().quantised_refusal(kind, stream)

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, cannot multiply quantised weights; or None."""
        return quantised_experts(stream, capability) or super().capability_refusal(stream, capability)

    @classmethod
    def can_change(cls, stream: Stream) -> bool:
        """Return whether the changes to the preset have a meaning for a stream without steps of requests.

        Of a layer with experts, PDL and the fusions of our own kernels have.
        """
        rest = replace(cls.stack, pdl=False, fuse=cls.stack.fuse - frozenset(EXPERT_FUSIONS))
        return isinstance(stream, ExpertStream) and rest == preset_stack(cls.name)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Capture the graphs that are likely to be needed."""
        if device.work.has_steps:
            return super().prepare(device, limits)
        if is_host(device):
            return _Recorded(self, device, list(limits), self.options.cached)
        gpu = gpu_of(device)
        if isinstance(device.work, ExpertStream):
            from launchopt.devices.steps.expert_steps import ExpertSteps

            steps = ExpertSteps(gpu, self.stack, captured=True)
            return _Batches(self, gpu, steps, steps.left_out)
        if commands := self.whole_pass(device.work):
            from launchopt.devices.steps.pass_graph import PassGraph

            return _Batches(self, gpu, PassGraph(gpu, limits, commands))
        from launchopt.devices.steps.graphs import BatchGraphs

        return _Batches(self, gpu, BatchGraphs(gpu, limits))

    @classmethod
    def whole_pass(cls, stream: Stream) -> int:
        """Return the commands of a pass through a list with groups, or of the longest step of a layer with experts.

        0: there are no groups, or too many commands.
        """
        if isinstance(stream, ExpertStream):
            return stream.pass_commands
        commands = stream.pass_commands if isinstance(stream, ListStream) and stream.has_groups else 0
        return commands if commands <= MOST_PASS else 0

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes of the outputs of a launch that only loads the kernels, for a layer with experts."""
        if isinstance(stream, ExpertStream):
            return stream.layout.region_bytes
        return super().scratch_bytes(stream, limits, pack_bytes_per_launch)


class _Batches(Prepared):
    """Replays graphs of batches, of a pass through a list, or of a step of a layer with experts, on a GPU."""

    def __init__(
        self,
        mode: Mode,
        gpu: GpuDevice,
        graphs: BatchGraphs | PassGraph | ExpertSteps,
        left_out: Sequence[LeftOut] = (),
    ) -> None:
        super().__init__(mode, gpu)
        self._graphs, self.left_out = graphs, left_out

    def start(self, warm_up: bool = False) -> None:
        """Begin a run; replay each graph once, because another mode's run may have evicted it from the GPU."""
        self._graphs.counters.start()
        self._graphs.load()

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay the graph of the batch's size."""
        self._graphs.submit(batch, flush_ns)

    def counters(self) -> Counters:
        """Return the times and counts of the graphs."""
        return self._graphs.counters

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()


class _Recorded(Prepared):
    """Replays lists of calls on the CPU. It keeps at most `bound` lists, by the shapes and slots of their commands."""

    def __init__(self, mode: Mode, host: HostDevice, shapes: list[ShapeKey], bound: int) -> None:
        super().__init__(mode, host)
        self._host, self._bound, self._counters = host, bound, Counters(graph_replays=0)
        from launchopt.batching.batcher import shape_finder  # late: the process that plans a run must not load Numba

        self._batcher = shape_finder(shapes)
        self._kept: OrderedDict[tuple[int, bytes], list[_Call]] = OrderedDict()

    def start(self, warm_up: bool = False) -> None:
        """Begin a run."""
        self._counters.start()

    def counters(self) -> Counters:
        """Return the number of replays."""
        return self._counters

    def _record(self, words: NDArray[np.uint64]) -> list[_Call]:
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        shape_of = self._batcher.classify(records, np.zeros(len(records), np.int32)).tolist()
        calls = []
        for i, index in enumerate(shape_of):
            views = zip(self._host.compute.views[index], "abc", strict=True)
            slots = ((view, int(records[f"slot_{role}"][i])) for view, role in views)
            calls.append((index, *(view[slot : slot + 1] for view, slot in slots)))
        return calls

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay the list of the batch's commands as one launch; record the list first if it is not kept."""
        key = batch.shape_index, batch.words[:, KEY_WORDS].tobytes()
        calls = self._kept.pop(key, None) or self._record(batch.words)
        self._kept[key] = calls
        if len(self._kept) > self._bound:
            self._kept.popitem(last=False)
        start_ns = self._host.enter(batch.shape_index, len(batch.words))
        for i, (index, a, b, c) in enumerate(calls):
            self._host.compute.run(index, a, b, c, batch.words[i : i + 1])
        self._host.leave(batch, slice(0, len(batch.words)), Strategy.graph, flush_ns, start_ns)
        self._counters.replayed()

    def close(self) -> None:
        """Drop the lists."""
        self._kept.clear()
