"""Two sides of a comparison: rows and manifests of runs, with a given difference between them."""

from __future__ import annotations

import copy
from typing import Any

from launchopt.analysis.comparison.arms import Run, Side
from launchopt.recording.results import SUMMARY, Row

MANIFEST: dict[str, Any] = {
    "status": "ok",
    "config": {
        "workload": {"name": "decode", "tokens": 250, "path": "/data/one/trace.csv"},
        "model": {"name": "small_1024", "hidden": 1024},
        "mode": {"name": "batched", "streams": 4},
        "queue": {"capacity": 4096},
        "seed": 0,
        "repeats": 7,
    },
    "environment": {
        **{"platform": "Linux-6.18", "python": "3.12.3", "cores": 16, "git_revision": "a" * 40, "git_dirty": False},
        **{"packages": {"numpy": "2.5.2"}, "device": {"name": "NVIDIA H200"}},
    },
    "device_versions": {"cuda_driver": "13000", "cuda_runtime": "13020", "cublaslt": "130100", "driver": "580.159"},
}


def row(**columns: Any) -> Row:
    assert not columns.keys() - set(SUMMARY.names)
    plausible = {
        **{"run_id": "run/0", "workload": "decode", "device": "cuda", "gpu": "NVIDIA H200", "dtype": "fp16"},
        **{"commands": 8000, "cache": "cold", "arrival": "closed", "shapes": "1024x1x1024", "requests": 1, "layers": 8},
        **{"ordering": "per_request", "max_batch": 64, "timeout_us": 300.0, "input_footprint_bytes": 2**20},
        **{"traced": False, "interleaved": True, "verified": True, "status": "ok", "mode": "baseline", "repeat": 0},
    }
    return {**dict.fromkeys(SUMMARY.names), **plausible, **columns}


def repeats(*wall_ms: float, processes: int = 1, **columns: Any) -> list[Row]:
    """Return a row for each time. The first times are of process 0, the last ones of the last process."""
    rates = [{"wall_ms": wall, "commands_per_s": 8e6 / wall} for wall in wall_ms]
    places = [{"repeat": at, "process": at * processes // len(wall_ms)} for at in range(len(wall_ms))]
    return [row(**place, **rate, **columns) for place, rate in zip(places, rates, strict=True)]


def run(rows: list[Row], place: str = "0", identity: str = "run", **changes: Any) -> Run:
    """Return a run whose manifest has `changes`; `a__b=1` sets key b of the dict at key a."""
    manifest = copy.deepcopy(MANIFEST)
    for path, value in changes.items():
        *above, last = path.split("__")
        inner = manifest
        for key in above:
            inner = inner[key]
        inner[last] = value
    return Run(place, identity, rows, manifest)


def sides(ours: list[Row], theirs: list[Row], **changes: Any) -> tuple[Side, Side]:
    """Return two runs. The second one has `changes`."""
    return Side("old", None, [run(ours, identity="old")]), Side("new", None, [run(theirs, identity="new", **changes)])


def in_turn(a: list[Row], b: list[Row]) -> tuple[Side, Side]:
    """Return two modes of one run as the two sides."""
    both = run([*a, *b])
    return Side("run:baseline", "baseline", [both]), Side(f"run:{b[0]['mode']}", b[0]["mode"], [both])


NINE = (10.0, 10.01, 9.99, 10.02, 9.98, 10.0, 10.01, 9.99, 10.0)
