"""Whole steps by one launch of an interpreter (kernels/megakernel.cu), which is given a list of instructions.

In: a `StepBatch`. Its list (`instructions`) follows from its requests and its copy of the weights, is put on the GPU
once and kept. Likely ones are compiled before the clock, others when they come for the second time; until then, and for
steps of several columns or requests that do not lie evenly spaced, launches are those of mode=coalesced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np

from launchopt.command import W_MN, ShapeKey
from launchopt.devices.instructions import StepCompiler
from launchopt.devices.kernel_plans import KernelLaunch
from launchopt.devices.lt_coalesced import CoalescedSteps
from launchopt.devices.lt_steps import step_of
from launchopt.devices.op_kernels import QUERIES, VECTOR_BYTES, SeqAddresses
from launchopt.devices.runs import HIGH
from launchopt.recorder import Strategy
from launchopt.step_batcher import StepBatch

THREADS, BLOCKS_A_MULTIPROCESSOR = 256, 2  # of kernels/megakernel.cu: all blocks must be resident
MOST_SEEN = 4096


class Megakernel:
    """Steps of a device's stream, the lists of at most `bound` kinds at a time. `device`: a CudaDevice."""

    def __init__(self, device: Any, limits: Mapping[ShapeKey, int], bound: int) -> None:
        self._device, self._bound = device, bound
        self._launched = CoalescedSteps(device, limits)
        self._steps = self._launched.steps
        state = device.state_of_sequences
        addresses = (
            SeqAddresses()
            if state is None
            else SeqAddresses(int(state.positions.data.ptr), int(state.table.data.ptr), state.requests)
        )
        self._compiler = StepCompiler(self._steps, addresses)
        self._programs: OrderedDict[bytes, tuple[Any, Any]] = OrderedDict()
        self._seen: set[bytes] = set()
        self._counters = cupy.zeros(1, np.uint32)
        function = device.kernels.function("megakernel", "megakernel")
        self._blocks = BLOCKS_A_MULTIPROCESSOR * int(cupy.cuda.Device().attributes["MultiProcessorCount"])
        shared_bytes = self._shared_bytes()
        self._launch = KernelLaunch(function, THREADS, [np.uint64(0)], device.stream, shared_bytes)

    def _shared_bytes(self) -> int:
        """What ROPE and QK want, at the most."""
        attention = self._device.work.attention
        if attention is None:
            return 0
        width: int = VECTOR_BYTES // self._device.work.dtype.itemsize
        head_dim: int = attention.head_dim
        return max(4 * head_dim, QUERIES * -(-head_dim // width) * VECTOR_BYTES)

    def compile_likely(self) -> None:
        """Ahead of time: a step of all requests, and of the first alone, with each copy of the weights."""
        stream = self._steps.stream
        if stream.decode_kind < 0:
            return
        for requests in {self._steps.most_of(stream.decode_kind), 1}:
            for replica in range(stream.replicas):
                batch = step_of(stream, requests, replica)
                if self._compiler.compilable(batch):
                    self._compile(self._steps.key_of(batch), batch)

    def _compile(self, key: bytes, batch: StepBatch) -> Any:
        """The address of a program on the GPU, which it makes."""
        instructions = self._compiler.compile(batch)
        count = len(instructions)
        if len(self._programs) >= self._bound:
            self._device.synchronize()  # a launch may still read the list whose memory the next one would be given
            self._programs.popitem(last=False)
        if count >= len(self._counters):
            self._device.synchronize()
            self._counters = cupy.zeros(2 * count + 1, np.uint32)
            for _, program in self._programs.values():
                program[1] = self._counters.data.ptr
        table = cupy.asarray(instructions)
        program = cupy.asarray(np.array([table.data.ptr, self._counters.data.ptr, count], np.int64))
        cupy.cuda.get_current_stream().synchronize()
        self._programs[key] = table, program
        return program

    def _program(self, batch: StepBatch) -> Any:
        """None where the batch is to be launched otherwise."""
        key = self._steps.key_of(batch)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key][1]
        columns = int(batch.words[0, W_MN] >> HIGH)
        if columns > 1 or not self._compiler.compilable(batch):
            return None
        if key not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return None
        return self._compile(key, batch)

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """One launch for all requests, or those of mode=coalesced."""
        program = self._program(batch)
        if program is None:
            self._launched.submit(batch, flush_ns)
            return
        start_ns = self._device.enter(-1, batch.size)
        self._launch(self._blocks, int(program.data.ptr))
        self._device.leave(batch, slice(0, len(batch.words)), Strategy.megakernel, flush_ns, start_ns)

    def close(self) -> None:
        """Drop the lists."""
        self._programs.clear()
