"""Figures of other programs for the same work. They stand beside ours and are never mixed with them.

In: the workload, shapes, dtype and GPU of a table. Out: a `Peer` (a C++ program on the same GPU) or the figures of
gpu-kernel-batcher. None if the work differs, since a figure for other work is no comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

PEER_GPU = "H200"

# The shape of a workload that the C++ program ran; the shapes of a table must contain it.
_SHAPE_OF_WORKLOAD = {
    "gemv_micro": (64, 1, 8192),
    "gemv_256": (256, 1, 256),
    "decode": (1024, 1, 1024),
    "prefill": (1024, 256, 1024),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """cuBLASLt called from C++: GPU span per command in a loop (us) and in strided batches (with unit)."""

    m: int
    n: int
    k: int
    dtype: str
    loop_us: str
    batch: str
    ratio: str

    def __str__(self) -> str:
        return (
            f"cuBLASLt called from C++ on {self.m}x{self.n}x{self.k} {self.dtype} ({PEER_GPU}, driver 580, "
            f"CUDA 13.0), GPU span a command: {self.loop_us} us in a loop, strided batch {self.batch}; "
            f"ratio {self.ratio}."
        )


# Source: a plain C++ program that calls cuBLASLt 13.1 on one H200 (132 SMs, driver 580, CUDA 13.0); every
# command has its own matrix, 512 matrices cycled. Ranges are over runs, or over the batch sizes given.
_PEERS = (
    Peer(64, 1, 8192, "fp32", "9.15-10.1", "475 ns at 512", "19-21x"),
    Peer(64, 1, 8192, "fp16", "7.2-7.7", "239 ns at 512", "30-32x"),
    Peer(256, 1, 256, "fp32", "5.04", "70.7 ns at 512", "71x"),
    Peer(256, 1, 256, "fp16", "4.66", "40.8 ns at 512", "114x"),
    Peer(1024, 1, 1024, "fp32", "13.6", "1,183 ns at 16 and 972 ns at 256", "11-14x"),
    Peer(1024, 1, 1024, "fp16", "5.2", "712 ns at 16 and 475 ns at 256", "7-11x"),
    Peer(1024, 256, 1024, "fp32", "22.1", "12.3 us at 8", "1.8x"),
    Peer(1024, 256, 1024, "fp16", "6.2", "1.33 us at 8", "4.6x"),
)


class History(NamedTuple):
    """Wall times in ms that gpu-kernel-batcher printed for one of its tables, on another GPU: no `Peer`."""

    baseline_ms: float
    batched_ms: float

    def __str__(self) -> str:
        return (
            f"History, not a peer: Venkat2811/gpu-kernel-batcher printed {self.baseline_ms:,.1f} -> "
            f"{self.batched_ms:,.1f} ms of wall on an RTX 3060, CUDA start-up included; its batches read one all-zero "
            "matrix, wrote one output and ignored order."
        )

    @property
    def factor(self) -> str:
        """The speed-up of wall time that these times give."""
        return f"{self.baseline_ms / self.batched_ms:.2f}x"


# Source: the tables that Venkat2811/gpu-kernel-batcher printed on an RTX 3060. Key: workload, dtype, commands.
_HISTORY = {
    ("gemv_micro", "fp32", 2_000_000): History(15_807.6, 3_482.2),
    ("gemv_micro", "fp16", 2_000_000): History(17_803.2, 5_559.4),
    ("decode", "fp32", 400_000): History(13_831.7, 12_282.7),
    ("decode", "fp16", 400_000): History(8_564.6, 6_665.3),
    ("prefill", "fp32", 256): History(239.3, 273.6),
    ("prefill", "fp16", 256): History(352.4, 349.0),
}


def peer(workload: str, shapes: str, dtype: str, gpu: str | None) -> Peer | None:
    """Return the figures of the C++ program for this work; None if it did not run this shape on this kind of GPU."""
    shape = _matching_shape(workload, shapes)
    if shape is None or PEER_GPU not in (gpu or ""):
        return None
    return next((p for p in _PEERS if (p.m, p.n, p.k) == shape and p.dtype == dtype), None)


def history(workload: str, shapes: str, dtype: str, commands: int) -> History | None:
    """Return the wall times of gpu-kernel-batcher for its six tables; None for other work."""
    return _HISTORY.get((workload, dtype, commands)) if _matching_shape(workload, shapes) else None


def _matching_shape(workload: str, shapes: str) -> tuple[int, int, int] | None:
    shape = _SHAPE_OF_WORKLOAD.get(workload)
    found = re.findall(r"(\d+)\s*[x×]\s*(\d+)\s*[x×]\s*(\d+)", shapes)
    return shape if shape in [(int(m), int(n), int(k)) for m, n, k in found] else None
