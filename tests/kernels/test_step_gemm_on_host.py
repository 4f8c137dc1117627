"""kernels/step_gemm.cu on the host (cuda_on_host): sizes around the limits of its loops, and all that is fused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import built, can_build, launch

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.steps.gemm_plan import Division, StepGemm, divided
from launchopt.kernels.shared import STEP_GEMM

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

HEAD = "struct Given { char *a, *b, *c, *r; StepGemm p; };"
CALL = "const Given& given = *(const Given*)arguments; step_gemm(given.a, given.b, given.c, given.r, given.p)"
ULP = {Dtype.fp16: 2.0**-11, Dtype.bf16: 2.0**-8}


def aligned(shape: tuple[int, ...], dtype: Dtype) -> NDArray[np.generic]:
    """Return an array whose first element is aligned to 128 bytes."""
    kind = from_float32(np.zeros(1, np.float32), dtype).dtype
    raw = np.zeros(int(np.prod(shape)) * kind.itemsize + 128, np.uint8)
    first = -raw.ctypes.data % 128
    return raw[first : first + int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape)


def filled(generator: np.random.Generator, shape: tuple[int, ...], dtype: Dtype) -> NDArray[np.generic]:
    found = aligned(shape, dtype)
    found[:] = from_float32(generator.standard_normal(shape).astype(np.float32), dtype)
    return found


def wide(values: NDArray[np.generic], dtype: Dtype) -> NDArray[np.float64]:
    return to_float32(values, dtype).astype(np.float64)


def check(
    dtype: Dtype, rows: int, k: int, requests: int, blocks: int, fused: str = "", seed: int = 0, races: bool = False
) -> None:
    """Launch the kernel and compare each output with float64, within roundings of inputs, sums and outputs."""
    generator = np.random.default_rng([rows, k, requests, seed])
    normed, adds, gated = ("norm" in fused), ("add" in fused), ("silu" in fused)
    a = filled(generator, (rows << gated, k + 8), dtype)
    b, r = filled(generator, (requests, k + 24), dtype), filled(generator, (requests, rows + 3), dtype)
    gain, c = filled(generator, (1, k), dtype), aligned((requests, rows + 5), dtype)
    c[:] = from_float32(np.full(c.shape, 77.0, np.float32), dtype)
    steps = (a.strides[0], b.strides[0], c.strides[0], r.strides[0])
    gemm = StepGemm(dtype, rows, k, steps, gain.ctypes.data if normed else 0, adds, gated)
    assert gemm.refusal is None
    planned = divided(gemm, requests, blocks, True, Division(piece_bytes=512))
    arguments = np.array([each.ctypes.data for each in (a, b, c, r)] + planned.words.tolist(), np.uint64)
    call = CALL.replace("const Given&", HEAD + " const Given&")
    library = built("step_gemm", call, races, DTYPE=int(dtype), **planned.defines)
    shared_bytes = planned.shared_bytes
    launch(library, (planned.blocks,), planned.threads, shared_bytes, arguments.ctypes.data, seed, planned.blocks)

    weights, inputs = wide(a[:, :k], dtype), wide(b[:, :k], dtype)
    if normed:
        inputs = inputs / np.sqrt((inputs**2).mean(axis=1, keepdims=True) + 1e-5) * wide(gain, dtype)
    exact, size = inputs @ weights.T, np.sqrt(inputs**2 @ (weights**2).T)
    error = 4 * (2.0**-22 * size * np.sqrt(k) + (ULP[dtype] * size if normed else 0))
    if gated:
        gate, up = exact[:, :rows], exact[:, rows:]
        silu = gate / (1 + np.exp(-gate))
        error = error[:, :rows] * np.abs(up) * 1.1 + error[:, rows:] * np.abs(silu) + 1e-5
        exact = silu * up
    if adds:
        exact = exact + wide(r[:, :rows], dtype)
    error = error + ULP[dtype] * np.abs(exact) + 1e-6
    found = wide(c, dtype)
    assert (np.abs(found[:, :rows] - exact) <= error).all()
    assert (found[:, rows:] == 77.0).all(), "nothing is stored behind the outputs"


@pytest.mark.parametrize("dtype", [Dtype.bf16, Dtype.fp16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("requests", [1, 3, 11, 16])
def test_gemm_of_requests(dtype: Dtype, requests: int) -> None:
    check(dtype, 45, 352, requests, 3)
    check(dtype, 8, 32, requests, 3)


@pytest.mark.parametrize("fused", ["norm", "add", "silu", "norm silu", "norm add"])
@pytest.mark.parametrize("requests", [1, 9])
def test_fused_with_its_neighbours(fused: str, requests: int) -> None:
    check(Dtype.bf16, 52, 576, requests, 3, fused)


def test_many_passes() -> None:
    check(Dtype.bf16, 200, 544, 2, 1, "norm")
    check(Dtype.bf16, 100, 544, 16, 1, "norm silu")


def test_no_races() -> None:
    check(Dtype.bf16, 72, 1100 // 32 * 32, 9, 2, "norm", races=True)


def test_refusals() -> None:
    gemm = StepGemm(Dtype.bf16, 64, 64, (128, 128, 128, 0))
    assert gemm.refusal is None
    assert "multiple of 32" in str(dataclasses.replace(gemm, k=65).refusal)
    assert "fp16 and bf16" in str(dataclasses.replace(gemm, dtype=Dtype.fp32).refusal)
    assert "aligned" in str(dataclasses.replace(gemm, steps=(130, 128, 128, 0)).refusal)
    assert "at most" in str(dataclasses.replace(gemm, k=1 << 16, gain=1).refusal)


def test_every_row_belongs_to_one_block() -> None:
    words = divided(StepGemm(Dtype.bf16, 3072, 2048, (4096, 0, 0, 0)), 1, 132, False).words.view(STEP_GEMM)
    assert (words["each"], words["more"]) == (2, 384 - 2 * 132)
