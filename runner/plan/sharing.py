"""What a job has shared with others that ran at the same time."""

from __future__ import annotations

from runner.plan import cores, gpus


def shares(device: str, since_s: float) -> str | None:
    """Return with whom this process has shared a device since a time; None if it was its own.

    device: "cpu" or "cuda", whose launches need cores, too. since_s: of `time.time`.
    """
    return (gpus.shares(since_s) if device == "cuda" else None) or cores.shares(since_s)
