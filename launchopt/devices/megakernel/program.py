"""A list of instructions on the GPU, with what kernels/megakernel.cu needs beside it, and its launches.

In: a list (`instructions`), how many blocks the grid has, who compiles the kernel, and how results are fed back in the
same launch. Out: launches, of struct Program, struct Feedback, their numbers, and struct Gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cupy
import numpy as np

from launchopt.devices.cuda.kernel_plans import KernelLaunch
from launchopt.devices.instructions.words import Instructions, Word
from launchopt.devices.megakernel.memory import emptied_boxes, place_boxes
from launchopt.devices.megakernel.task_structs import packed, weights_of
from launchopt.devices.megakernel.tasks import defines_of, tasks_of
from launchopt.devices.steps.keys import StepKey
from launchopt.kernels.shared import FEEDBACK, LAUNCH, Stamp, word_of
from launchopt.types import Table

# Places of LAUNCH's fields, in words.
ARGUMENTS, ROWS = word_of(LAUNCH, "feedback", "arguments"), word_of(LAUNCH, "feedback", "rows")
NUMBER, GATE = (
    word_of(LAUNCH, "number"),
    word_of(LAUNCH, "gate"),
)  # gate: its first word is 0 without one
NO_FEEDBACK: Table = np.zeros(FEEDBACK.itemsize // 8, np.int64)


class MegakernelProgram:
    """A list on the GPU, and the kernel that runs it on `blocks` blocks: what `kernel` gives for its macros.

    pairs: whether blocks may come in clusters of two.
    known: by what batches of this list are, where they are launched as they come.
    feedback: struct Feedback, where the kernel is compiled to feed back.
    stamps: int64 [blocks, instructions + 1, len(Stamp)], of the last launch, behind the instructions' the whole's
    cycles and ns; empty unless `stamped`, and written by kernels that are compiled to.
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
        self._counters = cupy.zeros(len(tasks) + 1, np.uint32)  # the last one: of blocks that are through
        self._tasks = cupy.asarray(packed(tasks).view(np.uint64))
        self._weights = cupy.asarray(weights_of(tasks, itemsize).view(np.uint64))
        self.stamps = cupy.zeros((blocks if stamped else 0, len(tasks) + 1, len(Stamp)), np.int64)
        columns = int(tasks[:, Word.REQUESTS].max(initial=1))
        self._found = cupy.zeros(columns * blocks, np.uint64)  # logits: kernels/tokens/step_end.cuh
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
        """Launch it; RunError where the driver refuses. It feeds back as many rows, staged at the address `arguments`.

        Launches have numbers of 32 bits, from 1 on.
        """
        words = self._words
        words[ARGUMENTS], words[ROWS], words[GATE] = arguments, rows, 0
        self._launch()

    def launch_gated(self, gate: Table) -> bool:
        """As `devices.launch_ahead` wants it: it feeds back as many rows as the last one, and that must be some.

        It may begin before the launch before it has ended, and waits for that itself.
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
        """The last launch did nothing: the next one has its number."""
        self._words[NUMBER] = self._words[NUMBER] - 1 & 0xFFFFFFFF
