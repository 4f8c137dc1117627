"""kernels/persistent.cu or echo.cu, run on the host (cuda_on_host) over the memory of devices/resident/kernel.py.

The kernels are built to report races between their threads (cuda_on_host/races.h).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.resident import ring as rl
from launchopt.devices.resident.ring import shape_words
from launchopt.kernels.shared import END, KernelState
from support.cuda_on_host import built, can_find_races, launch
from support.resident.resident_ring import OwnRing

T = TypeVar("T")
CALL = "{}(*(const Queue**)arguments)"
BLOCKS, GROUPS, GROUP_THREADS = 2, 2, 256  # a GPU's block has four groups
BITS, ENTRY_BITS, ENTRY_WORDS = 5, 6, 8  # small rings of commands and tiles, so that they wrap around
PATIENCE_NS, NEVER, PATIENCE_S = 0, 10**15, 60.0
NUMBERS = {Dtype.fp32: np.float32, Dtype.fp16: np.float16}
UNIT = {Dtype.fp32: 2.0**-22, Dtype.fp16: 2.0**-9}


class Resident:
    """The memory of the kernel `name`, laid out as devices/resident/kernel.py does on a GPU.

    direct_bytes: maximum size of weights that are not cut into tiles.
    """

    def __init__(
        self,
        dtype: Dtype,
        requests: int,
        direct_bytes: int,
        patience_ns: int = NEVER,
        name: str = "persistent",
    ) -> None:
        self.ring, capacity = OwnRing(BITS, requests), 1 << BITS
        self.control = np.zeros(2, np.int64)
        self.words = np.zeros(ENTRY_WORDS << ENTRY_BITS, np.uint64)
        self.done, self.rest = np.zeros(capacity, np.uint64), np.zeros(4, np.uint64)
        self.arrived, self.shapes = np.zeros(capacity, np.uint32), np.zeros((80, 8), np.int64)
        ticket = self.rest.ctypes.data
        arrays = (self.ring.words, self.ring.done, self.ring.outputs, self.control, self.words, self.done)
        addresses = [*(array.ctypes.data for array in arrays), ticket, ticket + 8, ticket + 16]
        addresses += [self.arrived.ctypes.data, self.shapes.ctypes.data]
        settings = [len(self.shapes), BITS, ENTRY_BITS, BLOCKS * GROUPS - 1, patience_ns, direct_bytes]
        self.queue = np.array(addresses + settings, np.int64)
        self.argument = np.array([self.queue.ctypes.data], np.int64)
        macros = {"DTYPE": int(dtype)}
        self.kernel = built(name, CALL.format(name), races=can_find_races(), **macros)

    def launch(self, seed: int, **limits: int) -> None:
        """Run the kernel until it ends."""
        size = (BLOCKS,), GROUPS * GROUP_THREADS, 0
        launch(self.kernel, *size, self.argument.ctypes.data, seed, at_once=BLOCKS, **limits)

    def end(self) -> None:
        self.ring.post(0, 0, 0, 0, END)

    def post_at_once(self, products: list[Product]) -> None:
        """Post commands so that the kernel sees none of them before all later ones."""
        ring, queue, first = self.ring, self.ring.queue, self.ring.posted
        aside, place = ring.words.copy(), int(queue[rl.QueueWord.RING])
        queue[rl.QueueWord.RING] = aside.ctypes.data
        for each in products:
            each.post(self)
        queue[rl.QueueWord.RING] = place
        for index in reversed(range(first, ring.posted)):
            ring.words[index % ring.capacity] = aside[index % ring.capacity]

    @property
    def handed_out(self) -> set[int]:
        """Return the commands whose tiles were given to workers, except those whose entries were reused."""
        words = self.words.reshape(-1, ENTRY_WORDS)
        return {int(word & np.uint64(0xFFFFFFFF)) for word in words[words.any(axis=1), 3]}

    def wait_for(self, count: int) -> None:
        """Wait until the host has been notified of the last `count` commands, at most a full ring."""
        until_s = time.monotonic() + PATIENCE_S
        while self.completed < min(count, self.ring.capacity):
            self._assert_it_goes_on(until_s)
            time.sleep(1e-4)

    def wait_for_completion(self, index: int) -> None:
        """Wait until the host has been notified that one of the last commands is complete."""
        until_s = time.monotonic() + PATIENCE_S
        while self.ring.done[index % self.ring.capacity] != index + 1:
            self._assert_it_goes_on(until_s)

    def wait_for_tile(self, index: int) -> None:
        """Wait until a tile of the command was handed out, whether or not a worker has taken it."""
        until_s = time.monotonic() + PATIENCE_S
        while index not in self.handed_out:
            self._assert_it_goes_on(until_s)

    def _assert_it_goes_on(self, until_s: float) -> None:
        assert time.monotonic() < until_s, "the kernel does not go on"
        assert self.ring.state[0] != KernelState.GAVE_UP, "the kernel has ended"

    @property
    def completed(self) -> int:
        """Return how many of the last commands, at most a full ring, the host has been notified of."""
        last = np.arange(max(0, self.ring.posted - self.ring.capacity), self.ring.posted)
        return int((self.ring.done[last % self.ring.capacity] == last + 1).sum())


@dataclass
class Product:
    """C = A B^T: the operands of one command."""

    number: int  # index of its shape in the kernel's table
    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any]

    def describe(self, resident: Resident) -> bool:
        """Write its shape into the table, before the kernel starts. Return whether A and B are swapped."""
        shape = ShapeKey(len(self.a), len(self.b), self.a.shape[1], DTYPES[self.a.dtype.type])
        words, swapped = shape_words(shape, (self.a.shape[1], self.b.shape[1], self.c.shape[1]))
        resident.shapes[self.number] = words
        return swapped

    def post(self, resident: Resident, request: int = 0) -> None:
        swapped = self.describe(resident)
        first, second = (self.b, self.a) if swapped else (self.a, self.b)
        places = (each.ctypes.data for each in (first, second, self.c))
        assert resident.ring.post(*places, request, self.number) == rl.OK

    def assert_right(self) -> None:
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        bound = UNIT[DTYPES[self.a.dtype.type]] * (np.abs(b) @ np.abs(a).T + 1.0)
        assert (np.abs(self.c - b @ a.T) <= bound).all()


DTYPES = {kind: dtype for dtype, kind in NUMBERS.items()}


def product(generator: np.random.Generator, number: int, dtype: Dtype) -> Product:
    """Return a product of random small size; some have fewer rows than columns. C is [n, m]."""
    m, n, k = int(generator.integers(1, 60)), int(generator.integers(1, 17)), int(generator.integers(1, 150))
    if number % 5 == 0:
        m, n = n, m
    if number % 3 == 0:
        n = 1
    if number % 2 == 0:
        k = k // 8 * 8 + 8
    a, b = (generator.standard_normal((rows, k)).astype(NUMBERS[dtype]) for rows in (m, n))
    return Product(number, a, b, np.full((n, m), np.nan, NUMBERS[dtype]))


def launched_while(resident: Resident, post: Callable[[], T]) -> T:
    """Run the kernel while another thread calls `post` and then posts END. Return the result of `post`."""

    def all_posted() -> T:
        try:
            return post()
        finally:
            resident.end()

    with ThreadPoolExecutor() as pool:
        posted = pool.submit(all_posted)
        try:
            resident.launch(1, most_turns=1 << 60)
        except RuntimeError:
            resident.ring.state[0] = KernelState.GAVE_UP  # otherwise the other thread would wait forever
            raise
        return posted.result()


def done_while_posted(resident: Resident, products: list[Product], begun: set[int]) -> None:
    """Post the products of two requests in turn; each in `begun` only after all earlier ones are complete."""

    def post() -> None:
        for i, each in enumerate(products):
            if i in begun:
                resident.wait_for(i)
            each.post(resident, i % 2)

    launched_while(resident, post)
    for each in products:
        each.assert_right()
