"""Tokens made by hand: the times of requests, as a run gives them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.producing.production import Tokens

MS = 1_000_000
NEVER = 1 << 60

Requests = list[tuple[int, list[int]]]  # arrival of each request, and times at which its tokens were complete; ns


def made(requests: Requests, ids: list[int] | None = None) -> tuple[Tokens, NDArray[np.int64]]:
    done_ns = np.array([done for _, of_request in requests for done in of_request], np.int64)
    arrived_ns = np.array([arrived for arrived, _ in requests], np.int64)
    outputs = np.array([len(of_request) for _, of_request in requests], np.int64)
    all_ids = np.arange(len(done_ns)) if ids is None else np.array(ids, np.int64)
    return Tokens(arrived_ns, np.zeros_like(arrived_ns), done_ns - 1, done_ns, all_ids), outputs
