"""The cores, or the GPU, that a job has of its own, and whether it shared them with other jobs."""

from __future__ import annotations

import time

from runner.plan import cores, gpus


def shares(device: str, since_s: float) -> str | None:
    """Return with whom this process has shared a device since a time; None if it was its own.

    device: "cpu" or "cuda", whose launches need cores, too. since_s: of `time.time`.
    """
    return (gpus.shares(since_s) if device == "cuda" else None) or cores.shares(since_s)


def held(device: str) -> str | None:
    """Return the uuid of the GPU, or the cores, that this process has of its own; None if it locked none."""
    if device == "cuda":
        return gpus.own()
    own = cores.own()
    return f"cores {','.join(map(str, own))}" if own else None


class Sharing:
    """With whom this process shares a device from now on. device: as for `shares`.

    It looks now, too: a job that began before may end before the last look.
    """

    def __init__(self, device: str) -> None:
        self._device, self._began_s = device, time.time()
        self._found = shares(device, self._began_s)

    def so_far(self) -> str | None:
        """Return with whom; None if the device was this process's own."""
        self._found = self._found or shares(self._device, self._began_s)
        return self._found
