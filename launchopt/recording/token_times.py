"""From what became of every token to the token columns of summary.parquet and to tokens.parquet.

Time to first token is measured from a request's arrival; time per output token is the mean of a request's further
tokens. Goodput counts the requests that met every objective that was given, over the time to the last result.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from launchopt.producing.driver import Tokens
from launchopt.recording.summary import distribution
from launchopt.statistics.histogram import LogHistogram

BACKLOG_SHARE = 0.1  # of the second half's arrivals: more of them left over than this, and the rate was not held


def token_columns(
    tokens: Tokens,
    outputs: NDArray[np.int64],
    wall_ms: float,
    ttft_ms: float | None,
    tpot_ms: float | None,
    is_sampled: bool,
) -> tuple[dict[str, Any], dict[str, LogHistogram]]:
    """Columns of one repeat; `outputs`: tokens of each request. And the histograms behind them."""
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
    row: dict[str, Any] = {
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
    """The same for the same ids, in order of request and token."""
    return hashlib.sha256(tokens.ids.astype("<i8").tobytes()).hexdigest()[:16]


def completed_rate(tokens: Tokens, outputs: NDArray[np.int64]) -> tuple[float, bool]:
    """Requests finished a second while they arrived, and whether that was too few.

    Over the second half of the time in which requests arrive, when the system is as full as it gets: requests finished
    in it by its length. Too few when, at its end, more requests are under way than ever were before it (a burst may be
    the last to come), by over a tenth of those that came. Without such a time (all arrived at once) over the whole run,
    and never too few.
    """
    done_ns = np.sort(tokens.done_ns[np.cumsum(outputs) - 1])
    arrived_ns = np.sort(tokens.arrived_ns)
    end_ns = int(arrived_ns[-1])
    start_ns = (int(arrived_ns[0]) + end_ns) // 2
    if end_ns <= start_ns:
        return len(done_ns) / (int(done_ns[-1]) * 1e-9), False
    finished = int(np.count_nonzero((done_ns > start_ns) & (done_ns <= end_ns)))
    under_way = np.arange(1, len(arrived_ns) + 1) - np.searchsorted(done_ns, arrived_ns, "right")
    before = int(np.count_nonzero(arrived_ns <= start_ns))
    came, most = len(arrived_ns) - before, int(under_way[:before].max(initial=0))
    growth = int(under_way[-1]) - most
    return finished / ((end_ns - start_ns) * 1e-9), growth > max(1.0, BACKLOG_SHARE * came)


def token_table(tokens: Tokens, outputs: NDArray[np.int64], is_sampled: bool) -> dict[str, Any]:
    """Columns of tokens.parquet, less those that name the run."""
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
