"""kernels/persistent.cu on the host (resident_rig): products, order, laps of its rings, and commands after an END."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda_on_host import can_build
from support.resident.resident_rig import NUMBERS, PATIENCE_NS, Product, Resident, done_while_posted, product

from launchopt.command import Dtype
from launchopt.kernels.shared import KernelState

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")


@pytest.mark.parametrize("direct_bytes", [0, 64 << 10])
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_products_with_later_commands_in_the_ring(dtype: Dtype, direct_bytes: int) -> None:
    """Each kernel ends at its own END, although commands of the next one follow. Numbers of commands vary."""
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
            assert int(resident.control[0]) == KernelState.ENDED
        assert resident.ring.posted == posted
        assert resident.completed == min(posted, resident.ring.capacity)


@pytest.mark.parametrize("direct_bytes", [0, 64 << 10])
def test_commands_of_a_request_run_in_order(direct_bytes: int) -> None:
    """Each command reads the output of its request's last one. The commands of two requests alternate."""
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


@pytest.mark.parametrize("direct_bytes", [0, 64 << 10])
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_commands_posted_while_the_kernel_runs(dtype: Dtype, direct_bytes: int) -> None:
    """The host posts lone commands, each after the last one is complete, then groups. Two requests keep their order."""
    generator = np.random.default_rng([dtype, direct_bytes])
    resident = Resident(dtype, 2, direct_bytes)
    products = [product(generator, number, dtype) for number in range(24)]
    for each in products:
        each.describe(resident)

    done_while_posted(resident, products, {*range(12), *range(12, 24, 6)})
    assert int(resident.control[0]) == KernelState.ENDED
    assert resident.completed == len(products) + 1


@pytest.mark.parametrize("rows", [3, 20])
def test_lone_commands_between_many(rows: int) -> None:
    """After many commands, a lone one arrives, which the dispatcher's warp or group runs. Then many follow."""
    generator = np.random.default_rng(5)
    resident = Resident(Dtype.fp32, 0, 64 << 10)
    products, begun = list[Product](), set[int]()
    for count in (8, 1, 8, 1, 12, 1, 8, 8):
        begun.add(len(products))
        a, b = (generator.standard_normal((size, 8)).astype(np.float32) for size in (rows, 1))
        products += [Product(0, a, b, np.full((1, rows), np.nan, np.float32)) for _ in range(count)]
    products[0].describe(resident)

    done_while_posted(resident, products, begun)


def test_the_kernel_gives_up_without_commands() -> None:
    resident = Resident(Dtype.fp32, 0, 0, PATIENCE_NS)
    resident.launch(1)
    assert int(resident.control[0]) == KernelState.GAVE_UP
