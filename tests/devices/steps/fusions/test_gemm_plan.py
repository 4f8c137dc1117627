"""The division of a GEMM of a step among blocks, and what the kernel cannot compute."""

from __future__ import annotations

import dataclasses

import pytest

from launchopt.command import Dtype
from launchopt.devices.steps.fusions.gemm_plan import (
    MOST_COLUMNS,
    MULTIPROCESSOR_BYTES,
    RESERVED_BYTES,
    Division,
    StepGemm,
    divided,
)
from launchopt.kernels.shared import STEP_GEMM, STEP_ROWS

H200 = 132
# Rows and k of GEMMs of Llama 3.2 1B, Qwen3 0.6B and Llama 3 8B; gated: rows of the gates.
SIZES = [(3072, 2048), (2048, 8192), (128_256, 2048), (1024, 2048), (6144, 4096), (4096, 14_336)]
GATED = [(8192, 2048), (3072, 1024), (14_336, 4096)]


def of(rows: int, k: int, gain: int = 0, gated: bool = False) -> StepGemm:
    return StepGemm(Dtype.bf16, rows, k, (2 * k, 2 * k, 2 * rows, 0), gain, False, gated)


@pytest.mark.parametrize(("rows", "k"), SIZES + GATED)
@pytest.mark.parametrize("requests", [1, 2, 8, MOST_COLUMNS])
def test_every_row_belongs_to_one_block(rows: int, k: int, requests: int) -> None:
    found = divided(of(rows, k, 1, (rows, k) in GATED), requests, H200, early=True)
    words = found.words.view(STEP_GEMM)[0]
    assert words["more"] < found.blocks <= H200
    assert words["each"] * found.blocks + words["more"] == -(-rows // STEP_ROWS)
    assert words["columns"] == requests <= found.defines["COLUMNS"]


@pytest.mark.parametrize(("rows", "k"), SIZES + GATED)
@pytest.mark.parametrize("requests", [1, 2, 8, MOST_COLUMNS])
@pytest.mark.parametrize("blocks", [1, 2])
def test_blocks_fit_on_a_multiprocessor(rows: int, k: int, requests: int, blocks: int) -> None:
    how = Division(piece_bytes=1024, blocks=blocks)
    found = divided(of(rows, k, 1, (rows, k) in GATED), requests, H200, True, how)
    assert blocks * (found.shared_bytes + found.static_bytes + RESERVED_BYTES) <= MULTIPROCESSOR_BYTES
    assert found.defines["SLOTS"] >= 2


def test_what_the_kernel_cannot_compute() -> None:
    gemm = of(64, 64)
    assert gemm.refusal is None
    assert "multiple of 32" in str(dataclasses.replace(gemm, k=65).refusal)
    assert "fp16 and bf16" in str(dataclasses.replace(gemm, dtype=Dtype.fp32).refusal)
    assert "aligned" in str(dataclasses.replace(gemm, steps=(130, 128, 128, 0)).refusal)
    assert "at most" in str(dataclasses.replace(gemm, k=1 << 16, gain=1).refusal)
