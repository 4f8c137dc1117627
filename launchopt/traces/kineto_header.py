"""Read what PyTorch's profiler writes before the events of a trace.

That is the rank of its process, and the time from which the times of events count.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import ijson

from launchopt.errors import DataError
from launchopt.traces.chrome_events import whole
from launchopt.traces.events import LATEST_NS, Job
from launchopt.traces.json_stream import CHUNK_BYTES, JsonStream

RANK_MAX = 2**31 - 1
_RANK, _SIZE, _BASE = "distributedInfo.rank", "distributedInfo.world_size", "baseTimeNanoseconds"


class Header(NamedTuple):
    """base_ns: time since 1970 from which the times of the events count; 0 if the file does not say."""

    job: Job | None
    base_ns: int


def read_header(path: Path) -> Header:
    """Return the header of the JSON trace at `path`, as far as it can be read."""
    found: dict[str, object] = {}
    try:
        with JsonStream(path) as stream:
            if not stream.is_array:
                for prefix, event, value in ijson.parse(stream, buf_size=CHUNK_BYTES):
                    if event == "start_array" and prefix == "traceEvents":
                        break
                    if prefix in (_RANK, _SIZE, _BASE):
                        found[prefix] = value
    except (ijson.JSONError, DataError, ArithmeticError, ValueError):
        pass  # the reader of the events names the fault
    rank, size = (whole(found.get(name), RANK_MAX) for name in (_RANK, _SIZE))
    return Header(Job(rank, size) if 0 <= rank < size else None, max(0, whole(found.get(_BASE), LATEST_NS - 1)))
