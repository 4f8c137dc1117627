"""Figures of other programs for the same work. They stand beside ours and are never mixed with them.

In: the workload, shapes, dtype and GPU of a table, and `other_programs.json`, which has the figures with their sources.
Out: a `Peer` (a C++ program on the same GPU) or the figures of gpu-kernel-batcher. None if the work differs, since a
figure for other work is no comparison.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from launchopt.analysis.stream_rows import digits

FILE = "other_programs.json"


class Peer(NamedTuple):
    """cuBLASLt called from C++: GPU span per command in us, in a loop and in strided batches of several sizes."""

    m: int
    n: int
    k: int
    dtype: str
    place: str
    loop: tuple[float, float]
    batches: Mapping[int, float]

    @property
    def loop_us(self) -> str:
        """The range in a loop: `9.15-10.1`."""
        return "-".join(dict.fromkeys(digits(each, 4) for each in self.loop))

    @property
    def batch(self) -> str:
        """The times in batches: `475 ns at 512`."""
        return " and ".join(f"{_time(each)} at {size}" for size, each in sorted(self.batches.items()))

    @property
    def ratio(self) -> str:
        """The range of the loop's time over that in a batch: `19-21x`."""
        ratios = (self.loop[0] / max(self.batches.values()), self.loop[1] / min(self.batches.values()))
        return "-".join(dict.fromkeys(f"{each:.0f}" if each >= 10 else f"{each:.1f}" for each in ratios)) + "x"

    def __str__(self) -> str:
        return (
            f"cuBLASLt called from C++ on {self.m}x{self.n}x{self.k} {self.dtype} ({self.place}), GPU span a command: "
            f"{self.loop_us} us in a loop, strided batch {self.batch}; ratio {self.ratio}."
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


def peer(workload: str, shapes: str, dtype: str, gpu: str | None) -> Peer | None:
    """Return the figures of the C++ program for this work; None if it did not run this shape on this kind of GPU."""
    program = _programs()["cpp_loop"]
    found = _shape(workload, shapes, dtype)
    if found is None or program["gpu"] not in (gpu or ""):
        return None
    loop = (min(found["loop_us"]), max(found["loop_us"]))
    batches = {int(size): us for size, us in found["batch_us"].items()}
    place = f"{program['gpu']}, {program['software']}"
    return Peer(found["m"], found["n"], found["k"], dtype, place, loop, batches)


def history(workload: str, shapes: str, dtype: str, commands: int) -> History | None:
    """Return the wall times of gpu-kernel-batcher for its six tables; None for other work."""
    if _shape(workload, shapes, dtype) is None:
        return None
    work = {"workload": workload, "dtype": dtype, "commands": commands}
    tables = _programs()["gpu_kernel_batcher"]["tables"]
    return next((History(t["baseline_ms"], t["batched_ms"]) for t in tables if work.items() <= t.items()), None)


def _shape(workload: str, shapes: str, dtype: str) -> Any:
    """Return the entry of the C++ program for a workload that contains its shape, or None."""
    listed = re.findall(r"(\d+)\s*[x×]\s*(\d+)\s*[x×]\s*(\d+)", shapes)
    contained = [(int(m), int(n), int(k)) for m, n, k in listed]
    for each in _programs()["cpp_loop"]["shapes"]:
        if (each["workload"], each["dtype"]) == (workload, dtype) and (each["m"], each["n"], each["k"]) in contained:
            return each
    return None


@cache
def _programs() -> Any:
    text = resources.files("launchopt.analysis.tables").joinpath(FILE).read_text(encoding="utf-8")
    return json.loads(text)


def _time(us: float) -> str:
    return f"{digits(us, 4)} us" if us >= 1 else f"{digits(1000 * us, 4)} ns"
