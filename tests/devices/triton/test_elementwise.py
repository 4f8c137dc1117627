"""The Triton kernel for bias, ReLU and scale; on a GPU its runs are checked in tests/modes/test_modes_gpu.py."""

from __future__ import annotations

from typing import Any

import pytest

from launchopt.command import Dtype, ShapeKey

HOPPER = 90
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module", autouse=True)
def triton() -> Any:
    """Triton, where it and CuPy are installed; kernels compile without a GPU."""
    pytest.importorskip("cupy")
    return pytest.importorskip("triton")


@in_each_dtype
def test_it_compiles_without_scratch(dtype: Dtype) -> None:
    from launchopt.devices.triton.elementwise import variant
    from launchopt.devices.triton.plans import compile_variant

    ptx = compile_variant(variant(4096, (4096, 4096), (1 << 20, 1 << 20), dtype), HOPPER).asm["ptx"]
    assert "ld.global.v" in ptx.replace("L1::no_allocate.", "")


def test_a_grid_has_blocks_for_every_column() -> None:
    from launchopt.devices.triton.elementwise import grid

    assert grid(ShapeKey(512, 1, 512, Dtype.fp32), 3) == (1, 3, 1)
    assert grid(ShapeKey(513, 4, 513, Dtype.fp32), 1) == (8, 1, 1)
