"""A JSON file that somebody else may have written, of a size that fits into memory many times over.

In: a path. Out: what it holds. For traces, which may be gigabytes, there is `traces.json_stream`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20  # of manifests and calibrations: under 1 MiB


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The content; OSError as opening and reading raise it, ValueError for what is no JSON, too long or too deep."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"over {most_bytes >> 20} MiB")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
