"""kernels/step_gemm.cu on the host (cuda_on_host): sizes around the limits of its loops, and all that is fused."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda_on_host import built, can_build, launch
from support.quantised import PACKINGS
from support.steps.programs import NORM_EPSILON
from support.steps.step_gemms import GemmCase

from launchopt.command import Dtype
from launchopt.devices.steps.fusions.gemm_plan import Division, divided
from launchopt.weights.packing import Packing

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = (
    "struct Given { char *a, *b, *c, *r; StepGemm p; }; const Given& given = *(const Given*)arguments; "
    "step_gemm(given.a, given.b, given.c, given.r, given.p)"
)


def check(case: GemmCase, blocks: int, races: bool = False, piece_bytes: int = 512) -> None:
    """Launch the kernel on a GPU of `blocks` multiprocessors and compare its outputs."""
    gemm = case.gemm(case.gain.ctypes.data)
    assert gemm.refusal is None
    planned = divided(gemm, len(case.b), blocks, True, Division(piece_bytes=piece_bytes))
    operands = [each.ctypes.data for each in (case.a, case.b, case.c, case.r)]
    arguments = np.array(operands + planned.words.tolist(), np.uint64)
    macros = {"DTYPE": int(case.dtype), "NORM_EPSILON": f"{NORM_EPSILON}f"}
    library = built("step_gemm", CALL, races, **macros, **planned.defines)
    size = planned.threads, planned.shared_bytes
    launch(library, (planned.blocks,), *size, arguments.ctypes.data, seed=blocks, at_once=planned.blocks)
    case.check(case.c)


@pytest.mark.parametrize("dtype", [Dtype.bf16, Dtype.fp16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("requests", [1, 3, 11, 16])
def test_gemm_of_requests(dtype: Dtype, requests: int) -> None:
    check(GemmCase(dtype, 45, 352, requests), 3)
    check(GemmCase(dtype, 8, 32, requests), 3)
    check(GemmCase(dtype, 21, 512, requests), 2)  # whole pieces


@pytest.mark.parametrize("fused", ["norm", "add", "silu", "norm silu", "norm add"])
@pytest.mark.parametrize("requests", [1, 9])
def test_fused_with_its_neighbours(fused: str, requests: int) -> None:
    check(GemmCase(Dtype.bf16, 52, 576, requests, fused), 3)


@pytest.mark.parametrize("dtype", [Dtype.bf16, Dtype.fp16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_quantised_weights(packing: Packing, dtype: Dtype) -> None:
    """The slice of a warp has 128 inputs, so that it has one scale per block."""
    check(GemmCase(dtype, 45, 1024 + 128, 3 if dtype is Dtype.bf16 else 1, packing=packing), 3, piece_bytes=2048)
    check(GemmCase(dtype, 300, 2048, 1, packing=packing), 2, piece_bytes=2048)  # whole pieces, several rows of blocks


@pytest.mark.parametrize("fused", ["norm add", "silu", "norm silu"])
@pytest.mark.parametrize("packing", [PACKINGS[0], PACKINGS[2], PACKINGS[4], PACKINGS[8]], ids=str)
def test_quantised_weights_fused_with_their_neighbours(packing: Packing, fused: str) -> None:
    check(GemmCase(Dtype.bf16, 136, 1280, 9, fused, packing=packing), 3, piece_bytes=2048)
    check(GemmCase(Dtype.bf16, 264, 1280, 1, fused, packing=packing), 1, piece_bytes=2048)  # many passes


def test_many_passes() -> None:
    check(GemmCase(Dtype.bf16, 200, 544, 2, "norm"), 1)
    check(GemmCase(Dtype.bf16, 100, 544, 16, "norm silu"), 1)


def test_no_races() -> None:
    check(GemmCase(Dtype.bf16, 72, 1088, 9, "norm"), 2, races=True)
