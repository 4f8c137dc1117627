"""A list of instructions on the GPU, with what kernels/megakernel.cu needs beside it, and its launches.

In: a list (`instructions`), how many blocks the grid has, who compiles the kernel, and how results are fed back in the
same launch. Out: launches, of struct Program, struct Feedback, their numbers, and struct Gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cuda.kernel_plans import KernelLaunch
from launchopt.devices.feedback import in_launch as fs
from launchopt.devices.instructions.words import Instructions, Word
from launchopt.devices.megakernel.launch_ahead import GATE_WORDS
from launchopt.devices.megakernel.mailboxes import emptied_boxes, place_boxes
from launchopt.devices.megakernel.packed import packed, weights_of
from launchopt.devices.megakernel.tasks import defines_of, tasks_of
from launchopt.devices.steps.keys import StepKey

PROGRAM_WORDS, FEEDBACK_WORDS = 6, len(fs.FIELDS)
ARGUMENTS, ROWS = PROGRAM_WORDS + fs.ARGUMENTS, PROGRAM_WORDS + fs.ROWS
NUMBER = PROGRAM_WORDS + FEEDBACK_WORDS  # of the launch; behind it the gate, whose first word is 0 where there is none
GATE = NUMBER + 1
NO_FEEDBACK = np.zeros(FEEDBACK_WORDS, np.int64)
STAMPS_EACH = 3  # of kernels/megakernel.cu: began, had what it waits for, ended


class MegakernelProgram:
    """A list on the GPU, and the kernel that runs it on `blocks` blocks: what `kernel` gives for its macros.

    pairs: whether blocks may come in clusters of two.
    known: by what batches of this list are, where they are launched as they come.
    feedback: struct Feedback, where the kernel is compiled to feed back.
    stamps: int64 [blocks, instructions + 1, STAMPS_EACH], of the last launch, behind the instructions' the whole's
    cycles and ns; empty unless `stamped`, and written by kernels that are compiled to.
    """

    known: StepKey

    def __init__(
        self,
        instructions: Instructions,
        blocks: int,
        itemsize: int,
        kernel: Callable[[Mapping[str, int]], KernelLaunch],
        feedback: NDArray[np.int64] = NO_FEEDBACK,
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
        self.stamps = cupy.zeros((blocks if stamped else 0, len(tasks) + 1, STAMPS_EACH), np.int64)
        parts = self._tasks, self._counters, self._weights
        addresses = [part.data.ptr for part in parts]
        program = np.array([*addresses, len(tasks), box_bytes, self.stamps.data.ptr], np.int64)
        self._words = np.concatenate([program, feedback, np.zeros(1 + GATE_WORDS, np.int64)])
        columns = int(tasks[:, Word.REQUESTS].max(initial=1))
        self._found = cupy.zeros(columns * blocks, np.uint64)  # logits: kernels/tokens/step_end.cuh
        self._words[PROGRAM_WORDS + fs.FOUND] = self._found.data.ptr
        cupy.cuda.get_current_stream().synchronize()

    def launch(self, arguments: int = 0, rows: int = 0) -> None:
        """Launch it; RunError where the driver refuses. It feeds back as many rows, staged at the address `arguments`.

        Launches have numbers of 32 bits, from 1 on.
        """
        words = self._words
        words[ARGUMENTS], words[ROWS], words[GATE] = arguments, rows, 0
        self._launch()

    def launch_gated(self, gate: NDArray[np.int64]) -> bool:
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
