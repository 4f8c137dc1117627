"""CPU time inside launch calls: `host_submit_ns_per_launch` is a mean over `submits`, not over `launch_calls`.

`launch_calls` counts every API call, also those that copy tables or operands for a launch. Their time is within the
time of that launch. A resident kernel is launched once, and its commands are posted.
"""

from __future__ import annotations

from launchopt.recording.results import Row

_PACKING_CALLS = 2.01  # most API calls for a packed batch: one launch, and one call that packs for it


def submits(row: Row) -> float | None:
    """Return how many launches and posted commands a mean is over; for a file without the column, what follows."""
    if (known := row.get("submits")) is not None:
        return float(known)
    calls, batches = row.get("launch_calls"), row.get("batches")
    if calls is None or not batches:
        return calls
    is_packed = bool(row.get("packed_bytes")) and calls <= _PACKING_CALLS * batches
    is_one_a_batch = calls < batches or row.get("graph_replays") == batches or is_packed
    return float(batches if is_one_a_batch else calls)


def submit_ms(row: Row) -> float | None:
    """Return the time inside all launch calls of a repeat; None if it is not known."""
    count, mean_ns = submits(row), row.get("host_submit_ns_per_launch")
    return None if count is None or mean_ns is None else count * mean_ns / 1e6
