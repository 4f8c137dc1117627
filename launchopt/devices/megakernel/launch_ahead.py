"""Launches that the host makes before their commands are there. They wait on the GPU for a word of the host.

`LaunchAhead` makes the launch that is likely to come next; at most one such launch waits at a time. The launch waits at
its gate (kernels/megakernel/gate.cuh) until the host admits it or calls it off. When the commands come, the launch call
has returned, the kernel runs, and the first weights are in shared memory. The launch stores nothing before it is
admitted. Its blocks start as blocks of the previous launch end.

`LaunchAhead` predicts the next program: the program that followed the current one the last time.
"""

from __future__ import annotations

import time
from typing import Protocol

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.feedback.cuda import pinned
from launchopt.devices.feedback.stages import STAGES, FeedbackStages
from launchopt.devices.loops.admission import Admission, store_gate_word
from launchopt.devices.steps.keys import StepKey
from launchopt.errors import RunError
from launchopt.kernels.shared_megakernel import GATE, TAG_BITS

PATIENCE_NS = 1_000_000_000  # time after which a launch that waits for the host's word gives up
STALE_NS = PATIENCE_NS // 2  # time after which the host assumes that the launch may have given up
SHIFT, MOST_TAG = 64 - TAG_BITS, (1 << TAG_BITS) - 1  # bits below the tag in the host's word; largest tag
WORDS = 2 * STAGES  # number of the host's words; a word is used again after the end of its launch
CALLED_OFF = 0  # value in place of the address of arguments
LOST_LINE = "a launch that waited for its commands gave up just when they came"


class Gated(Protocol):
    """A program that can be launched ahead, as a MegakernelProgram can. known: the key of its batches."""

    known: StepKey

    def launch_gated(self, gate: NDArray[np.int64]) -> bool:
        """Launch the program behind a gate, and return True. If that is impossible, launch nothing and return False."""

    def took_back(self) -> None:
        """Undo the count of the last launch, which was called off."""


class LaunchAhead:
    """The launches ahead on one CUDA stream.

    The caller must call `call_off` before it puts other work on that CUDA stream, or waits for it. stages, most: as in
    `Admission`, by which a compiled loop admits launches. called_off: number of launches that were called off since
    `start`.
    """

    def __init__(self, stages: FeedbackStages, most: int) -> None:
        self._gate_words, self._gave_up = pinned(WORDS, np.uint64), pinned(1, np.uint64)
        self._gate_words.fill(0)
        self.admission = Admission(self._gate_words, stages, most)
        self._word_copy = cupy.zeros(1, np.uint64)
        self._gate = np.zeros(1, GATE)
        self._gate["gave_up"], self._gate["word_copy"] = self._gave_up.ctypes.data, self._word_copy.data.ptr
        self._gate["patience_ns"] = PATIENCE_NS
        self._following: dict[Gated, Gated] = {}  # by program: the program that followed it the last time
        self._waiting: Gated | None = None
        self._tag, self._made_ns = 0, 0
        self.start()

    def start(self) -> None:
        """Begin a run. No launch may be in flight."""
        self._last: Gated | None = None
        self.called_off = 0
        self._gave_up[0] = 0

    def admitted(self) -> Gated | None:
        """Return the program whose waiting launch a compiled loop has let start since the last call, or None.

        The loop has also written the arguments of the rows that this launch feeds back.
        """
        if not self.admission.was_admitted():
            return None
        program, self._waiting = self._waiting, None
        return program

    def admit(self, program: Gated, arguments: int) -> bool:
        """Admit the waiting launch if it is one of `program`, and return True. Else call it off, and return False.

        arguments: address of the words of the rows that the launch feeds back (ROW_WORDS); 0: the launch feeds back
        nothing, and a waiting launch cannot be used for it.
        """
        if self._waiting is not program or not arguments or time.monotonic_ns() - self._made_ns > STALE_NS:
            self.call_off()
            return False
        self._store_word(arguments)
        return True

    def _store_word(self, arguments: int) -> None:
        store_gate_word(self._gate_words, self._tag % WORDS, np.uint64(self._tag << SHIFT | arguments))
        self._waiting = None
        self.admission.forget()

    def follow(self, program: Gated, makes: bool) -> None:
        """Record that `program` was launched or admitted. If `makes`, launch the program that is likely to follow."""
        if self._last is not None:
            self._following[self._last] = program
        self._last = program
        following = self._following.get(program)
        if makes and following is not None:
            self._make(following)

    def _make(self, program: Gated) -> None:
        self._tag = self._tag % MOST_TAG + 1
        place = self._tag % WORDS
        self._gate["word"], self._gate["tag"] = self._gate_words.ctypes.data + 8 * place, self._tag
        self._made_ns = time.monotonic_ns()
        if program.launch_gated(self._gate.view(np.int64)):
            self._waiting = program
            self.admission.expect(program.known, place, self._tag, self._made_ns + STALE_NS)

    def call_off(self) -> None:
        """Call off the waiting launch, if there is one: it ends without an effect."""
        if self._waiting is None:
            return
        self._waiting.took_back()
        self._store_word(CALLED_OFF)
        self.called_off += 1

    def forget(self) -> None:
        """Call off the waiting launch and forget all programs. The caller may drop the programs afterwards."""
        self.call_off()
        self._following.clear()
        self._last = None

    def check_alive(self) -> None:
        """Raise RunError if the host admitted a launch that had given up before: its commands are not executed."""
        tag = int(self._gave_up[0])
        if not tag:
            return
        stored_tag, stored = divmod(int(self._gate_words[tag % WORDS]), 1 << SHIFT)
        if stored_tag == tag and stored != CALLED_OFF:
            raise RunError(LOST_LINE)
