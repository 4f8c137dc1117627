"""A list of instructions on the GPU, and the launches of kernels/megakernel.cu that execute it.

A `MegakernelProgram` holds in the device's memory: the tasks made of the instructions (`tasks_of`), a counter for each
task, the weights of the streamed GEMMs, and the mailboxes. `LAUNCH` (kernels/shared_megakernel.py) is the layout of a
launch's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cupy
import numpy as np

from launchopt.devices.cublaslt.kernel_plans import KernelLaunch
from launchopt.devices.instructions.words import Instructions, Word
from launchopt.devices.megakernel.memory import emptied_boxes, place_boxes
from launchopt.devices.megakernel.task_structs import packed, weights_of
from launchopt.devices.megakernel.tasks import defines_of, tasks_of
from launchopt.devices.steps.keys import StepKey
from launchopt.kernels.shared import FEEDBACK, word_of
from launchopt.kernels.shared_megakernel import LAUNCH, Stamp
from launchopt.types import Table

# Offsets of LAUNCH's fields, in words of 8 bytes. The first word of the gate is 0 if the launch has no gate.
ARGUMENTS, ROWS = word_of(LAUNCH, "feedback", "arguments"), word_of(LAUNCH, "feedback", "rows")
NUMBER, GATE = word_of(LAUNCH, "number"), word_of(LAUNCH, "gate")
NO_FEEDBACK: Table = np.zeros(FEEDBACK.itemsize // 8, np.int64)


class MegakernelProgram:
    """A list on the GPU.

    blocks: blocks of the grid. itemsize: bytes of an element. kernel: function that returns the kernel compiled with
    given macros. feedback: words of struct Feedback, if the kernel feeds back. pairs: the grid may have clusters of two
    blocks. known: key of the batches that this list executes. stamps: clock stamps of the last launch, int64 [blocks,
    tasks + 1, len(Stamp)], whose last row is LaunchClock; empty unless `stamped`.
    """

    known: StepKey

    def __init__(
        self,
        instructions: Instructions,
        blocks: int,
        itemsize: int,
        kernel: Callable[[Mapping[str, int]], KernelLaunch],
        feedback: Table = NO_FEEDBACK,
        stamped: bool = False,
        pairs: bool = False,
    ) -> None:
        tasks, box_bytes = tasks_of(instructions, blocks, itemsize, pairs)
        defines = defines_of(tasks)
        self._boxes = cupy.asarray(np.tile(emptied_boxes(tasks, box_bytes, defines["COLUMNS"], itemsize), 2))
        self._blocks, self._kernel = blocks, kernel(defines)
        place_boxes(tasks, self._boxes.data.ptr)
        self._counters = cupy.zeros(len(tasks) + 1, np.uint32)  # the last one counts blocks that have ended the list
        self._tasks = cupy.asarray(packed(tasks).view(np.uint64))
        self._weights = cupy.asarray(weights_of(tasks, itemsize).view(np.uint64))
        self.stamps = cupy.zeros((blocks if stamped else 0, len(tasks) + 1, len(Stamp)), np.int64)
        columns = int(tasks[:, Word.REQUESTS].max(initial=1))
        self._found = cupy.zeros(columns * blocks, np.uint64)  # largest logits (kernels/tokens/step_end.cuh)
        launch = np.zeros(1, LAUNCH)
        launch["feedback"] = feedback.view(FEEDBACK)
        launch["feedback"]["found"] = self._found.data.ptr
        program = launch["program"]
        program["tasks"], program["counters"] = self._tasks.data.ptr, self._counters.data.ptr
        program["weights"], program["stamps"] = self._weights.data.ptr, self.stamps.data.ptr
        program["count"], program["box_bytes"] = len(tasks), box_bytes
        self._words = launch.view(np.int64)
        cupy.cuda.get_current_stream().synchronize()

    def launch(self, arguments: int = 0, rows: int = 0) -> None:
        """Launch the list, and feed back `rows` rows, whose words are staged at the address `arguments`.

        The launches of a program are numbered from 1 on, modulo 2**32. RunError: the driver refuses the launch.
        """
        words = self._words
        words[ARGUMENTS], words[ROWS], words[GATE] = arguments, rows, 0
        self._launch()

    def launch_gated(self, gate: Table) -> bool:
        """Launch the list ahead of its commands, behind `gate` (`launch_ahead`). Return whether it was launched.

        The launch feeds back as many rows as the program's last launch did. If that launch fed back none, this method
        launches nothing. The launch may begin before the previous launch has ended; the kernel waits for that end.
        """
        words = self._words
        if not words[ROWS]:
            return False
        words[GATE:] = gate
        self._launch(early=True)
        return True

    def _launch(self, early: bool = False) -> None:
        self._words[NUMBER] = self._words[NUMBER] + 1 & 0xFFFFFFFF
        self._kernel.with_words(self._blocks, self._words, early)

    def took_back(self) -> None:
        """Reuse the number of the last launch, which was called off, for the next launch."""
        self._words[NUMBER] = self._words[NUMBER] - 1 & 0xFFFFFFFF
