"""All-reduce and gather between processes of the CPU device, in shared memory.

Each rank's activations are in shared memory, so its part needs no copy. A rank announces with a release store of
ARRIVED that its part is complete, waits until all have arrived, and reads every part. It puts them side by side, or
adds them in fp32 in the order of the ranks. So all ranks get the same bits.

No second barrier is needed: a rank writes a part to the same place again only after a later exchange, at which the
others arrive when they have read this one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from launchopt.command import Dtype, Op
from launchopt.devices.arenas import STORAGE, from_float32, to_float32
from launchopt.devices.peers.segment import Collectives, PeerSegment, PeerWord, Team
from launchopt.errors import Interrupted, RunError
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns, store_release
from launchopt.queue.ring import POLLS
from launchopt.types import Array, Int, Words

PLACE_BITS = np.uint64(24)  # bits of WHAT that hold the size


@compiled
def _arrive(words: Words, row: Int, number: np.uint64, what: np.uint64) -> None:
    """Announce that a part is in memory. what: its place and size."""
    words[row, PeerWord.WHAT + np.intp(number & np.uint64(1))] = what
    store_release(words, (row, PeerWord.ARRIVED), number)


@compiled
def _await_all(words: Words, number: np.uint64, spin_ns: Int) -> bool:
    """Spin until all ranks have arrived at exchange `number`; return False if `spin_ns` passed first."""
    until_ns, row = monotonic_ns() + spin_ns, 1
    while True:
        for _ in range(POLLS):
            while row < len(words) and load_acquire(words, (row, PeerWord.ARRIVED)) >= number:
                row += 1
            if row == len(words):
                return True
            cpu_pause()
        if monotonic_ns() >= until_ns:
            return False


def name_of(op: Op) -> str:
    """Return the name of a collective in messages: all-reduce, all-gather."""
    return op.name.lower().replace("_", "-")


class HostPeers:
    """The exchanges of one rank. elements: those of a rank's activations."""

    def __init__(self, team: Team, dtype: Dtype, elements: int) -> None:
        storage, self._dtype, self._team = np.dtype(STORAGE[dtype]), dtype, team
        self._segment = PeerSegment.attach(team.segment, team.size, elements * storage.itemsize)
        self.activations = [self._segment.memory(rank).view(storage) for rank in range(team.size)]
        self._base = self.activations[team.rank].__array_interface__["data"][0]
        self._number = int(self._segment.words[team.rank + 1, PeerWord.ARRIVED])
        self._spin_ns, self._sleep_s = int(team.spin_us * 1e3), team.sleep_us * 1e-6
        _await_all(self._segment.words, np.uint64(0), 0)  # loads the compiled loop
        self.reset()

    @property
    def own(self) -> Array:
        """The activations of this rank, [elements]."""
        return self.activations[self._team.rank]

    @property
    def others(self) -> list[Array]:
        """The activations of the other ranks."""
        return [each for rank, each in enumerate(self.activations) if rank != self._team.rank]

    def reset(self) -> None:
        """Begin a run: set its counts to 0."""
        self._count = self._total_ns = self._wait_ns = 0

    def collectives(self) -> Collectives:
        """Return the all-reduces of this run."""
        return Collectives(self._count, self._total_ns, self._wait_ns)

    def exchange(self, op: Op, operands: Sequence[tuple[Array, Array]]) -> None:
        """Write the sum over all ranks of each B to its C, or those B side by side: one exchange for several commands.

        op: ALL_REDUCE or ALL_GATHER.
        operands: (B, C) of the commands, each [..., rows, features] and a view of this rank's activations.
        """
        start_ns, self._number = time.monotonic_ns(), self._number + 1
        places = [b.__array_interface__["data"][0] - self._base for b, _ in operands]
        what = np.uint64(places[0]) << PLACE_BITS | np.uint64(sum(b.size for b, _ in operands))
        _arrive(self._segment.words, self._team.rank + 1, np.uint64(self._number), what)
        while not _await_all(self._segment.words, np.uint64(self._number), self._spin_ns):
            if self._segment.words[0, PeerWord.STOP]:
                raise Interrupted(f"stopped while an {name_of(op)} waited for the other ranks")
            time.sleep(self._sleep_s)
        waited_ns = time.monotonic_ns()
        self._compare(op)
        for (b, c), place in zip(operands, places, strict=True):
            parts = [np.ndarray(b.shape, b.dtype, each, place, b.strides) for each in self.activations]
            if op is Op.ALL_GATHER:
                np.concatenate(parts, axis=-1, out=c)
                continue
            total = np.zeros(b.shape, np.float32)
            for part in parts:
                total += to_float32(part, self._dtype)
            c[:] = from_float32(total, self._dtype)
        if op is Op.ALL_REDUCE:
            self._count += 1
            self._wait_ns += waited_ns - start_ns
            self._total_ns += time.monotonic_ns() - start_ns

    def _compare(self, op: Op) -> None:
        """Raise RunError unless all ranks have arrived with parts of the same commands."""
        what = self._segment.words[1:, PeerWord.WHAT + (self._number & 1)]
        if (what != what[0]).any():
            raise RunError(f"{name_of(op)} {self._number}: the ranks execute different commands ({what.tolist()})")

    def close(self) -> None:
        """Detach from the shared memory."""
        self.activations = []
        self._segment.release()
