"""The ring of the persistent kernel in NumPy's memory, and a reader that replaces the GPU.

`resident.ring.post` writes to an `OwnRing`. A `Reader` takes commands in order. Like kernels/persistent.cu, it
recognises them only by the tags of their words. It completes them in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.resident import ring as rl
from launchopt.kernels.shared import COMMAND_WORDS, OUTPUT_WORDS, TAG_SHIFT

PAYLOAD = (1 << TAG_SHIFT) - 1


@dataclass(frozen=True)
class Posted:
    """A command as its words encode it. before: distance to the earlier command that it waits for; 0: none."""

    a: int
    b: int
    c: int
    shape: int
    before: int


class Reader:
    """The GPU's end of the ring: `words` uint64 [capacity, COMMAND_WORDS], `done` int64 [capacity]."""

    def __init__(self, words: NDArray[np.uint64], done: NDArray[np.int64], first: int = 0) -> None:
        self._words, self._done, self.next, self.capacity = words, done, first, len(words)

    def seen(self, index: int) -> list[bool]:
        """Return for each word of a command's slot whether its tag is that of the command."""
        tag = (index // len(self._words) + 1) & rl.TAG_MASK
        return [int(word) >> TAG_SHIFT == tag for word in self._words[index % len(self._words)]]

    def take(self) -> Posted | None:
        """Return the next command, or None if one of its words is missing."""
        if not all(self.seen(self.next)):
            return None
        a, b, c, last = (int(word) & PAYLOAD for word in self._words[self.next % len(self._words)])
        self.next += 1
        return Posted(a, b, c, last & 0xFFFF, last >> 16)

    def complete(self, index: int) -> None:
        """Notify the host that a command is complete."""
        self._done[index % len(self._done)] = index + 1


class OwnRing:
    """The arrays that `post` needs. first: number of commands already posted and complete."""

    def __init__(self, bits: int, requests: int = 0, first: int = 0) -> None:
        self.capacity, self.requests = 1 << bits, requests
        self.words = np.zeros((self.capacity, COMMAND_WORDS), np.uint64)
        self.done = np.zeros(self.capacity, np.int64)
        self.outputs = np.zeros((self.capacity, OUTPUT_WORDS), np.uint64)
        self.last = np.zeros(1 << max(0, requests - 1).bit_length(), np.int64)
        self.state, self.queue = np.zeros(1, np.int64), np.zeros(rl.QUEUE_WORDS, np.int64)
        for index in range(max(0, first - self.capacity), first):
            tag = (index // self.capacity + 1) & rl.TAG_MASK
            self.words[index % self.capacity] = tag << TAG_SHIFT | 7
            self.done[index % self.capacity] = index + 1
        addresses = [each.ctypes.data for each in (self.words, self.done, self.outputs, self.state)]
        self.queue[: rl.QueueWord.BITS] = [*addresses, self.last.ctypes.data if requests else 0]
        self.queue[rl.QueueWord.BITS :] = bits, first, len(self.last) - 1
        self.reader = Reader(self.words, self.done, first)

    @property
    def posted(self) -> int:
        """Return the number of commands posted."""
        return int(self.queue[rl.QueueWord.NEXT])

    @property
    def has_space(self) -> bool:
        """Return whether a post would not wait."""
        free = self.posted - self.capacity
        return free < 0 or int(self.done[free % self.capacity]) == free + 1

    def post(self, a: int, b: int, c: int, request: int, shape: int) -> int:
        """Post a command; wait while the ring is full."""
        return int(rl.post(self.queue.ctypes.data, a, b, c, request, shape))


def multiplied(words: list[int], weights: NDArray[Any], inputs: NDArray[Any], outputs: NDArray[Any]) -> None:
    """Compute C from flat operands in their own type, with a shape's words (struct Shape), as the kernel does."""
    rows, columns, k, row_elements, column_elements, row_step, column_step, _ = words
    r, j, e = np.arange(rows)[:, None], np.arange(columns)[:, None], np.arange(k)
    product = weights[r * row_elements + e] @ inputs[j * column_elements + e].T
    outputs[r * row_step + np.arange(columns) * column_step] = product
