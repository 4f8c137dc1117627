"""A recording of six commands in three launch calls, and its timing. All its numbers are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.recording.recorder import Recorder
from launchopt.recording.summary import Timing
from launchopt.statistics.histogram import RELATIVE_ERROR
from launchopt.timing.activity import Activity, Span
from launchopt.workloads.gemv import gemv
from support.steps.launching import launch

ZERO = 1_000_000  # the start barrier; commands are enqueued 0, 10, ... 50 ns after it
STREAM = gemv(4, 3, 5, 6, Dtype.fp16, 2)
FLUSHES = [1, 1, 0, 1, 0]  # in the order of FlushReason
SAMPLES = np.array([[2_300, 5_900]]) + ZERO
# Two API calls. The kernels of the first begin after its return. The only kernel of the second begins during the call.
ACTIVITY = Activity(
    np.array(
        [[0, 0, c, s, e, 7, 0] for c, s, e in ((1, 4_000, 5_000), (1, 4_500, 6_000), (2, 6_500, 7_500))], np.int64
    ),
    np.array([[0, 1, 1_000, 2_000], [0, 2, 6_000, 7_000]]),
    ["k"],
    ["cuLaunchKernelEx"],
    dropped=0,
    clock_error_ns=5,
)
EVENTS = Timing(ZERO, Span(ZERO + 8_000, 4_000, SAMPLES), ACTIVITY)
HOST = Timing(ZERO, Span(ZERO + 8_000, None, np.empty((0, 2), np.int64)))


def about(value: float) -> Any:
    """Return an approximation of a value, to the precision of a histogram."""
    return pytest.approx(value, rel=RELATIVE_ERROR)


def distribution_of(name: str, values_ns: Sequence[int] | NDArray[np.int64]) -> dict[str, Any]:
    """Return the expected columns of a distribution: percentiles to within a bucket, the maximum exactly."""
    percentiles = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}
    columns = {f"{name}_{key}_us": about(np.percentile(values_ns, of) / 1e3) for key, of in percentiles.items()}
    return columns | {f"{name}_max_us": max(values_ns) / 1e3}


def six_commands() -> Recorder:
    """Record six commands in three launch calls. The second call was timed on the device; the third was packed."""
    recorder = Recorder(6)
    for seqs, flush, start, end in [
        ([0, 1, 2], 1_000, 1_100, 1_200),
        ([4, 3], 2_000, 2_100, 2_400),
        ([5], 3_000, 3_100, 3_600),
    ]:
        launch(recorder, seqs, flush_ns=ZERO + flush, start_ns=ZERO + start, end_ns=ZERO + end, zero_ns=ZERO)
        if seqs == [4, 3]:
            recorder.mark_sample(1, 0)
    recorder.mark_packed(240, 3)
    return recorder
