"""What mode=triton_batched takes and needs. Its launches are tested in tests/devices/triton/test_gemm.py."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.quantised import PACKINGS, quantised_gemv, quantised_steps

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype, ShapeKey
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from launchopt.modes.triton_batched import MOST_COMMANDS, TritonBatched
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import elementwise_program, linear_epilogue_program
from launchopt.streams.gemm_stream import GemmStream, Segment
from launchopt.weights.packing import Packing


def requests(prompt: int) -> Requests:
    return Requests(np.zeros(2, np.int64), np.full(2, prompt), np.full(2, 3))


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("n", [1, 2, 16])
def test_takes_few_columns_of_any_type(dtype: Dtype, n: int) -> None:
    assert TritonBatched.refusal("cuda", GemmStream([(64, 32)], 1, [Segment(n, 4)], dtype, 1)) is None


def test_takes_chains_whose_other_ops_are_launched_as_by_batched() -> None:
    assert TritonBatched.refusal("cuda", ChainStream([(8, 8)], 2, requests(16), Dtype.fp32, 1)) is None
    program = linear_epilogue_program(64)
    assert TritonBatched.refusal("cuda", ChainStream(program, 1, requests(0), Dtype.fp32, 1)) is None


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_takes_quantised_weights_on_a_gpu(packing: Packing) -> None:
    assert TritonBatched.refusal("cuda", quantised_gemv(packing, Dtype.bf16, 16)) is None
    assert TritonBatched.refusal("cuda", quantised_steps(packing)) is None
    assert "has 17" in str(TritonBatched.refusal("cuda", quantised_gemv(packing, Dtype.bf16, 17)))
    assert "needs a GPU" in str(TritonBatched.refusal("cpu", quantised_gemv(packing)))


def test_says_why_not() -> None:
    wide = GemmStream([(64, 32)], 1, [Segment(1, 4), Segment(17, 1)], Dtype.fp32, 1)
    assert TritonBatched.refusal("cuda", wide) == "is made for up to 16 columns, and this workload has 17"
    prompts = ChainStream([(8, 8)], 2, requests(20), Dtype.fp32, 1)
    assert TritonBatched.refusal("cuda", prompts) == "is made for up to 16 columns, and this workload has 20"
    without = ChainStream(elementwise_program(64), 1, requests(0), Dtype.fp32, 1)
    assert TritonBatched.refusal("cuda", without) == "launches GEMMs of few columns, and this workload has none"
    narrow = GemmStream([(64, 32)], 1, [Segment(1, 4)], Dtype.fp32, 1)
    assert "needs a GPU" in str(TritonBatched.refusal("cpu", narrow))


def test_scratch_is_for_the_outputs_of_the_largest_launch() -> None:
    stream = GemmStream([(100, 64), (64, 100)], 1, [Segment(3, 40)], Dtype.fp32, 1)
    large, small = ShapeKey(100, 3, 64, Dtype.fp32), ShapeKey(64, 3, 100, Dtype.fp32)
    assert TritonBatched.scratch_bytes(stream, {small: 40, large: 2}, 0) == 40 * 768
    assert TritonBatched.scratch_bytes(stream, {small: 1, large: 2}, 0) == 2 * 1280


def test_more_commands_than_a_grid_has_space_for() -> None:
    pytest.importorskip("cupy")
    pytest.importorskip("triton")
    with pytest.raises(ConfigError) as caught:
        TritonBatched().prepare(None, {ShapeKey(8, 1, 8, Dtype.fp32): MOST_COMMANDS + 1})  # type: ignore[arg-type]
    assert "takes at most 65535 commands" in str(caught.value)


def test_asking_imports_no_triton() -> None:
    code = (
        "import sys, launchopt.modes as modes;"
        "kinds = [modes.mode_class(name) for name in ('triton_batched', 'fused_triton')];"
        "assert all(kind.packages == ('triton',) and kind.extra == 'torch' for kind in kinds); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & {"triton", "torch", "cupy", "nvmath"}


@pytest.mark.parametrize("name", ["triton_batched", "fused_triton"])
def test_the_first_line_says_what_one_launch_means(name: str) -> None:
    lines = (sys.modules[mode_class(name).__module__].__doc__ or "").splitlines()
    assert lines[0].startswith(f"{name}: ")
    assert "launch" in lines[0]
    assert "Triton kernel" in lines[0]
