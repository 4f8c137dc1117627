"""The end of each step in a loop of steps that one launch executes: kernels/step_loop.cu.

`begin` goes before the launch of the loop's graph, and `end_step` is the last launch in that graph. `begin` copies the
arguments of the first step, which the host has staged, to memory of the GPU. `end_step` feeds back a step's outputs,
and changes these arguments to those of the next token.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.command import Dtype
from launchopt.cupy_types import CudaStream
from launchopt.devices.cublaslt.kernel_plans import KernelLaunch
from launchopt.devices.feedback.host import PARTIAL_SUMS
from launchopt.devices.feedback.in_launch import ARGUMENTS, LaunchFeedback, loop_source
from launchopt.devices.feedback.landing import StagedRow
from launchopt.kernels.shared import FEEDBACK, STEP_LOOP, word_of
from launchopt.types import Table

COPIERS = 256  # threads of `begin`
PITCH = word_of(FEEDBACK, "pitch")
LOOP_WORDS = STEP_LOOP.itemsize // 8


class StepLoopEnd:
    """The two kernels, for launches on `stream`. is_while: the loop is a conditional node; else it launches itself."""

    def __init__(self, stream: CudaStream, dtype: Dtype, feedback: LaunchFeedback, is_while: bool) -> None:
        module = cupy.RawModule(code=loop_source(dtype, feedback.head, is_while))
        self._stream, self._end = stream, module.get_function("end_step")
        self._feedback: Table = feedback.words.copy()
        words = len(StagedRow) * int(self._feedback[PITCH])
        self._memory = cupy.zeros(words + 1, np.uint64)
        address = int(self._memory.data.ptr)
        self._feedback[ARGUMENTS] = address
        loop = np.zeros(1, STEP_LOOP)
        loop["arguments"], loop["words"], loop["left"] = address, words, address + 8 * words
        self._loop = loop
        parameters = np.uint64(0), np.uint64(0), loop.view(np.int64)
        self._begin = KernelLaunch(module.get_function("begin_loop"), COPIERS, parameters, stream)
        self._begin_words = np.zeros(2 + LOOP_WORDS, np.int64)
        self._begin_words[2:] = loop.view(np.int64)

    def begin(self, arguments: int, steps: int) -> None:
        """Prepare a loop of `steps` steps. arguments: address of the staged arguments of the first step."""
        self._begin_words[:2] = arguments, steps
        self._begin.with_words(1, self._begin_words)

    def end_step(self, rows: int, handle: int) -> None:
        """Launch the end of a step of `rows` requests, for a capture. handle: of the conditional node, or 0."""
        loop = self._loop.copy()
        loop["handle"] = handle
        launch = KernelLaunch(self._end, PARTIAL_SUMS, [self._feedback, loop.view(np.int64)], self._stream)
        launch(rows, int(self._feedback[ARGUMENTS]))
