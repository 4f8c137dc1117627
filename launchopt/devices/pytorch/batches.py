"""Helpers for batches of independent GEMMs by torch.bmm: index tensors of their slots, and their evenly spaced runs.

Index tensors are uploaded from buffers in pinned memory, which are used in turn.
"""

from __future__ import annotations

import torch

from launchopt.batching.batch import Batch
from launchopt.command import as_records
from launchopt.devices.pytorch.views import Tensor, TorchArenas
from launchopt.devices.runs import run_end

# Pinned buffers, used in turn, and uploads per event. The host waits for an event before it reuses its buffers.
TURNS, TURNS_AN_EVENT = 64, 16
INDEX_BYTES_A_COMMAND = 3 * 8  # slots of A, B and C, int64


class Indices:
    """Slot numbers of A, B and C of up to `most` commands. device: int64 [3, most], the latest upload."""

    def __init__(self, arenas: TorchArenas, most: int) -> None:
        self._is_cuda = arenas.is_cuda
        self._pinned = torch.zeros((TURNS, 3, most), dtype=torch.int64, pin_memory=arenas.is_cuda)
        self._host = self._pinned.numpy()
        self.device: Tensor = torch.zeros((3, most), dtype=torch.int64, device=arenas.device)
        events = TURNS // TURNS_AN_EVENT if self._is_cuda else 0
        self._events = [torch.cuda.Event() for _ in range(events)]
        self._turn = 0

    def upload(self, batch: Batch, size: int) -> None:
        """Upload the slot numbers of a batch, padded to `size` commands with those of its first command."""
        turn, count = self._turn % TURNS, len(batch)
        if self._is_cuda and turn % TURNS_AN_EVENT == 0 and self._turn >= TURNS:
            self._events[turn // TURNS_AN_EVENT].synchronize()
        records = as_records(batch.words)
        staged = self._host[turn]
        for row, role in zip(staged, "abc", strict=True):
            row[:count] = records[f"slot_{role}"]
            row[count:size] = row[0]
        self.device.copy_(self._pinned[turn], non_blocking=True)
        self._turn += 1
        if self._is_cuda and self._turn % TURNS_AN_EVENT == 0:
            self._events[turn // TURNS_AN_EVENT].record()

    def close(self) -> None:
        """Release the buffers. The device's CUDA stream must still exist: PyTorch records an event on it.

        A second call does nothing.
        """
        self._pinned = torch.empty(0, dtype=torch.int64)
        self._host = self._pinned.numpy()
        self.device = torch.empty(0, dtype=torch.int64)
        self._events.clear()


def runs(batch: Batch, moves: tuple[int, int, int], most: int) -> list[slice]:
    """Return the evenly spaced runs of a batch; no run if there are more than `most`.

    moves: slots of A, B and C from one command of a run to the next.
    """
    found, first = list[slice](), 0
    while first < len(batch):
        if len(found) == most:
            return []
        stop = int(run_end(batch.words, first, *moves))
        found.append(slice(first, stop))
        first = stop
    return found


def spaced(stack: Tensor, slot: int, move: int, count: int) -> Tensor:
    """Return a view of `count` slots of a stack, [slots, rows, cols], from `slot` on, `move` slots apart."""
    return stack[slot : slot + move * (count - 1) + 1 : move] if move else stack[slot].expand(count, -1, -1)
