"""Small programs of every kind, and streams of them, for tests of rules that hold for all programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import (
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    linear_program,
    qkv_program,
)
from launchopt.streams.model import ModelShape

NORM_EPSILON = 0.1  # so large that a norm with the usual one is wrong in every dtype
GATED = ModelShape("gated", 64, 8, 4, 2, 16, 96)
PLAIN = ModelShape("plain", 48, 8, 2, 2, 24, 80, gated=False, qk_norm=True, norm_epsilon=NORM_EPSILON)
WIDE = ModelShape("wide", 128, 8, 2, 1, 128, 160)  # its k and v fill whole units in every dtype
SQUARE = ModelShape("square", 256, 8, 2, 1, 128, 160)  # its q and o have the same size
SPLIT = ModelShape("split", 64, 8, 2, 1, 128, 128)  # its gate and up do, too

# Each function takes the largest number of tokens of a request.
PROGRAMS: dict[str, Callable[[int], Program]] = {
    "layer": lambda ctx: layer_program(GATED, ctx),
    "paged": lambda ctx: layer_program(PLAIN, ctx, 4),
    "apart": lambda ctx: layer_program(SPLIT, ctx, merged=False),
    "qkv": lambda ctx: qkv_program(WIDE),
    "square": lambda ctx: qkv_program(SQUARE),
    "linear_epilogue": lambda ctx: linear_epilogue_program(40),
    "elementwise": lambda ctx: elementwise_program(70),
    "linear": lambda ctx: linear_program([(96, 64), (64, 32)]),
}


def requests_of(sizes: Sequence[tuple[int, int]]) -> Requests:
    """Return requests that are all due at the start. sizes: (prompt, output) tokens of each."""
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    return Requests(np.zeros(len(sizes), np.int64), prompts, outputs)


def stream_of(
    name: str,
    sizes: Sequence[tuple[int, int]],
    dtype: Dtype = Dtype.fp32,
    layers: int = 2,
    replicas: int = 1,
    vocab: int | None = None,
    chunk: int | None = None,
    seed: int = 5,
) -> ChainStream:
    """Return a stream of the program with the name `name`."""
    requests = requests_of(sizes)
    program = PROGRAMS[name](requests.longest)
    return ChainStream(program, layers, requests, dtype, replicas, ChainSettings(vocab, chunk, seed))


@st.composite
def program_streams(draw: st.DrawFn, names: Sequence[str] = tuple(PROGRAMS), most_layers: int = 7) -> ChainStream:
    """Draw a stream of any program, with any requests."""
    sizes = st.tuples(st.integers(0, 12), st.integers(0, 4)).filter(any)
    return stream_of(
        draw(st.sampled_from(list(names))),
        draw(st.lists(sizes, min_size=1, max_size=4)),
        draw(st.sampled_from(Dtype)),
        draw(st.integers(1, most_layers)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([None, 50])),
        draw(st.none() | st.integers(1, 6)),
        draw(st.integers(0, 3)),
    )
