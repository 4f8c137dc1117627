"""The persistent kernel on the GPU: its ring and tables, its start and end, and waits of CUDA streams for commands.

Compiled code posts commands (`ring.post`, which `cublaslt.launch` calls for plans of kind RESIDENT). The kernel writes
C into the operands' arenas, and reports each completion in the GPU's memory and in pinned memory. It also sends the
outputs of a small command that comes alone to the host. While the kernel runs, it occupies all multiprocessors but
`spare`. Other launches run on the spare ones. A call that waits for the whole device would not return.
"""

from __future__ import annotations

import ctypes

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.feedback.cuda import pinned
from launchopt.devices.resident import ring as rl
from launchopt.errors import RunError
from launchopt.kernels.shared import (
    COMMAND_WORDS,
    ENTRY_WORDS,
    GROUP_WARPS,
    GROUPS,
    MOST_CAPACITY,
    OUTPUT_WORDS,
    QUEUE,
    ControlWord,
    KernelState,
)
from launchopt.types import Table

CAPACITY_BITS, ENTRY_BITS = MOST_CAPACITY.bit_length() - 1, 15  # log2 of the commands in the ring; of the entries
THREADS = 32 * GROUP_WARPS * GROUPS  # threads of a block
CONTROL_WORDS = 16  # words of `control`: it gets a cache line of its own
DIRECT_BYTES = 64 << 10  # bytes of weights up to which the dispatcher's group multiplies a command that comes alone
GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ
NEVER_REACHED = 1 << 62  # number of commands that no run reaches


class Resident:
    """The persistent kernel of one mode on `device`.

    requests: number of requests whose commands are kept in order; 0: no order is kept. spare: number of multiprocessors
    that the kernel leaves free. patience_s: seconds without a command after which the kernel gives up.
    """

    def __init__(self, device: GpuDevice, requests: int, spare: int, patience_s: float) -> None:
        self._device, self._patience_ns = device, int(patience_s * 1e9)
        attributes = cupy.cuda.Device().attributes
        self._blocks = int(attributes["MultiProcessorCount"]) - spare
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._event = cupy.cuda.Event(disable_timing=True)
        capacity, entries = 1 << CAPACITY_BITS, 1 << ENTRY_BITS
        self.use()
        self._ring: Table = pinned(COMMAND_WORDS * capacity, np.int64)
        self._host_done: Table = pinned(capacity, np.int64)
        self._host_outputs: Table = pinned(OUTPUT_WORDS * capacity, np.int64)
        self._control: Table = pinned(CONTROL_WORDS, np.int64)
        # `entries`, `done`, `ticket`, `gone` and `progress` of QUEUE, one after another.
        self._words = cupy.zeros(ENTRY_WORDS * entries + capacity + 4, np.uint64)
        self._arrived = cupy.zeros(capacity, np.uint32)  # number of complete tiles of the command in each slot
        self._shapes: list[list[int]] = []
        self._last: Table = np.zeros(1 << max(0, requests - 1).bit_length(), np.int64)
        self._queue: Table = np.zeros(rl.QUEUE_WORDS, np.int64)
        self._queue[rl.QueueWord.RING] = self._ring.ctypes.data
        self._queue[rl.QueueWord.DONE] = self._host_done.ctypes.data
        self._queue[rl.QueueWord.OUTPUTS] = self._host_outputs.ctypes.data
        self._queue[rl.QueueWord.STATE] = self._control[ControlWord.STATE :].ctypes.data
        self._queue[rl.QueueWord.LAST] = self._last.ctypes.data if requests else 0
        self._queue[rl.QueueWord.BITS] = CAPACITY_BITS
        self._queue[rl.QueueWord.MASK] = len(self._last) - 1
        self._done = self._words.data.ptr + 8 * ENTRY_WORDS * entries
        self._wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue64_v2
        self._wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
        self.running, self.starts = False, 0

    def add_shape(self, shape: ShapeKey, row_elements: tuple[int, int, int]) -> rl.PostedShape:
        """Add a shape to the kernel's table; return the arguments that posting its commands needs."""
        words, swapped = rl.shape_words(shape, row_elements)
        self._shapes.append(words)
        return rl.PostedShape(self._queue.ctypes.data, len(self._shapes) - 1, swapped)

    def seal(self) -> None:
        """Copy the table of shapes and the kernel's parameters to the GPU. Call this once, after all `add_shape`."""
        self._table = cupy.asarray(np.array(self._shapes, np.int64))
        ticket = self._done + (8 << CAPACITY_BITS)
        fields = {
            "ring": self._ring.ctypes.data,
            "host_done": self._host_done.ctypes.data,
            "host_outputs": self._host_outputs.ctypes.data,
            "control": self._control.ctypes.data,
            "entries": self._words.data.ptr,
            "done": self._done,
            "ticket": ticket,
            "gone": ticket + 8,
            "progress": ticket + 16,
            "arrived": self._arrived.data.ptr,
            "shapes": self._table.data.ptr,
            "shape_count": len(self._shapes),
            "capacity_bits": CAPACITY_BITS,
            "entry_bits": ENTRY_BITS,
            "workers": GROUPS * self._blocks - 1,
            "patience_ns": self._patience_ns,
            "direct_bytes": DIRECT_BYTES,
        }
        self._parameters = cupy.asarray(np.array([fields[name] for name in QUEUE.names or ()], np.int64))

    def use(self, name: str = "persistent", **macros: int) -> None:
        """Use the kernel `name`, of the file of that name, from the next start on. macros: its macros."""
        self._function = self._device.kernels.function(name, name, "", **macros)

    def start(self) -> None:
        """Empty the ring and start the kernel. The device must be idle."""
        self.reset()
        self.resume()

    def reset(self) -> None:
        """Empty the ring without starting the kernel. The device must be idle."""
        for array in (self._words, self._arrived):
            array.fill(0)
        for words in (self._ring, self._host_done, self._host_outputs, self._last, self._control):
            words.fill(0)
        self._queue[rl.QueueWord.NEXT] = 0
        cupy.cuda.get_current_stream().synchronize()
        self.starts = 0

    def resume(self) -> None:
        """Start the kernel behind the work on the device's CUDA stream. If the kernel runs, do nothing."""
        if self.running:
            return
        self._event.record(self._device.stream)
        self._stream.wait_event(self._event)
        with self._stream:
            self._function((self._blocks,), (THREADS,), (self._parameters,))
        self.running = True
        self.starts += 1

    def pause(self) -> None:
        """Let the kernel end after the posted commands. Later work on the device's CUDA stream waits for its end."""
        if not self.running:
            return
        rl.post_end(self.queue)
        self._event.record(self._stream)
        self._device.stream.wait_event(self._event)
        self.running = False

    def run_posted(self) -> float:
        """Run the kernel for the commands posted since `reset`. Return its milliseconds between CUDA events.

        There must be fewer commands than the ring holds. The kernel never waits for the host, and does the same in each
        run. A profiler that replays kernels needs that.
        """
        rl.post_end(self.queue)
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(self._stream)
        self.resume()
        end.record(self._stream)
        self.running = False
        end.synchronize()
        self.check()
        elapsed_ms: float = cupy.cuda.get_elapsed_time(begin, end)
        return elapsed_ms

    def settle(self) -> None:
        """Let later work on the device's CUDA stream wait for the command that was posted last."""
        if self.running and self._queue[rl.QueueWord.NEXT]:
            self._wait_for(int(self._queue[rl.QueueWord.NEXT]))

    def settle_requests(self, requests: NDArray[np.uint32]) -> None:
        """Let later work on the device's CUDA stream wait for the last command of each of these requests."""
        for request in requests.tolist() if self.running else ():
            if posted := int(self._last[request & (len(self._last) - 1)]):
                self._wait_for(posted)

    def _wait_for(self, posted: int) -> None:
        """Let the device's CUDA stream wait for a command. posted: its number, counted from 1."""
        word = self._done + 8 * ((posted - 1) & ((1 << CAPACITY_BITS) - 1))
        status = self._wait(self._device.stream.ptr, word, posted, GREATER_OR_EQUAL)
        if status:
            raise RunError(f"cuStreamWaitValue64 failed with CUresult {status}")

    @property
    def queue(self) -> int:
        """Address of the host's queue, int64 [QUEUE_WORDS], by which compiled code posts commands."""
        return int(self._queue.ctypes.data)

    def outputs(self, index: int, rows: int) -> NDArray[np.float32] | None:
        """Wait for the outputs of a command, and return them, float32 [rows], as the kernel sent them to the host.

        index: number of the command, counted from 0 since `start`. The outputs may be in C only later. Return None if
        the command is complete and the kernel sent no outputs of it. RunError: the kernel gave up.
        """
        rows = min(rows, OUTPUT_WORDS)  # the kernel sends no outputs of a command with more rows
        found = rl.await_outputs(self.queue, index, rows)
        self.check_alive()
        slot = index % len(self._host_done) * OUTPUT_WORDS
        return rl.values_of(self._host_outputs[slot : slot + rows]) if found == rl.OK else None

    def check_alive(self) -> None:
        """Raise RunError if the kernel gave up: it does not execute commands that were posted afterwards."""
        if int(self._control[ControlWord.STATE]) == KernelState.GAVE_UP:
            raise RunError(rl.GAVE_UP_LINE)

    def let_go(self) -> None:
        """Wait for the end of the kernel, after `pause`.

        If the kernel gave up, release the CUDA streams that wait for commands that it has not executed.
        """
        self._stream.synchronize()
        if int(self._control[ControlWord.STATE]) != KernelState.GAVE_UP:
            return
        first = ENTRY_WORDS << ENTRY_BITS
        with self._stream:
            self._words[first : first + (1 << CAPACITY_BITS)].fill(NEVER_REACHED)
        self._stream.synchronize()

    def check(self) -> None:
        """Raise RunError, at the end of a run, if a posted command is not complete."""
        self.check_alive()
        done, posted = self._host_done, int(self._queue[rl.QueueWord.NEXT])
        recent = np.arange(max(0, posted - len(done)), posted)
        if missing := int(np.count_nonzero(done[recent % len(done)] != recent + 1)):
            raise RunError(f"the persistent kernel ended with {missing} of {posted} commands not complete")

    def close(self) -> None:
        """End the kernel, also after a run that failed."""
        self._control[ControlWord.ABORT] = 1
        self.pause()
        self.let_go()
