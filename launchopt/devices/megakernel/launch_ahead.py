"""A launch made before its commands are there, which waits on the GPU until the host says that they are.

In: programs, as they are asked for. Out: launches of those that are likely to be asked for next, one at a time, which
waits (kernels/megakernel/gate.cuh), and the word that admits it, or calls it off. So what the driver's call and the
beginning of a kernel take has passed when the commands come, and weights are in shared memory; nothing is stored
before. Its blocks come while the launch before it is ending, where that has blocks no more.

What comes next is taken to be what came after the same program the last time.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.feedback.cuda import pinned
from launchopt.devices.feedback.stages import STAGES, FeedbackStages
from launchopt.devices.loops.admission import Admission, say
from launchopt.devices.steps.keys import StepKey
from launchopt.errors import RunError
from launchopt.kernels.shared import GATE, TAG_BITS

PATIENCE_NS = 1_000_000_000  # how long a launch waits for the host's word before it ends by itself
STALE_NS = PATIENCE_NS // 2  # from when on the host takes it that it may have
SHIFT, MOST_TAG = 64 - TAG_BITS, (1 << TAG_BITS) - 1
WORDS = 2 * STAGES  # of the host: a word is written anew when the launch that it was for has ended
CALLED_OFF = 0  # in place of an address
LOST_LINE = "a launch that waited for its commands gave up just when they came"


class Gated(Protocol):
    """What is launched: a MegakernelProgram. `known`: by what its batches are."""

    known: StepKey

    def launch_gated(self, gate: NDArray[np.int64]) -> bool:
        """As the last launch of it, but for what the gate says; False, and nothing done, where that cannot be."""

    def took_back(self) -> None:
        """The last launch was called off."""


class LaunchAhead:
    """Of one stream: before anything else is put on it, or it is waited for, `call_off`.

    stages, most: for `admission`, with which a compiled loop admits launches. called_off: how many launches were made
    since `start` that did nothing.
    """

    def __init__(self, stages: FeedbackStages, most: int) -> None:
        self._said, self._gave_up = pinned(WORDS, np.uint64), pinned(1, np.uint64)
        self._said.fill(0)
        self.admission = Admission(self._said, stages, most)
        self._heard = cupy.zeros(1, np.uint64)
        self._gate = np.zeros(1, GATE)
        self._gate["gave_up"], self._gate["heard"] = self._gave_up.ctypes.data, self._heard.data.ptr
        self._gate["patience_ns"] = PATIENCE_NS
        self._following: dict[Any, Gated] = {}
        self._waiting: Gated | None = None
        self._tag, self._made_ns = 0, 0
        self.start()

    def start(self) -> None:
        """A new run; nothing is under way."""
        self._last: Gated | None = None
        self.called_off = 0
        self._gave_up[0] = 0

    def admitted(self) -> Gated | None:
        """The program whose launch was admitted by a compiled loop, its rows staged; told of once."""
        if not self.admission.was_admitted():
            return None
        program, self._waiting = self._waiting, None
        return program

    def admit(self, program: Gated, arguments: int) -> bool:
        """`program` is asked for: whether a launch of it waited, and goes on now. Any other is called off.

        arguments: the address of how it feeds back; 0: it cannot be one that waited.
        """
        if self._waiting is not program or not arguments or time.monotonic_ns() - self._made_ns > STALE_NS:
            self.call_off()
            return False
        self._say(arguments)
        return True

    def _say(self, arguments: int) -> None:
        say(self._said, self._tag % WORDS, np.uint64(self._tag << SHIFT | arguments))
        self._waiting = None
        self.admission.forget()

    def follow(self, program: Gated, makes: bool) -> None:
        """`program` was launched, or admitted; if `makes`, launch what is likely to follow it, if that is known."""
        if self._last is not None:
            self._following[self._last] = program
        self._last = program
        following = self._following.get(program)
        if makes and following is not None:
            self._make(following)

    def _make(self, program: Gated) -> None:
        self._tag = self._tag % MOST_TAG + 1
        place = self._tag % WORDS
        self._gate["word"], self._gate["tag"] = self._said.ctypes.data + 8 * place, self._tag
        self._made_ns = time.monotonic_ns()
        if program.launch_gated(self._gate.view(np.int64)):
            self._waiting = program
            self.admission.expect(program.known, place, self._tag, self._made_ns + STALE_NS)

    def call_off(self) -> None:
        """Have the one that waits end without having done anything."""
        if self._waiting is None:
            return
        self._waiting.took_back()
        self._say(CALLED_OFF)
        self.called_off += 1

    def forget(self) -> None:
        """Programs are about to be dropped."""
        self.call_off()
        self._following.clear()
        self._last = None

    def check_alive(self) -> None:
        """RunError where a launch that was admitted had given up: its commands will not be done."""
        tag = int(self._gave_up[0])
        if not tag:
            return
        said_tag, said = divmod(int(self._said[tag % WORDS]), 1 << SHIFT)
        if said_tag == tag and said != CALLED_OFF:
            raise RunError(LOST_LINE)
