"""graph_loop and graph_device on the CPU, a fake GPU and a GPU: one launch for many tokens, and the tokens of graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.cuda.fake_cuda import fake_cuda
from support.steps.programs import stream_of
from support.steps.step_runs import StepRun

from launchopt.command import Dtype
from launchopt.modes import mode_class
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream

TOKENS, TOGETHER = 9, 4
NONE, GREEDY = Sampling(SamplingKind.none), Sampling(SamplingKind.greedy)
TOP_K, TOP_P = Sampling(SamplingKind.top_k, 0.7, 50, seed=3), Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)
ON_FAKE = ("linear", "square", "linear_epilogue", "elementwise")  # programs that the fake GPU can compute, in fp32
EVERY = (*ON_FAKE, "layer", "paged")
each_device = pytest.mark.parametrize(
    "kind", ["cpu", "fake", pytest.param("cuda", marks=pytest.mark.gpu)], ids=lambda kind: kind
)
each_mode = pytest.mark.parametrize("name", ["graph_loop", "graph_device"])


@contextmanager
def opened(kind: str) -> Iterator[Any]:
    """Yield a GPU, a fake one, or None for the CPU device."""
    if kind == "fake":
        with fake_cuda() as device:
            yield device
    elif kind == "cpu":
        yield None
    else:
        from launchopt.devices.cuda.device import CudaDevice

        yield CudaDevice(0)


def run_of(kind: str, mode: str, stream: ChainStream, sampling: Sampling = NONE, **options: Any) -> tuple[StepRun, Any]:
    """Run a stream twice, check every output, and return the closed run and its last token ids."""
    with opened(kind) as device:
        run = StepRun(mode_class(mode)(**options), stream, stream.requests, device, sampling)
        for _ in range(2):
            run.run()
            run.check()
        run.device.synchronize()
        ids = run.flights.done[: stream.tokens].tolist()
        sizes, strategies = run.launches(LaunchColumn.SIZE), run.launches(LaunchColumn.STRATEGY)
        replays = run.prepared.counters().graph_replays
        run.close()
    return (sizes, strategies, replays), ids


def programs_of(kind: str) -> tuple[str, ...]:
    return ON_FAKE if kind == "fake" else EVERY


@each_device
@each_mode
@pytest.mark.parametrize("requests", [1, 3])
def test_one_launch_has_many_tokens_of_each_request(kind: str, name: str, requests: int) -> None:
    for program in programs_of(kind):
        stream = stream_of(program, [(0, TOKENS)] * requests)
        (sizes, strategies, replays), _ = run_of(kind, name, stream, tokens=TOGETHER)
        rows = requests * stream.decode_rows
        assert sizes[-2:] == [TOGETHER * rows] * 2, program
        assert sum(sizes) == TOKENS * rows, "the first token is launched alone"
        assert strategies[-2:] == [Strategy.graph] * 2
        assert replays == strategies.count(Strategy.graph)


@each_device
@each_mode
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_K, TOP_P], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("together", [1, 3, 64])
def test_tokens_are_those_of_graph(kind: str, name: str, sampling: Sampling, together: int) -> None:
    for program in ("linear",) if kind == "fake" else ("linear", "layer", "paged"):
        for dtype in (Dtype.fp32,) if kind == "fake" else (Dtype.fp32, Dtype.bf16):
            vocab = None if sampling.kind is SamplingKind.none else 70
            stream = stream_of(program, [(0, TOKENS)] * 2, dtype, vocab=vocab)
            _, ids = run_of(kind, name, stream, sampling, tokens=together)
            assert ids == run_of(kind, "graph", stream, sampling)[1], (program, dtype.name)


@each_device
@each_mode
def test_prompts_and_requests_of_other_lengths_run_as_well(kind: str, name: str) -> None:
    for program in programs_of(kind):
        stream = stream_of(program, [(5, 7), (0, 3), (2, 7), (0, 7)], chunk=2)
        (sizes, _, _), _ = run_of(kind, name, stream, tokens=TOGETHER)
        assert sum(sizes) == stream.commands, program


@pytest.mark.parametrize("kind", ["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
@each_mode
def test_steps_that_read_different_copies_of_the_weights_are_launched_one_by_one(kind: str, name: str) -> None:
    """A run refuses such workloads; the launcher does not rely on it."""
    stream = stream_of("linear", [(0, TOKENS)] * 2, replicas=2)
    (_, strategies, replays), _ = run_of(kind, name, stream, tokens=TOGETHER)
    assert Strategy.graph not in strategies
    assert replays == 0


@pytest.mark.parametrize("kind", ["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
@each_mode
def test_few_graphs_are_kept(kind: str, name: str) -> None:
    with opened(kind) as device:
        stream = stream_of("linear", [(0, TOKENS)] * 4)
        run = StepRun(mode_class(name)(tokens=2, cached=1), stream, 2, device)
        for seed in (1, 2):  # now these requests are together, now those
            run.run(seed)
            run.check()
            assert kind != "fake" or len(device.runtime.executables) == 1
        run.device.synchronize()
        run.close()
