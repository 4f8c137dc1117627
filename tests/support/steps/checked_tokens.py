"""Streams of requests for tests of the token check, and the findings that the check must report of one wrong token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.model import ModelShape
from support.steps.program_interpreter import NONE, Run

LAYERS = 2
SMALL = ModelShape("small", 16, LAYERS, 2, 1, 8, 24)
LINEARS = SMALL.linear_sizes()  # qkv 32x16, o 16x16, gate and up 48x16, down 16x24
GEMMS = LAYERS * len(LINEARS)
VOCAB = 256
SIZES = [(0, 4), (0, 5), (5, 4), (3, 1)]  # prompt and output tokens of each request
VICTIM, STEP = 1, 2  # request and step in which tests plant a fault: neither the first nor the last step
LAST = 4

GREEDY = Sampling(SamplingKind.greedy)
SAMPLINGS = {
    "none": NONE,
    "greedy": GREEDY,
    "top_k": Sampling(SamplingKind.top_k, 0.7, top_k=8, seed=3),
    "top_p": Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4),
}
in_each_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)


def stream_of(
    dtype: Dtype = Dtype.fp32,
    sampling: Sampling = NONE,
    sizes: Sequence[tuple[int, int]] = SIZES,
    replicas: int = 1,
    chunk: int | None = None,
) -> ChainStream:
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    requests = Requests(np.zeros(len(sizes), np.int64), prompts, outputs)
    vocab = None if sampling is NONE else VOCAB
    return ChainStream(LINEARS, LAYERS, requests, dtype, replicas, ChainSettings(vocab, chunk, 5))


def assert_wrong(run: Run, *, token: int = STEP, request: int = VICTIM, wrong: int | None = 1) -> None:
    found = run.verify()
    assert not found.ok
    assert wrong is None or found.wrong == wrong
    assert found.first_wrong is not None
    assert found.first_wrong.startswith(f"token {token} of request {request}: ")
    if run.sampling is NONE:
        assert found.max_rel_error > found.tolerance
