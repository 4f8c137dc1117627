"""What a mode is: the rule that turns batches into launches.

A mode is prepared once for a stream, then given work until the stream ends. Where its `bucket_limit` is 1,
commands are never held back: it gets whatever has arrived, in arrival order, through `submit_each`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from launchopt.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device


class Mode(Protocol):
    """An execution strategy."""

    name: ClassVar[str]
    summary: ClassVar[str]  # what one launch means
    bucket_limit: ClassVar[int | None]  # most commands a bucket may hold, None: what the user says
    compiled_loop: ClassVar[str | None]  # "commands" or "batches" where a device may run the whole loop compiled
    packable_bytes: Sequence[int]  # for each shape the bytes a packed command copies, 0 where packing never pays
    keeps_order: ClassVar[bool]  # each request's commands run in the order they were asked for

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan every launch that can come: `limits` says how many commands of a shape a batch can hold."""

    @staticmethod
    def scratch_bytes(limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Device memory wanted beside the arenas, told before anything is allocated."""

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Commands of any shapes, in arrival order (only where bucket_limit is 1)."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Commands of one shape."""

    def close(self) -> None:
        """Give back what `prepare` took."""
