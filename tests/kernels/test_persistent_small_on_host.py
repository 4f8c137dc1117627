"""Small lone commands of kernels/persistent.cu on the host (resident_rig): the outputs that it sends to the host."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import can_build
from support.resident.resident_rig import NUMBERS, Product, Resident, launched_while

from launchopt.command import Dtype
from launchopt.devices.resident import ring as rl
from launchopt.kernels.shared import OUTPUT_WORDS

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")
NEAR_SHAPES = 64  # of kernels/persistent/queue.cuh


def sent(resident: Resident, index: int, rows: int) -> NDArray[np.float32] | None:
    """Return the outputs of a command that the host was sent; None if it is sent none."""
    found = rl.await_outputs(resident.ring.queue.ctypes.data, index, rows)
    words = resident.ring.outputs[index % resident.ring.capacity, :rows]
    return {rl.OK: rl.values_of(words), rl.COMPLETE: None}[found]


def one_by_one(resident: Resident, products: list[Product], requests: int) -> list[NDArray[np.float32] | None]:
    """Post each product after the last one's outputs were sent, or it is complete. Return the sent outputs."""

    def post() -> list[NDArray[np.float32] | None]:
        found = []
        for i, each in enumerate(products):
            each.post(resident, i % requests)
            found.append(sent(resident, i, min(each.c.size, OUTPUT_WORDS)))
        return found

    for each in products:
        each.describe(resident)
    return launched_while(resident, post)


# (rows, columns, k) of commands that one warp runs, and of others: many rows or columns, a large k, partial vectors.
ALONE = [(1, 1, 8), (2, 1, 64), (3, 1, 16), (7, 1, 40), (15, 1, 64), (16, 1, 8), (16, 1, 64), (11, 1, 56)]
MORE = [(17, 1, 64), (16, 1, 520), (5, 2, 16), (4, 1, 7)]


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_outputs_of_a_small_lone_command_are_sent(dtype: Dtype) -> None:
    """The host gets no outputs of other commands. Shapes follow in every order. The ring wraps around."""
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


@pytest.mark.parametrize("number", [31, 32, 63, 64, 79])
def test_outputs_of_near_shapes_are_sent(number: int) -> None:
    """The kernel prepares near shapes before the first command arrives. It hands out commands of other shapes."""
    generator = np.random.default_rng(number)
    a, b = (generator.standard_normal((rows, 16)).astype(np.float32) for rows in (16, 1))
    each = Product(number, a, b, np.full((1, 16), np.nan, np.float32))
    found = one_by_one(Resident(Dtype.fp32, 0, 64 << 10), [each], 1)
    each.assert_right()
    assert (found[0] is None) == (number >= NEAR_SHAPES)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_command_waits_until_sent_outputs_are_in_memory(requests: int) -> None:
    """Each small command reads the output of its request's last one, and is posted when that output was sent."""
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


def test_commands_in_quick_succession_are_handed_out() -> None:
    """If several commands arrive while the warp runs one, it returns to the poll that sees all of them."""
    generator = np.random.default_rng(5)
    resident, size, rounds, some = Resident(Dtype.fp32, 1, 64 << 10), 16, 3, 12
    a, b = (generator.standard_normal((rows, size)).astype(np.float32) for rows in (size, 1))
    products = [Product(0, a, b, np.full((1, size), np.nan, np.float32)) for _ in range(rounds * (2 + some))]
    products[0].describe(resident)

    def post() -> list[set[int]]:
        handed_out = []
        for first in range(0, len(products), 2 + some):
            resident.wait_for(first)
            for i in (first, first + 1):
                products[i].post(resident)
                assert sent(resident, i, size) is not None
            resident.post_at_once(products[first + 2 : first + 2 + some])
            resident.wait_for(first + 2 + some)
            handed_out.append(resident.handed_out & set(range(first + 2, first + 2 + some)))
        return handed_out

    assert all(launched_while(resident, post))
    for each in products:
        each.assert_right()


@pytest.mark.parametrize("complete", [False, True])
def test_a_small_command_waits_for_workers(complete: bool) -> None:
    """The small command arrives alone, before or after the command whose output it reads is complete."""
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

    launched_while(resident, post)
    for each in products:
        each.assert_right()


def test_two_equal_small_commands_wait_for_different_ones() -> None:
    """Each reads the output of its own request, two commands ago. One of these is complete, the other takes longer."""
    generator = np.random.default_rng(4)
    resident, size, long, rounds = Resident(Dtype.fp32, 2, 4 << 10), 64, 1024, 4
    widths, products = (size, long), []
    large = [generator.standard_normal((size, k)).astype(np.float32) / 8 for k in widths]
    small = generator.standard_normal((16, size)).astype(np.float32) / 8
    for _ in range(rounds):
        for number, k in enumerate(widths):
            given = generator.standard_normal((1, k)).astype(np.float32)
            products.append(Product(number, large[number], given, np.full((1, size), np.nan, np.float32)))
        for each in products[-2:]:
            products.append(Product(2, small, each.c, np.full((1, 16), np.nan, np.float32)))
    for each in products[:3]:
        each.describe(resident)

    def post() -> None:
        for i, each in enumerate(products):
            if i % 4 == 0:
                resident.wait_for(i)
            elif i % 4 == 2:
                resident.wait_for_completion(i - 2)
            elif i % 4 == 3:
                sent(resident, i - 1, 16)
            each.post(resident, i % 2)

    launched_while(resident, post)
    for each in products:
        each.assert_right()
