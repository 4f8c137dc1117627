"""From the last outputs of a token to the inputs of the next one, on the GPU: one kernel launch for all rows.

In and out: addresses, one of each a row. Results are those of `feedback.HostFeedback` to the bit, which is why
`sampling` and `feedback` define every rounding: weights are integers, so atomics and trees sum them alike, and
the intrinsics __dadd_rn and __dmul_rn keep the compiler from fusing what NumPy does not.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt import sampling as rules
from launchopt.command import Dtype
from launchopt.devices.cuda.kernel_plans import KernelLaunch
from launchopt.devices.feedback.host import PARTIAL_SUMS
from launchopt.devices.feedback.in_launch import source_of, words_of
from launchopt.devices.loops.requests import DRAW
from launchopt.sampling import Sampling, SamplingKind

STAGES = 64  # submissions in flight; the host waits for the oldest when it wraps around
WORDS = DRAW + 1


class GpuFeedback:
    """Feeds back up to `most_rows` rows a launch on `stream`, a CuPy stream.

    embedding: device address of [vocab, hidden] in storage dtype, a row each `row_bytes`; not read without sampling.
    vocab: not used without sampling. ConfigError if nothing can be sampled from a vocabulary of this size.
    """

    def __init__(
        self,
        stream: Any,
        dtype: Dtype,
        sampling: Sampling,
        hidden: int,
        vocab: int,
        most_rows: int,
        embedding: int,
        row_bytes: int,
    ) -> None:
        if sampling.kind is not SamplingKind.none:
            rules.check_vocab(sampling, vocab)
        self._stream = stream
        kernel = cupy.RawModule(code=source_of(dtype, sampling.kind)).get_function("feedback")
        pinned = cupy.cuda.alloc_pinned_memory(STAGES * WORDS * most_rows * 8)
        self._staged = np.frombuffer(pinned, np.uint64, STAGES * WORDS * most_rows).reshape(STAGES, WORDS, most_rows)
        self._addresses = [staged.ctypes.data for staged in self._staged]
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(STAGES)]
        self._next = 0
        # Struct Feedback, whose first word says where a launch's arguments are staged.
        words = words_of(sampling, hidden, vocab, most_rows, embedding, row_bytes)
        self._launch = KernelLaunch(kernel, PARTIAL_SUMS, [words], stream)

    def submit(
        self,
        sources: NDArray[np.uint64],
        targets: NDArray[np.uint64],
        histories: NDArray[np.uint64],
        requests: NDArray[np.uint32],
        tokens: NDArray[np.uint32],
        ids: NDArray[np.uint64],
    ) -> None:
        """One launch, of [rows] each, rows <= most_rows; returns before it has run.

        sources: addresses of hidden vectors [hidden], of logits [vocab] with sampling, in storage dtype.
        targets: addresses of the next inputs [hidden]; one may be its own source without sampling.
        histories: where an unscaled copy of the hidden vector goes, 0 for nowhere; without sampling only.
        requests, tokens: which number is drawn, and whose signs are taken. ids: where each int32 id (0 without
        sampling) goes, pinned host memory or the device's, 0 for nowhere; it is written last of all. A row of logits
        that holds a NaN has the id NO_ID and goes on with embedding row 0.
        """
        rows, staged = len(sources), self.stage()
        for words, values in zip(staged, (sources, targets, histories, ids), strict=False):
            words[:rows] = values
        staged[DRAW, :rows] = (requests.astype(np.uint64) << np.uint64(32)) | tokens
        self.launch(rows)

    def stage(self) -> NDArray[np.uint64]:
        """Pinned memory for the next launch's arguments, [WORDS, most_rows]: rows SOURCE to DRAW of `lt_chain`."""
        if self._next >= STAGES:
            self._events[self._next % STAGES].synchronize()
        staged: NDArray[np.uint64] = self._staged[self._next % STAGES]
        return staged

    def launch(self, rows: int) -> None:
        """Launch what was staged."""
        if rows == 0:
            return
        stage = self._next % STAGES
        # The kernel reads its arguments where they lie: pinned memory has one address on both sides.
        self._launch(rows, self._addresses[stage])
        self._events[stage].record(self._stream)
        self._next += 1
