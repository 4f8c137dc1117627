"""A resident kernel on the GPU: its ring and tables, when it starts and ends, and what a stream waits for.

In: the shapes it is to multiply, and commands that compiled code posts (`resident_loops.post`, which `lt_launch` calls
for plans of its KIND). Out: C in the operands' arenas, and a word a command that tells of its completion, on the GPU
and in pinned memory; there, of a small command that comes alone, the outputs, too. While it runs it holds every
multiprocessor but `spare`: what else is launched runs on those, and nothing that waits for the whole device may be
called.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.feedback.cuda import pinned
from launchopt.devices.resident import ring as rl
from launchopt.devices.resident.shapes import shape_words
from launchopt.errors import RunError

CAPACITY_BITS, ENTRY_BITS = 12, 15  # commands under way; tiles
THREADS, GROUPS, ENTRY_WORDS = 1024, 4, 8  # of kernels/persistent/queue.cuh, and persistent.cu
DIRECT_BYTES = 64 << 10  # of weights: less than it is worth to hand out to other multiprocessors
GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ
NEVER_REACHED = 1 << 62  # more commands than there are
STATE, ABORT = 0, 1  # words of what the host and the kernel tell each other


class Resident:
    """`requests`: how many have an order to be kept, 0: none. `patience_s`: for a command."""

    def __init__(self, device: GpuDevice, requests: int, spare: int, patience_s: float) -> None:
        self._device, self._patience_ns = device, int(patience_s * 1e9)
        attributes = cupy.cuda.Device().attributes
        self._blocks = int(attributes["MultiProcessorCount"]) - spare
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._event = cupy.cuda.Event(disable_timing=True)
        capacity, entries = 1 << CAPACITY_BITS, 1 << ENTRY_BITS
        self._ring = pinned(rl.COMMAND_WORDS * capacity, np.int64)
        self.use()
        self._host_done, self._control = pinned(capacity, np.int64), pinned(16, np.int64)
        self._host_outputs = pinned(rl.OUTPUT_WORDS * capacity, np.int64)
        # Entries, completions, the ticket, whether it gave up, progress; arrivals of tiles.
        self._words = cupy.zeros(ENTRY_WORDS * entries + capacity + 4, np.uint64)
        self._arrived = cupy.zeros(capacity, np.uint32)
        self._shapes: list[list[int]] = []
        self._last: NDArray[np.int64] = np.zeros(1 << max(0, requests - 1).bit_length(), np.int64)
        self._queue = np.zeros(rl.QUEUE_WORDS, np.int64)
        self._queue[rl.RING], self._queue[rl.DONE] = self._ring.ctypes.data, self._host_done.ctypes.data
        self._queue[rl.OUTPUTS] = self._host_outputs.ctypes.data
        self._queue[rl.STATE] = self._control[STATE:].ctypes.data
        self._queue[rl.LAST] = self._last.ctypes.data if requests else 0
        self._queue[rl.BITS], self._queue[rl.MASK] = CAPACITY_BITS, len(self._last) - 1
        self._done = self._words.data.ptr + 8 * ENTRY_WORDS * entries
        self._wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue64_v2
        self._wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
        self.running, self.starts = False, 0

    def plan(self, shape: ShapeKey, row_elements: tuple[int, int, int]) -> tuple[list[int], bytes]:
        """A row of `lt_launch`'s plans for one command of a shape."""
        words, swapped = shape_words(shape, row_elements)
        row = [0] * lt.PLAN_COLUMNS
        row[lt.QUEUE], row[lt.NUMBER], row[lt.SWAPPED] = self._queue.ctypes.data, len(self._shapes), int(swapped)
        row[lt.KIND] = lt.RESIDENT
        self._shapes.append(words)
        return row, b"resident"

    def seal(self) -> None:
        """All shapes are planned: put the tables on the GPU."""
        self._table = cupy.asarray(np.array(self._shapes, np.int64))
        ticket = self._done + (8 << CAPACITY_BITS)
        addresses = [self._ring.ctypes.data, self._host_done.ctypes.data, self._host_outputs.ctypes.data]
        addresses += [self._control.ctypes.data, self._words.data.ptr, self._done, ticket, ticket + 8, ticket + 16]
        addresses += [self._arrived.data.ptr, self._table.data.ptr]
        workers = GROUPS * self._blocks - 1
        settings = [len(self._shapes), CAPACITY_BITS, ENTRY_BITS, workers, self._patience_ns, DIRECT_BYTES]
        self._parameters = cupy.asarray(np.array(addresses + settings, np.int64))

    def use(self, name: str = "persistent", **macros: int) -> None:
        """From the next start on, the kernel `name`, of the file of that name, compiled with `macros`."""
        self._function = self._device.kernels.function(name, name, "", **macros)

    def start(self) -> None:
        """A new run: everything from the beginning; the device is idle."""
        self.reset()
        self.resume()

    def reset(self) -> None:
        """As `start`, but the kernel does not run yet."""
        for array in (self._words, self._arrived):
            array.fill(0)
        for words in (self._ring, self._host_done, self._host_outputs, self._last, self._control):
            words.fill(0)
        self._queue[rl.NEXT] = 0
        cupy.cuda.get_current_stream().synchronize()
        self.starts = 0

    def resume(self) -> None:
        """Have the kernel run from here on, after what is on the device's stream."""
        if self.running:
            return
        self._event.record(self._device.stream)
        self._stream.wait_event(self._event)
        with self._stream:
            self._function((self._blocks,), (THREADS,), (self._parameters,))
        self.running = True
        self.starts += 1

    def pause(self) -> None:
        """Have it end when it has done what was posted; what is put on the device's stream from now on comes after."""
        if not self.running:
            return
        rl.post_end(self.queue)
        self._event.record(self._stream)
        self._device.stream.wait_event(self._event)
        self.running = False

    def run_posted(self) -> float:
        """Run the kernel for what was posted since `reset`, one less than the ring holds at most: milliseconds.

        It waits for no host, and does the same however often it is run, as a profiler does.
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
        """What is put on the device's stream from now on comes after the command that was posted last."""
        if self.running and self._queue[rl.NEXT]:
            self._wait_for(int(self._queue[rl.NEXT]))

    def settle_requests(self, requests: Any) -> None:
        """The same for the last command of each of these requests."""
        for request in requests.tolist() if self.running else ():
            if posted := int(self._last[request & (len(self._last) - 1)]):
                self._wait_for(posted)

    def _wait_for(self, posted: int) -> None:
        """`posted`: a command's number, from 1."""
        word = self._done + 8 * ((posted - 1) & ((1 << CAPACITY_BITS) - 1))
        status = self._wait(self._device.stream.ptr, word, posted, GREATER_OR_EQUAL)
        if status:
            raise RunError(f"cuStreamWaitValue64 failed with CUresult {status}")

    @property
    def queue(self) -> int:
        """Where compiled code posts: address of QUEUE_WORDS int64."""
        return int(self._queue.ctypes.data)

    def outputs(self, index: int, rows: int) -> NDArray[np.float32] | None:
        """Of command `index`, counted from `start`, when the host has them, [rows]; they are also on their way to C.

        None: the kernel does not send those of such a command, and it is complete. RunError where the kernel gave up.
        """
        rows = min(rows, rl.OUTPUT_WORDS)  # of more none are sent
        found = rl.await_outputs(self.queue, index, rows)
        self.check_alive()
        slot = index % len(self._host_done) * rl.OUTPUT_WORDS
        return rl.values_of(self._host_outputs[slot : slot + rows]) if found == rl.OK else None

    def check_alive(self) -> None:
        """RunError where the kernel gave up: what was posted since will not be done."""
        if int(self._control[STATE]) == rl.GAVE_UP:
            raise RunError(rl.GAVE_UP_LINE)

    def let_go(self) -> None:
        """After `pause`: wait for the kernel; where it gave up, let go what waits for commands that it left."""
        self._stream.synchronize()
        if int(self._control[STATE]) != rl.GAVE_UP:
            return
        first = ENTRY_WORDS << ENTRY_BITS
        with self._stream:
            self._words[first : first + (1 << CAPACITY_BITS)].fill(NEVER_REACHED)
        self._stream.synchronize()

    def check(self) -> None:
        """After the end of a run: RunError where the kernel did not do all that was posted."""
        self.check_alive()
        done, posted = self._host_done, int(self._queue[rl.NEXT])
        recent = np.arange(max(0, posted - len(done)), posted)
        if missing := int(np.count_nonzero(done[recent % len(done)] != recent + 1)):
            raise RunError(f"the resident kernel ended with {missing} of {posted} commands not complete")

    def close(self) -> None:
        """End the kernel, however the run ended."""
        self._control[ABORT] = 1
        self.pause()
        self.let_go()
