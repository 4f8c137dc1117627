"""The Triton GEMM of experts: results in Triton's interpreter, compilation for Hopper, and its configurations."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from support.paths import TESTS

from launchopt.command import Dtype
from launchopt.devices.triton.expert_tuning import (
    MOST_ROWS,
    SIZES,
    ExpertConfig,
    expert_configs,
    neighbours,
    rows_to_try,
)
from launchopt.streams.experts.layout import ExpertLayer, ExpertLayout

HOPPER = 90
QWEN = ExpertLayer(2048, 768, 128, 8, 16)


@pytest.fixture(scope="module")
def triton() -> Any:
    """Triton, where it and CuPy are installed; kernels compile without a GPU."""
    pytest.importorskip("cupy")
    return pytest.importorskip("triton")


def test_the_kernel_computes_what_it_should(triton: Any) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(TESTS.parent), *sys.path])}
    command = [sys.executable, str(TESTS / "support/cuda/interpreted_experts.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["gate_up", "down"])
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("pdl", [False, True])
def test_configurations_compile_and_copy_asynchronously(triton: Any, name: str, rows: int, pdl: bool) -> None:
    from launchopt.devices.triton.expert_gemms import shape_of, variant
    from launchopt.devices.triton.plans import OPERANDS, SCRATCH_POINTERS, compile_variant

    layout = ExpertLayout(QWEN, Dtype.bf16)
    shape = shape_of(layout, name)
    config = expert_configs(shape.m, shape.k, rows)[-1]
    made = compile_variant(variant(layout, name, config, True, pdl), HOPPER)
    ptx = made.asm["ptx"]
    assert ptx.count(".param .u64") == OPERANDS + SCRATCH_POINTERS
    assert "cp.async.cg" in ptx, "loads of 16 bytes, straight to shared memory"
    assert ("griddepcontrol.wait" in ptx) == pdl
    assert ("wgmma" in ptx) == (rows == 64)


def test_rows_of_a_block_are_about_those_of_an_expert() -> None:
    assert rows_to_try(QWEN, 90.0) == [16]
    assert rows_to_try(ExpertLayer(2048, 768, 128, 8, 256), 128.0) == [16, 32]
    assert rows_to_try(ExpertLayer(2048, 768, 8, 2, 128), 8.0) == [16, 32, 64]
    assert rows_to_try(ExpertLayer(2048, 768, 4, 4, 4096), 4.0) == [MOST_ROWS]


def test_neighbours_differ_in_one_number_and_are_not_much_larger_than_a_weight() -> None:
    config = ExpertConfig(16, 64, 128, 4, 2)
    found = neighbours(config, 64, 128)
    assert len(set(found)) == len(found) == 6
    for each in found:
        assert sum(getattr(each, name) != getattr(config, name) for name in config.__slots__) == 1
        assert each.rows == 16
        assert each.features <= 64
        assert each.depth <= 128


@pytest.mark.parametrize("rows", SIZES)
def test_configurations_are_not_larger_than_a_weight(rows: int) -> None:
    assert len(expert_configs(1536, 2048, rows)) == len(SIZES[rows])
    for config in expert_configs(24, 40, rows):
        assert (config.rows, config.features, config.depth) <= (rows, 32, 64)
        assert config.features <= 32
        assert config.depth <= 64
