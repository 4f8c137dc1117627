"""Kineto traces for tests: functions that return one event, and one that writes a file of events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.paths import ROOT

Event = dict[str, Any]
TRACES = ROOT.parent / "shared/data/traces"


def call(ts: object, dur: object, correlation: object, name: str = "cudaLaunchKernel", **other: Any) -> Event:
    event = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
    return {**event, "args": {"correlation": correlation}, **other}


def kernel(ts: object, dur: object, correlation: object, stream: object = 7, device: int = 0, **other: Any) -> Event:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": device, "tid": stream, "ts": ts, "dur": dur}
    return {**event, "args": {"correlation": correlation, "stream": stream, "device": device}, **other}


def written(folder: Path, events: Sequence[Event], name: str = "trace.json", is_gzip: bool = False) -> Path:
    content = json.dumps({"schemaVersion": 1, "traceEvents": list(events), "traceName": "x"}).encode()
    return raw(folder, gzip.compress(content) if is_gzip else content, name)


def raw(folder: Path, content: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
