"""Runs of mode=megakernel on a GPU or on the fake GPU: programs, numbers of requests, single steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from launchopt.batching.batch import StepBatch
from launchopt.command import Dtype
from launchopt.modes.megakernel import MegakernelMode
from launchopt.sampling import Sampling, SamplingKind
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
from support.megakernel.fake_megakernel import fake_megakernel
from support.steps.programs import NORM_EPSILON, requests_of
from support.steps.step_runs import StepRun, batches

MODEL = ModelShape("small", 256, 2, 8, 2, 32, 384, norm_epsilon=NORM_EPSILON)
TOKENS, LAYERS, REPLICAS, COPY_CALLS = 5, 2, 2, 3
PROGRAMS: dict[str, Program] = {
    "decode": linear_program([(m, k) for _, m, k in MODEL.linears()]),
    # A block makes several passes over several pieces of k; the last piece is partly used.
    "large": linear_program([(8456, 1024), (1024, 4352)]),
    # With several requests, pairs of blocks share it along k. One block of a pair stores nothing of the LM head.
    "deep": linear_program([(640, 8192), (8192, 640)]),
    "layer": layer_program(MODEL, 2 * TOKENS),
    "paged": layer_program(MODEL, 2 * TOKENS, 4),
    "odd": layer_program(ModelShape("odd", 72, 2, 3, 1, 24, 100, gated=False), 2 * TOKENS, 3),
    "apart": layer_program(ModelShape("apart", 256, 2, 4, 2, 64, 384), 2 * TOKENS, merged=False),
    "qkv": qkv_program(ModelShape("wide", 128, 2, 4, 2, 64, 128)),
    "linear_epilogue": linear_epilogue_program(72),
    "elementwise": elementwise_program(70),
}
ON_HOST = ("decode", "qkv", "linear_epilogue", "elementwise")
# (program, number of requests).
EACH = [("decode", 1), ("decode", 3), ("decode", 16), ("layer", 1), ("layer", 4), ("paged", 1), ("paged", 4)]
EACH += [
    ("deep", 1),
    ("deep", 9),
    ("deep", 18),
    ("large", 1),
    ("large", 9),
    ("large", 18),
    ("odd", 3),
    ("apart", 4),
    ("qkv", 3),
    ("linear_epilogue", 3),
    ("elementwise", 3),
]
SOME = [
    ("decode", 1),
    ("decode", 3),
    ("decode", 16),
    ("large", 1),
    ("large", 9),
    ("deep", 2),
    ("deep", 16),
    ("layer", 4),
    ("paged", 1),
    ("odd", 3),
    ("elementwise", 3),
]
# Roundings to the storage type by which memory may differ after a step. fp32 differs by more, by the order of sums.
UNITS = {Dtype.fp32: 512.0, Dtype.fp16: 16.0, Dtype.bf16: 16.0}
NONE, GREEDY = Sampling(SamplingKind.none), Sampling(SamplingKind.greedy)
TOP_K, TOP_P = Sampling(SamplingKind.top_k, 0.7, 50, seed=3), Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)


def cases(programs: Sequence[tuple[str, int]], dtypes: Sequence[Dtype] = tuple(Dtype)) -> Any:
    """Parametrize a test by device, program, number of requests and dtype."""
    found = [pytest.param("cuda", *each, dtype, marks=pytest.mark.gpu) for each in programs for dtype in dtypes]
    found += [("host", name, requests, Dtype.fp32) for name, requests in programs if name in ON_HOST]
    return pytest.mark.parametrize(("device", "name", "requests", "dtype"), found, indirect=["device"], ids=str)


@contextmanager
def opened(kind: str) -> Iterator[Any]:
    """Yield a GPU (cuda), or the fake one (host)."""
    if kind == "host":
        with fake_megakernel() as kernel:
            yield kernel.device
        return
    from launchopt.devices.cuda.device import CudaDevice

    yield CudaDevice(0)


def stream_of(
    name: str, sizes: list[tuple[int, int]], dtype: Dtype, layers: int = LAYERS, vocab: int | None = None
) -> ChainStream:
    return ChainStream(PROGRAMS[name], layers, requests_of(sizes), dtype, REPLICAS, ChainSettings(vocab, seed=5))


def run_of(device: Any, stream: ChainStream, mode: Any = None, sampling: Sampling | None = None) -> StepRun:
    how = {} if sampling is None else {"sampling": sampling}
    return StepRun(mode or MegakernelMode(), stream, stream.requests, device, **how)


def close(run: StepRun) -> None:
    run.device.synchronize()
    run.close()


def before_step(run: StepRun, number: int) -> StepBatch:
    """Run everything before step `number`; return the batch of that step."""
    device = run.device
    run.recorder.reset()
    run.flights.reset()
    device.arenas.poison()
    device.synchronize()
    device.use_mode(run.mode.name)
    device.start(0, run.prepared.path)
    run.prepared.start()
    device.begin()
    for at, batch in enumerate(batches(run.stream, run.most)):
        if at == number:
            break
        run.prepared.submit_steps(batch, 0)
        device.feed_back(run.flights, run.flights.collect(batch.words[-batch.size :]))
    device.synchronize()
    return batch


def finish(run: StepRun) -> None:
    """Finish and close, as at the end of a run."""
    run.device.finish()
    close(run)
