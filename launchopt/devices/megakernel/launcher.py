"""Whole steps in one launch of kernels/megakernel.cu, which executes a list of instructions.

The list of a `StepBatch` depends on its requests and on its replica of the weights. `Megakernel` compiles a list once
and keeps it on the GPU. It compiles likely lists, and those of a warm-up run, before the clock starts. It compiles any
other list when the list is needed for the second time. Steps without a list are launched as in mode=coalesced. So are
steps with several columns per request, and steps whose operands are not evenly spaced in memory.

The launch of a step also feeds its last outputs back, if the device supports that (`launch_feedback`). After each
launch `Megakernel` makes the launch that is likely to come next (`launch_ahead`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import cupy
import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt.kernel_plans import KernelLaunch, clusters_at_once
from launchopt.devices.cuda.op_kernels import VECTOR_BYTES, SeqAddresses
from launchopt.devices.feedback.in_launch import LaunchFeedback
from launchopt.devices.instructions.compiler import StepCompiler, columns_of
from launchopt.devices.instructions.words import Instructions
from launchopt.devices.megakernel.launch_ahead import Gated, LaunchAhead
from launchopt.devices.megakernel.memory import LEAST_SLOTS, SLOT_BYTES, STATIC_ATTENTION_BYTES, fixed_bytes, slots_of
from launchopt.devices.megakernel.program import NO_FEEDBACK, MegakernelProgram
from launchopt.devices.steps.coalesced import CoalescedSteps
from launchopt.devices.steps.likely import most_kept
from launchopt.errors import ConfigError
from launchopt.kernels.shared import FEEDBACK, GROUP_WARPS, MOST_COLUMNS, QUERIES
from launchopt.kernels.shared_megakernel import GATE, PROGRAM, SCRATCH_BYTES
from launchopt.recording.launch_rows import Strategy

WARP = 32  # threads of a warp
# Threads of a block; additional threads for lists of short GEMMs; blocks per multiprocessor, which must be resident.
THREADS, STORERS, BLOCKS_A_MULTIPROCESSOR = (GROUP_WARPS + 1) * WARP, WARP, 1
LEAST_CAPABILITY = 90  # lowest compute capability that has bulk copies, times 10
MOST_SEEN = 4096  # most keys of steps that came once and have no list
NO_MACROS: Mapping[str, int] = MappingProxyType({})
FOR_RACECHECK: Mapping[str, int] = MappingProxyType({"EACH_LANE": 1})


class Megakernel:
    """Launches the steps of a device's workload stream.

    bound: most lists that are kept; at least one per replica of the weights is kept. ahead: launches may be made before
    their commands are there. racecheck: the kernels synchronize in the way that NVIDIA's racecheck understands.
    """

    def __init__(
        self,
        device: GpuDevice,
        limits: Mapping[ShapeKey, int],
        bound: int,
        ahead: bool = True,
        racecheck: bool = False,
    ) -> None:
        self._device = device
        self._macros = FOR_RACECHECK if racecheck else NO_MACROS
        self._launched = CoalescedSteps(device, limits)
        self._steps = self._launched.steps
        self._bound = most_kept(self._steps.stream, bound)
        self._feedback: LaunchFeedback | None = device.launch_feedback
        self.ahead: LaunchAhead | None = None
        if ahead and self._feedback:  # the word of a gate is the address of the rows that the launch feeds back
            stream = self._steps.stream
            longest = int(np.diff(stream.kind_stops, prepend=0).max())
            self.ahead = LaunchAhead(self._feedback.stages, longest + 2 * stream.requests)
        state = device.state_of_sequences
        addresses = (
            SeqAddresses()
            if state is None
            else SeqAddresses(int(state.positions.data.ptr), int(state.table.data.ptr), state.requests)
        )
        self._compiler = StepCompiler(self._steps, addresses, fuse=True)
        self._programs: OrderedDict[bytes, MegakernelProgram] = OrderedDict()
        self._seen: set[bytes] = set()
        self._compiles_at_once = False
        gpu = cupy.cuda.Device()
        attributes, capability = gpu.attributes, int(gpu.compute_capability)
        self._blocks = BLOCKS_A_MULTIPROCESSOR * int(attributes["MultiProcessorCount"])
        self._most_bytes = int(attributes["MaxSharedMemoryPerBlockOptin"])
        assert self._ops_bytes() <= SCRATCH_BYTES, "ops must not overwrite weights in the ring"
        most_fixed_bytes = fixed_bytes(MOST_COLUMNS, device.work.dtype.itemsize)
        needed_bytes = STATIC_ATTENTION_BYTES + most_fixed_bytes + LEAST_SLOTS * SLOT_BYTES
        if self._most_bytes < needed_bytes or capability < LEAST_CAPABILITY:
            raise ConfigError(
                "mode",
                "megakernel",
                f"needs a GPU of compute capability {LEAST_CAPABILITY / 10} or more, "
                f"with {needed_bytes:,} bytes of shared memory a block",
            )
        self._kernels: dict[tuple[tuple[str, int], ...], KernelLaunch] = {}
        self._has_pairs = self._blocks % 2 == 0 and self._pairs_fit()

    def _kernel(self, defines: Mapping[str, int], macros: Mapping[str, int] = NO_MACROS) -> KernelLaunch:
        """Return the kernel compiled with the macros of a list and with `macros`."""
        macros = {**self._macros, **macros}
        key = tuple({**defines, **macros}.items())
        if key not in self._kernels:
            itemsize = self._device.work.dtype.itemsize
            slots = slots_of(defines["COLUMNS"], itemsize, defines["OPS"], self._most_bytes)
            shared_bytes = fixed_bytes(defines["COLUMNS"], itemsize) + slots * SLOT_BYTES
            head = "" if self._feedback is None else self._feedback.head
            function = self._device.kernels.function("megakernel", "megakernel", head, SLOTS=slots, **defines, **macros)
            function.max_dynamic_shared_size_bytes = shared_bytes
            program, feedback, gate = (np.zeros(1, struct).view(np.int64) for struct in (PROGRAM, FEEDBACK, GATE))
            parameters = program, feedback, np.uint32(0), gate
            threads = THREADS + STORERS * defines["SHORT"]
            self._kernels[key] = KernelLaunch(function, threads, parameters, self._device.stream, shared_bytes)
        return self._kernels[key]

    def _pairs_fit(self) -> bool:
        """Return whether all blocks of the grid are resident at once in clusters of two."""
        nothing = self._device.kernels.function("null", "null_kernel")
        return 2 * clusters_at_once(nothing, 2, THREADS, self._most_bytes) >= self._blocks

    def _ops_bytes(self) -> int:
        """Return the bytes of dynamic shared memory that ROPE or QK needs, the larger of the two; 0: no attention."""
        attention = self._steps.stream.attention
        if attention is None:
            return 0
        width: int = VECTOR_BYTES // self._device.work.dtype.itemsize
        head_dim: int = attention.head_dim
        return max(4 * head_dim, QUERIES * -(-head_dim // width) * VECTOR_BYTES)

    def start(self, compiles_at_once: bool) -> None:
        """Begin a run. compiles_at_once: compile a list when it is needed for the first time, not the second."""
        self._compiles_at_once = compiles_at_once

    def compile_likely(self) -> None:
        """Compile the likely lists, up to the number that is kept."""
        for batch in self._steps.likely(self._bound):
            if self._compiler.compilable(batch):
                self._compile(batch)

    def _compile(self, batch: StepBatch) -> MegakernelProgram:
        if self.ahead:
            self.ahead.forget()
        if len(self._programs) >= self._bound:
            self._device.synchronize()  # a launch may still read the dropped list, whose memory the new list may get
            self._programs.popitem(last=False)
        made = self.variant(self.instructions_of(batch))
        made.known = self._steps.keys.known(batch)
        self._programs[made.known.made] = made
        return made

    def instructions_of(self, batch: StepBatch) -> Instructions:
        """Return the list of a batch."""
        return self._compiler.compile(batch)

    def variant(
        self, instructions: Instructions, macros: Mapping[str, int] = NO_MACROS, stamped: bool = False
    ) -> MegakernelProgram:
        """Return a program of a list. Its kernel is compiled with the macros of the list and with `macros`."""
        kernel = partial(self._kernel, macros=macros)
        words = NO_FEEDBACK if self._feedback is None else self._feedback.words
        itemsize = self._device.work.dtype.itemsize
        return MegakernelProgram(instructions, self._blocks, itemsize, kernel, words, stamped, self._has_pairs)

    def _program(self, batch: StepBatch) -> MegakernelProgram | None:
        """Return the program of a batch; None: launch the batch as mode=coalesced does."""
        key = self._steps.key_of(batch)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key]
        if columns_of(batch) > 1 or not self._compiler.compilable(batch):
            return None
        if key not in self._seen and not self._compiles_at_once:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return None
        return self._compile(batch)

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch a batch by one launch, or by the launches of mode=coalesced. flush_ns: time of the batch's flush."""
        ahead = self.ahead
        admitted = ahead.admitted() if ahead else None
        if admitted is not None:
            self._programs.move_to_end(admitted.known.made)
            self._device.enter(-1, batch.size)
            self._went(admitted, True, batch, flush_ns, flush_ns)
            return
        program = self._program(batch)
        if program is None:
            if ahead:
                ahead.call_off()
            self._launched.submit(batch, flush_ns)
            return
        arguments = self._device.stage_feedback(batch)
        start_ns = self._device.enter(-1, batch.size)
        if not (ahead and ahead.admit(program, arguments)):
            program.launch(arguments, batch.size if arguments else 0)
        self._went(program, arguments != 0, batch, flush_ns, start_ns)

    def _went(self, program: Gated, feeds_back: bool, batch: StepBatch, flush_ns: int, start_ns: int) -> None:
        """Record a launch of `program`, and make the launch that is likely to follow."""
        if self.ahead:
            self.ahead.follow(program, feeds_back and self._device.unmarked_launches > 1)
        self._device.leave(batch, slice(0, len(batch.words)), Strategy.megakernel, flush_ns, start_ns)

    def close(self) -> None:
        """Call off a launch that waits, and drop all lists."""
        if self.ahead:
            self.ahead.forget()
        self._programs.clear()
