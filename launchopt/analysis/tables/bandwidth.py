"""Memory bandwidth of a run: the bytes that had to move, as a share of the bandwidth that the run measured.

In: rows of summary.parquet. A weight that requests share counts once for those that run together: all of them in a
closed loop, at most those of a mean batch in an open one. Files of version 0.1 do not have the bytes of weights; then
all bytes count as weights. Inputs in a hot cache give no bandwidth. Where the measured bandwidth changed during a run,
its rows have none, and so no share of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from launchopt.recording.impossible import MOST_CHANGE
from launchopt.recording.results import Row


def requests_together(row: Row) -> float:
    """Return the number of requests that share one read of a weight; 1 if every command has its own."""
    requests = 1.0 if row["tokens"] is None else float(row["requests"] or 1)
    batch = requests if row["arrival"] == "closed" else float(row["batch_size_mean"] or 1)
    return max(1.0, min(requests, batch))


def bytes_share(row: Row, together: float) -> float:
    """Return the share of `bytes_moved` that really moves if `together` requests share each read of a weight."""
    weights, moved = row["weight_bytes"], row["bytes_moved"]
    of_weights = 1.0 if weights is None or not moved else weights / moved
    return float(1.0 - of_weights + of_weights / together)


def peak_gb_per_s(row: Row) -> float | None:
    """Return the larger of the bandwidths that the run measured, read and copy."""
    return max((row[name] for name in ("read_gb_per_s", "copy_gb_per_s") if row[name]), default=None)


def needed_gb_per_s(row: Row) -> float | None:
    """Return the rate of the bytes that had to move, from memory or from a cache; None if it was not measured."""
    rate = row["achieved_gb_per_s"]
    return None if rate is None else float(rate) * bytes_share(row, requests_together(row))


def memory_gb_per_s(row: Row) -> float | None:
    """Return `needed_gb_per_s`; None for inputs in a cache, which do not come from memory."""
    return None if row["cache"] == "hot" else needed_gb_per_s(row)


def needed_share(row: Row) -> float | None:
    """Return `needed_gb_per_s` as a share of the measured peak; None if one of them is unknown."""
    rate, peak = needed_gb_per_s(row), peak_gb_per_s(row)
    return None if rate is None or peak is None else rate / peak


def memory_share(row: Row) -> float | None:
    """Return `needed_share`; None for inputs in a cache, which do not come from memory."""
    return None if row["cache"] == "hot" else needed_share(row)


def unsteady(rows: Iterable[Row]) -> str | None:
    """Return why rows are not compared with a ceiling: it changed during their run. None if no ceiling did."""
    change = max((row["ceilings_change"] or 0.0 for row in rows), default=0.0)
    if change <= MOST_CHANGE:
        return None
    return (
        f"memory bandwidth changed by {100 * change:.0f}% during the runs (another process?),"
        " so no share of the peak is shown"
    )
