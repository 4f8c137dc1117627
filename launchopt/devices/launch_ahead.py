"""A launch made before its commands are there, which waits on the GPU until the host says that they are.

In: programs, as they are asked for. Out: launches of those that are likely to be asked for next, one at a time, which
waits (kernels/gate.cuh), and the word that admits it, or calls it off. So what the driver's call and the beginning of a
kernel take has passed when the commands come, and weights are in shared memory; nothing is stored before.

What comes next is taken to be what came after the same program the last time.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cuda_steps import pinned
from launchopt.errors import RunError

PATIENCE_NS = 1_000_000_000  # how long a launch waits for the host's word before it ends by itself
STALE_NS = PATIENCE_NS // 2  # from when on the host takes it that it may have
TAG_SHIFT, MOST_TAG = 48, 0xFFFF  # of kernels/gate.cuh
WORD, GAVE_UP = range(2)  # words of the host's memory
TAG, GATE_WORDS = 3, 5  # of struct Gate
LOST_LINE = "a launch that waited for its commands gave up just when they came"


class Gated(Protocol):
    """What is launched: a MegakernelProgram."""

    def launch_gated(self, gate: NDArray[np.int64]) -> bool:
        """As the last launch of it, but for what the gate says; False, and nothing done, where that cannot be."""

    def took_back(self) -> None:
        """The last launch was called off."""


class LaunchAhead:
    """Of one stream: before anything else is put on it, or it is waited for, `call_off`.

    called_off: how many launches were made since `start` that did nothing.
    """

    def __init__(self) -> None:
        self._words = pinned(2, np.uint64)
        self._words[:] = 0
        self._heard = cupy.zeros(1, np.uint64)
        # Struct Gate: the host's word, where who gives up says so, the word on the GPU, the tag, ns.
        host = self._words.ctypes.data
        self._gate = np.array([host, host + 8, self._heard.data.ptr, 0, PATIENCE_NS], np.int64)
        self._following: dict[Any, Gated] = {}
        self._waiting: Gated | None = None
        self._tag, self._admitted, self._made_ns = 0, 0, 0
        self.start()

    def start(self) -> None:
        """A new run."""
        self._last: Gated | None = None
        self.called_off = 0

    def admit(self, program: Gated, arguments: int) -> bool:
        """`program` was asked for: whether a launch of it waited, and goes on now. Any other is called off.

        arguments: the address of how it feeds back; 0: it cannot be one that waited.
        """
        if self._last is not None:
            self._following[self._last] = program
        self._last = program
        if self._waiting is not program or not arguments or time.monotonic_ns() - self._made_ns > STALE_NS:
            self.call_off()
            return False
        self._waiting, self._admitted = None, self._tag
        self._words[WORD] = self._tag << TAG_SHIFT | arguments
        return True

    def make(self) -> None:
        """Launch what is likely to be asked for after the last one, if anything is."""
        program = self._following.get(self._last)
        if program is None or self._waiting is not None:
            return
        self._tag = self._tag % MOST_TAG + 1
        self._gate[TAG], self._words[GAVE_UP] = self._tag, 0
        self._made_ns = time.monotonic_ns()
        if program.launch_gated(self._gate):
            self._waiting = program

    def call_off(self) -> None:
        """Have the one that waits end without having done anything."""
        if self._waiting is None:
            return
        self._words[WORD] = self._tag << TAG_SHIFT
        self._waiting.took_back()
        self._waiting = None
        self.called_off += 1

    def forget(self) -> None:
        """Programs are about to be dropped."""
        self.call_off()
        self._following.clear()
        self._last = None

    def check_alive(self) -> None:
        """RunError where a launch that was admitted had given up: its commands will not be done."""
        if self._admitted and int(self._words[GAVE_UP]) == self._admitted:
            raise RunError(LOST_LINE)
