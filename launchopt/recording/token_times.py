"""Compute the token columns of summary.parquet, and tokens.parquet, from the times of every token.

Time to first token (TTFT) is the time from a request's arrival to its first token. Time per output token (TPOT) is the
mean time between the further tokens of a request. Goodput is the number of requests that met every given objective,
divided by the wall time of the run.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from launchopt.producing.production import Tokens
from launchopt.recording.columns import Columns, Row
from launchopt.recording.summary import distribution
from launchopt.statistics.histogram import LogHistogram


def token_columns(
    tokens: Tokens,
    outputs: NDArray[np.int64],
    wall_ms: float,
    ttft_ms: float | None,
    tpot_ms: float | None,
    is_sampled: bool,
) -> tuple[Row, dict[str, LogHistogram]]:
    """Return the columns of one repeat, and the histograms of TTFT and TPOT.

    outputs: int64 [requests], output tokens of each request. ttft_ms, tpot_ms: objectives, or None.
    """
    first = np.concatenate([[0], np.cumsum(outputs)[:-1]])
    ttft_ns = tokens.done_ns[first] - tokens.arrived_ns
    several = outputs > 1
    last = first + outputs - 1
    tpot_ns = (tokens.done_ns[last] - tokens.done_ns[first])[several] // (outputs[several] - 1)
    histograms = {"ttft": LogHistogram(), "tpot": LogHistogram()}
    histograms["ttft"].add(ttft_ns)
    histograms["tpot"].add(tpot_ns)
    good = np.ones(len(outputs), bool)
    if ttft_ms is not None:
        good &= ttft_ns <= ttft_ms * 1e6
    if tpot_ms is not None:
        good[several] &= tpot_ns <= tpot_ms * 1e6
    has_objective = ttft_ms is not None or tpot_ms is not None
    row: Row = {
        "tokens": len(tokens.done_ns),
        "tokens_per_s": len(tokens.done_ns) / wall_ms * 1e3,
        "token_hash": token_hash(tokens) if is_sampled else None,
        "slo_ttft_ms": ttft_ms,
        "slo_tpot_ms": tpot_ms,
        "goodput_per_s": int(good.sum()) / wall_ms * 1e3 if has_objective else None,
    }
    for name, histogram in histograms.items():
        row |= distribution(name, "ms", histogram)
    return row, histograms


def token_hash(tokens: Tokens) -> str:
    """Return a hash of all token ids, in order of request and token."""
    return hashlib.sha256(tokens.ids.astype("<i8").tobytes()).hexdigest()[:16]


def token_table(tokens: Tokens, outputs: NDArray[np.int64], is_sampled: bool) -> Columns:
    """Return the columns of tokens.parquet except those that name the run."""
    requests = np.repeat(np.arange(len(outputs)), outputs)
    first = np.concatenate([[0], np.cumsum(outputs)[:-1]])
    return {
        "request": requests,
        "token": np.arange(len(requests)) - first[requests],
        "arrival_ns": tokens.arrived_ns[requests],
        "issue_ns": tokens.issue_ns,
        "done_ns": tokens.done_ns,
        "token_id": pa.array(tokens.ids, mask=np.full(len(requests), not is_sampled)),
    }
