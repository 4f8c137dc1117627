"""kernels/persistent.cu itself on the host (cuda_on_host): products, order, laps of its rings, what follows an END.

Its threads do nothing to the same memory without an order (cuda_on_host/races.h).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cuda_on_host import built, can_build, can_find_races, launch
from numpy.typing import NDArray
from resident_ring import OwnRing

from launchopt.command import Dtype, ShapeKey
from launchopt.devices import resident_loops as rl
from launchopt.devices.resident_shapes import shape_words

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = "persistent(*(const Queue**)arguments)"
BLOCKS, GROUPS, GROUP_THREADS = 2, 2, 256  # a block has four groups on a GPU
BITS, ENTRY_BITS, ENTRY_WORDS = 5, 6, 8  # rings of few commands, and tiles, so that there are laps
PATIENCE_NS, NEVER, PATIENCE_S = 0, 10**15, 60.0
NUMBERS = {Dtype.fp32: np.float32, Dtype.fp16: np.float16}
UNIT = {Dtype.fp32: 2.0**-22, Dtype.fp16: 2.0**-9}


class Resident:
    """The kernel's memory, as devices/resident.py makes it on a GPU. `direct_bytes`: of weights that are not cut."""

    def __init__(self, dtype: Dtype, requests: int, direct_bytes: int, patience_ns: int = NEVER) -> None:
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
        self.kernel = built("persistent", CALL, races=can_find_races(), DTYPE=int(dtype), NEAR=1)

    def launch(self, seed: int, **limits: int) -> None:
        """Until the kernel ends."""
        size = (BLOCKS,), GROUPS * GROUP_THREADS, 0
        launch(self.kernel, *size, self.argument.ctypes.data, seed, at_once=BLOCKS, **limits)

    def end(self) -> None:
        self.ring.post(0, 0, 0, 0, rl.END)

    def wait_for(self, count: int) -> None:
        """Until the host has been told of the last `count`, or all that the ring holds."""
        until_s = time.monotonic() + PATIENCE_S
        while self.completed < min(count, self.ring.capacity):
            assert time.monotonic() < until_s, "the kernel has ended, or does not go on"
            time.sleep(1e-4)

    def wait_for_tile(self, index: int) -> None:
        """Until a command was handed out, whether a worker has taken it or not."""
        until_s = time.monotonic() + PATIENCE_S
        while index not in (self.words.reshape(-1, ENTRY_WORDS)[:, 3] & np.uint64(0xFFFFFFFF)) or not self.words.any():
            assert time.monotonic() < until_s, "the kernel has ended, or does not go on"

    @property
    def completed(self) -> int:
        """How many of the last commands, up to the ring's capacity, the host has been told of."""
        told = self.ring.done[np.arange(self.ring.posted) % self.ring.capacity]
        return int((told == np.arange(self.ring.posted) + 1).sum())


@dataclass
class Product:
    """C = A B^T; the arrays are a command's operands."""

    number: int  # of its shape
    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any]

    def describe(self, resident: Resident) -> bool:
        """Its shape, before the kernel begins; whether A and B change places."""
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
    """Of any small size; now and then there are fewer rows than columns. C is [n, m]."""
    m, n, k = int(generator.integers(1, 60)), int(generator.integers(1, 17)), int(generator.integers(1, 150))
    if number % 5 == 0:
        m, n = n, m
    if number % 3 == 0:
        n = 1
    if number % 2 == 0:
        k = k // 8 * 8 + 8
    a, b = (generator.standard_normal((rows, k)).astype(NUMBERS[dtype]) for rows in (m, n))
    return Product(number, a, b, np.full((n, m), np.nan, NUMBERS[dtype]))


@pytest.mark.parametrize("direct_bytes", [0, 64 << 10])
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_products_whatever_is_in_the_ring_already(dtype: Dtype, direct_bytes: int) -> None:
    """Each kernel ends at its own END, though what the next ones are to do follows it. Commands come in any number."""
    generator = np.random.default_rng([dtype, direct_bytes])
    resident = Resident(dtype, 0, direct_bytes)
    number = 0
    for lap, counts in enumerate([(1, 9, 2, 4), (3, 0, 21), (12, 1, 1, 1, 1)]):
        parts = []
        for count in counts:
            parts.append([product(generator, number + i, dtype) for i in range(count)])
            number += count
            for each in parts[-1]:
                each.post(resident)
            resident.end()
        posted = resident.ring.posted
        for i, part in enumerate(parts):
            resident.launch(100 * lap + i)
            for each in part:
                each.assert_right()
            assert all(np.isnan(each.c).all() for later in parts[i + 1 :] for each in later)
            assert int(resident.control[0]) == rl.ENDED
        assert resident.ring.posted == posted
        assert resident.completed == min(posted, resident.ring.capacity)


@pytest.mark.parametrize("direct_bytes", [0, 64 << 10])
def test_a_request_s_commands_follow_one_another(direct_bytes: int) -> None:
    """What one gives the next one reads: two requests, whose commands come in turn."""
    generator = np.random.default_rng(direct_bytes)
    resident = Resident(Dtype.fp32, 2, direct_bytes)
    size, steps = 24, 6
    values = [[generator.standard_normal((1, size)).astype(np.float32)] for _ in range(2)]
    weights = [generator.standard_normal((size, size)).astype(np.float32) / 5 for _ in range(steps)]
    products = []
    for step in range(steps):
        for request in range(2):
            values[request].append(np.full((1, size), np.nan, np.float32))
            products.append(Product(0, weights[step], *values[request][-2:]))
            products[-1].post(resident, request)
    resident.end()
    resident.launch(1)
    for each in products:
        each.assert_right()


def done_while_posted(resident: Resident, products: list[Product], begun: set[int]) -> None:
    """Of two requests in turn; each of `begun` when all before it are complete."""

    def post() -> None:
        for i, each in enumerate(products):
            if i in begun:
                resident.wait_for(i)
            each.post(resident, i % 2)
        resident.end()

    with ThreadPoolExecutor() as pool:
        posted = pool.submit(post)
        resident.launch(1, most_turns=1 << 60)
        posted.result()
    for each in products:
        each.assert_right()


@pytest.mark.parametrize("direct_bytes", [0, 64 << 10])
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_commands_that_come_while_it_runs(dtype: Dtype, direct_bytes: int) -> None:
    """Lone ones, each posted once the last one is complete, and some at once; two requests' in order."""
    generator = np.random.default_rng([dtype, direct_bytes])
    resident = Resident(dtype, 2, direct_bytes)
    products = [product(generator, number, dtype) for number in range(24)]
    for each in products:
        each.describe(resident)

    done_while_posted(resident, products, {*range(12), *range(12, 24, 6)})
    assert int(resident.control[0]) == rl.ENDED
    assert resident.completed == len(products) + 1


@pytest.mark.parametrize("rows", [3, 20])
def test_lone_commands_between_many(rows: int) -> None:
    """A poll of many finds none, then comes a lone one, which the dispatcher's warp does, or its group; then many."""
    generator = np.random.default_rng(5)
    resident = Resident(Dtype.fp32, 0, 64 << 10)
    products, begun = list[Product](), set[int]()
    for count in (8, 1, 8, 1, 12, 1, 8, 8):
        begun.add(len(products))
        a, b = (generator.standard_normal((size, 8)).astype(np.float32) for size in (rows, 1))
        products += [Product(0, a, b, np.full((1, rows), np.nan, np.float32)) for _ in range(count)]
    products[0].describe(resident)

    done_while_posted(resident, products, begun)


def sent(resident: Resident, index: int, rows: int) -> NDArray[np.float32] | None:
    """What the host was sent of a command, once it was, or is known not to be."""
    found = rl.await_outputs(resident.ring.queue.ctypes.data, index, rows)
    words = resident.ring.outputs[index % resident.ring.capacity, :rows] & np.uint64(rl.STAMP_MASK)
    return {rl.OK: words.astype(np.uint32).view(np.float32), rl.COMPLETE: None}[found]


def one_by_one(resident: Resident, products: list[Product], requests: int) -> list[NDArray[np.float32] | None]:
    """Each posted when the host has been sent the last one's outputs, or it is complete: what it was sent."""

    def post() -> list[NDArray[np.float32] | None]:
        found = []
        for i, each in enumerate(products):
            each.post(resident, i % requests)
            found.append(sent(resident, i, min(each.c.size, rl.OUTPUT_WORDS)))
        resident.end()
        return found

    for each in products:
        each.describe(resident)
    with ThreadPoolExecutor() as pool:
        posted = pool.submit(post)
        resident.launch(1, most_turns=1 << 60)
        return posted.result()


# Rows, columns and k of what one warp does, and of what takes more: more rows, or k, or columns, and no whole vectors.
ALONE = [(1, 1, 8), (2, 1, 64), (3, 1, 16), (7, 1, 40), (15, 1, 64), (16, 1, 8), (16, 1, 64), (11, 1, 56)]
MORE = [(17, 1, 64), (16, 1, 520), (5, 2, 16), (4, 1, 7)]


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_the_host_is_sent_what_a_small_lone_command_gives(dtype: Dtype) -> None:
    """And nothing of others; in every order of shapes, with more commands than the ring holds."""
    generator = np.random.default_rng(dtype)
    resident, shapes = Resident(dtype, 0, 64 << 10), ALONE + MORE
    numbers = [number for number in range(len(shapes)) for _ in range(4)]
    generator.shuffle(numbers)
    products = []
    for number in numbers:
        rows, columns, k = shapes[number]
        a, b = (generator.standard_normal((size, k)).astype(NUMBERS[dtype]) for size in (rows, columns))
        products.append(Product(number, a, b, np.full((columns, rows), np.nan, NUMBERS[dtype])))
    found = one_by_one(resident, products, 1)
    for number, each, values in zip(numbers, products, found, strict=True):
        each.assert_right()
        assert (values is None) == (number >= len(ALONE))
        assert values is None or np.array_equal(values, each.c[0].astype(np.float32))


@pytest.mark.parametrize("requests", [1, 2])
def test_who_follows_waits_until_what_was_sent_is_in_memory(requests: int) -> None:
    """Small ones, each of which reads what the last one of its request gave, and is posted when that was sent."""
    generator = np.random.default_rng(requests)
    resident, size = Resident(Dtype.fp32, requests, 64 << 10), 16
    weights = generator.standard_normal((size, size)).astype(np.float32) / 4
    last = [generator.standard_normal((1, size)).astype(np.float32) for _ in range(requests)]
    products = []
    for i in range(40):
        products.append(Product(0, weights, last[i % requests], np.full((1, size), np.nan, np.float32)))
        last[i % requests] = products[-1].c
    one_by_one(resident, products, requests)
    for each in products:
        each.assert_right()


@pytest.mark.parametrize("complete", [False, True])
def test_a_small_one_waits_for_what_workers_do(complete: bool) -> None:
    """It comes alone, when the one it reads from was handed out, or is complete."""
    generator = np.random.default_rng(3)
    resident, size, pairs = Resident(Dtype.fp32, 1, 4 << 10), 64, 6
    large, small = (generator.standard_normal((rows, size)).astype(np.float32) / 8 for rows in (size, 16))
    products = []
    for _ in range(pairs):
        given = generator.standard_normal((1, size)).astype(np.float32)
        products.append(Product(0, large, given, np.full((1, size), np.nan, np.float32)))
        products.append(Product(1, small, products[-1].c, np.full((1, 16), np.nan, np.float32)))
    for each in products[:2]:
        each.describe(resident)

    def post() -> None:
        for i, each in enumerate(products):
            if complete or i % 2 == 0:
                resident.wait_for(i)
            else:
                resident.wait_for_tile(i - 1)
            each.post(resident)
        resident.end()

    with ThreadPoolExecutor() as pool:
        posted = pool.submit(post)
        resident.launch(1, most_turns=1 << 60)
        posted.result()
    for each in products:
        each.assert_right()


def test_it_gives_up_where_nothing_comes() -> None:
    resident = Resident(Dtype.fp32, 0, 0, PATIENCE_NS)
    resident.launch(1)
    assert int(resident.control[0]) == rl.GAVE_UP
