"""Files of requests in the formats of Azure, Mooncake and this project's CSV, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from launchopt.arrivals.requests import Requests


def written(folder: Path, content: str | bytes) -> Path:
    """Write a file with this content, and return its path."""
    path = folder / "requests"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def columns(requests: Requests, graph: bool = False) -> list[tuple[int, ...]]:
    """Return lists of arrivals in ns, prompt tokens and output tokens; with `graph`, also the requests to wait for."""
    parts = [requests.arrival_ns, requests.context_tokens, requests.generated_tokens, requests.after]
    assert all(part.dtype == np.int64 and part.shape == (len(requests),) for part in parts)
    assert graph or requests.after.tolist() == [-1] * len(requests)
    return list(zip(*(part.tolist() for part in parts[: 3 + graph]), strict=True))
