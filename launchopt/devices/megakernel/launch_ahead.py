"""Launches that are made before their commands are there, and wait on the GPU for a word of the host.

`LaunchAhead` makes the launch that is likely to be asked for next, one at a time. The launch waits at its gate
(kernels/megakernel/gate.cuh) until the host admits it or calls it off. So the driver's call and the start of the kernel
are over when the commands come, and the first weights are in shared memory. The launch stores nothing before it is
admitted. Its blocks start where blocks of the launch before it have ended.

The likely next program is the one that followed the same program the last time.
"""

from __future__ import annotations

import time
from typing import Protocol

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.feedback.cuda import pinned
from launchopt.devices.feedback.stages import STAGES, FeedbackStages
from launchopt.devices.loops.admission import Admission, say
from launchopt.devices.steps.keys import StepKey
from launchopt.errors import RunError
from launchopt.kernels.shared import GATE, TAG_BITS

PATIENCE_NS = 1_000_000_000  # after which a launch that waits for the host's word gives up
STALE_NS = PATIENCE_NS // 2  # after which the host assumes that the launch may have given up
SHIFT, MOST_TAG = 64 - TAG_BITS, (1 << TAG_BITS) - 1
WORDS = 2 * STAGES  # words of the host; a word is used again after the end of its launch
CALLED_OFF = 0  # in place of the address of arguments
LOST_LINE = "a launch that waited for its commands gave up just when they came"


class Gated(Protocol):
    """A program that can be launched ahead: a MegakernelProgram. known: the key of its batches."""

    known: StepKey

    def launch_gated(self, gate: NDArray[np.int64]) -> bool:
        """Launch it behind a gate. Return False if it cannot be; then nothing is done."""

    def took_back(self) -> None:
        """Take back the last launch, which was called off."""


class LaunchAhead:
    """The launches ahead of one stream. Call `call_off` before other work is put on the stream or it is waited for.

    stages, most: see `Admission`, by which a compiled loop admits launches. called_off: number of launches since
    `start` that did nothing.
    """

    def __init__(self, stages: FeedbackStages, most: int) -> None:
        self._said, self._gave_up = pinned(WORDS, np.uint64), pinned(1, np.uint64)
        self._said.fill(0)
        self.admission = Admission(self._said, stages, most)
        self._heard = cupy.zeros(1, np.uint64)
        self._gate = np.zeros(1, GATE)
        self._gate["gave_up"], self._gate["heard"] = self._gave_up.ctypes.data, self._heard.data.ptr
        self._gate["patience_ns"] = PATIENCE_NS
        self._following: dict[Gated, Gated] = {}  # the program that came after each, the last time
        self._waiting: Gated | None = None
        self._tag, self._made_ns = 0, 0
        self.start()

    def start(self) -> None:
        """Begin a run; nothing is under way."""
        self._last: Gated | None = None
        self.called_off = 0
        self._gave_up[0] = 0

    def admitted(self) -> Gated | None:
        """Return, once, the program whose launch a compiled loop has admitted; its rows are staged."""
        if not self.admission.was_admitted():
            return None
        program, self._waiting = self._waiting, None
        return program

    def admit(self, program: Gated, arguments: int) -> bool:
        """Admit the launch of `program` that waits, and return True. Call off any other launch, and return False.

        arguments: address of how the launch feeds back; 0: it cannot be one that waited.
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
        """Note that `program` was launched or admitted. If `makes`, launch the program that is likely to follow."""
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
        """Let the launch that waits end without an effect."""
        if self._waiting is None:
            return
        self._waiting.took_back()
        self._say(CALLED_OFF)
        self.called_off += 1

    def forget(self) -> None:
        """Forget all programs, before they are dropped."""
        self.call_off()
        self._following.clear()
        self._last = None

    def check_alive(self) -> None:
        """Raise RunError if a launch gave up before it was admitted: its commands are not executed."""
        tag = int(self._gave_up[0])
        if not tag:
            return
        said_tag, said = divmod(int(self._said[tag % WORDS]), 1 << SHIFT)
        if said_tag == tag and said != CALLED_OFF:
            raise RunError(LOST_LINE)
