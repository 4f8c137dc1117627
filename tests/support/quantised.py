"""Streams with quantised weights, of independent commands and of requests."""

from __future__ import annotations

from launchopt.command import Dtype
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import Program, layer_program, linear_program
from launchopt.streams.gemm_stream import CommandOrder, GemmStream
from launchopt.streams.model import ModelShape
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.workloads.gemv import gemv
from support.steps.programs import requests_of

PACKINGS = [
    Packing(each, scales) for each in (WeightFormat.fp8, WeightFormat.int8, WeightFormat.int4) for scales in Scales
]
WHOLE = ModelShape("whole", 128, 8, 2, 1, 64, 256)  # every GEMM has a multiple of 128 inputs


def quantised_gemv(packing: Packing, dtype: Dtype = Dtype.fp32, n: int = 1, shuffle: bool = False) -> GemmStream:
    """Return commands whose weights have rows that fill no whole block."""
    return gemv(130, n, 256, 24, dtype, 5, CommandOrder(shuffle, 3, packing=packing))


def quantised_steps(
    packing: Packing, name: str = "layer", dtype: Dtype = Dtype.fp32, vocab: int | None = None
) -> ChainStream:
    """Return three requests of a few tokens through two layers. name: layer or linear."""
    asked = requests_of([(3, 2), (0, 3), (1, 2)])
    programs: dict[str, Program] = {
        "layer": layer_program(WHOLE, asked.longest),
        "linear": linear_program([(256, 128), (128, 256)]),
    }
    return ChainStream(programs[name], 2, asked, dtype, 2, ChainSettings(vocab, packing=packing))
