"""Compute the input of a request's next token from the outputs of its last token, on the GPU, in one kernel launch.

Each row has its own addresses of input and output. The results have the same bits as those of
`devices.feedback.host.HostFeedback`, so `sampling` and `feedback.host` define every rounding. Weights are integers, so
that their sum does not depend on the order. The intrinsics __dadd_rn and __dmul_rn prevent fused multiply-adds, which
NumPy does not use.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.command import Dtype
from launchopt.cupy_types import CudaStream
from launchopt.devices.cublaslt.kernel_plans import KernelLaunch
from launchopt.devices.feedback.host import PARTIAL_SUMS
from launchopt.devices.feedback.in_launch import FeedbackLayout, source_of, words_of
from launchopt.devices.feedback.landing import StagedRow
from launchopt.sampling import Sampling, SamplingKind, check_vocab
from launchopt.types import Words

STAGES = 64  # argument buffers, used in turn; before it reuses one, the host waits for the launch that read it
WORDS = len(StagedRow)  # words per row that is fed back


class GpuFeedback:
    """Feeds back up to layout.most_rows rows per launch on `stream`. ConfigError: vocabulary empty or too large."""

    def __init__(self, stream: CudaStream, dtype: Dtype, sampling: Sampling, layout: FeedbackLayout) -> None:
        if sampling.kind is not SamplingKind.none:
            check_vocab(sampling, layout.vocab)
        self._stream = stream
        kernel = cupy.RawModule(code=source_of(dtype, sampling.kind)).get_function("feedback")
        most_rows = layout.most_rows
        pinned = cupy.cuda.alloc_pinned_memory(STAGES * WORDS * most_rows * 8)
        self._staged = np.frombuffer(pinned, np.uint64, STAGES * WORDS * most_rows).reshape(STAGES, WORDS, most_rows)
        self._addresses = [staged.ctypes.data for staged in self._staged]
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(STAGES)]
        self._next = 0
        # The first word of struct Feedback is the address of a launch's arguments.
        self._launch = KernelLaunch(kernel, PARTIAL_SUMS, [words_of(sampling, layout)], stream)

    def stage(self) -> Words:
        """Return pinned memory for the arguments of the next launch, [StagedRow, most_rows], a column per row fed back.

        SOURCE: address of a hidden vector, or of logits with sampling. TARGET: address of the next input; without
        sampling it may equal SOURCE. HISTORY: address for a copy of the unscaled hidden vector; 0: no copy, always so
        with sampling. ID: address for the id, int32, in host or device memory; 0: no id is written. The kernel writes
        the id last; without sampling it is 0. A row of logits with a NaN gets the id NO_ID and embedding row 0.
        """
        if self._next >= STAGES:
            self._events[self._next % STAGES].synchronize()
        staged: Words = self._staged[self._next % STAGES]
        return staged

    def launch(self, rows: int) -> None:
        """Launch the first `rows` rows that were staged; return before the kernel has run."""
        if rows == 0:
            return
        stage = self._next % STAGES
        # The kernel reads its arguments from pinned memory, which has one address on host and device.
        self._launch(rows, self._addresses[stage])
        self._events[stage].record(self._stream)
        self._next += 1
