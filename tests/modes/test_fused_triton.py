"""What mode=fused_triton takes. Its launches are tested in tests/devices/triton/test_elementwise.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.modes.fused_elementwise import FusedElementwise
from launchopt.modes.fused_triton import FusedTriton
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import Program, elementwise_program, linear_epilogue_program
from launchopt.streams.gemm_stream import GemmStream, Segment

REFUSAL = "fuses bias, ReLU and scale in a row: this workload has none"


def stream_of(program: Program, dtype: Dtype = Dtype.fp32, vocab: int | None = None) -> ChainStream:
    asked = Requests(np.zeros(2, np.int64), np.full(2, 3), np.full(2, 3))
    return ChainStream(program, 2, asked, dtype, 1, ChainSettings(vocab))


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_takes_bias_relu_and_scale(dtype: Dtype) -> None:
    assert FusedTriton.refusal("cuda", stream_of(elementwise_program(64), dtype)) is None


def test_takes_nothing_else() -> None:
    elementwise = elementwise_program(64)
    bias, relu, scale = elementwise.layer
    apart = Program((bias, replace(relu, b="x"), scale), 64)
    first = replace(relu, b="x")
    disordered = Program((first, replace(bias, b="relu"), replace(scale, b="bias")), 64)
    for program in (linear_epilogue_program(64), apart, Program((bias, relu), 64), disordered):
        assert FusedTriton.refusal("cuda", stream_of(program)) == REFUSAL
    assert FusedTriton.refusal("cuda", stream_of(elementwise, vocab=16)) is None  # the LM head is launched by itself
    assert FusedElementwise.refusal("cuda", stream_of(linear_epilogue_program(64))) == REFUSAL  # in the same words
    independent = GemmStream([(64, 32)], 1, [Segment(1, 4)], Dtype.fp32, 1)
    assert FusedTriton.refusal("cuda", independent) == REFUSAL
    assert "needs a GPU" in str(FusedTriton.refusal("cpu", stream_of(elementwise)))
