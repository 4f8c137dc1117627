"""mode=megakernel on a GPU: launches ahead of their commands, and feedback by a launch."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.megakernel.megakernel_runs import (
    GREEDY,
    NONE,
    TOKENS,
    TOP_K,
    TOP_P,
    before_step,
    close,
    finish,
    run_of,
    stream_of,
)
from support.steps.step_runs import StepRun, asked_of_python

from launchopt.batching.batch import StepBatch
from launchopt.command import LOW_HALF, Dtype
from launchopt.modes.megakernel import MegakernelMode
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.sampling import Sampling


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_P], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize(("name", "requests"), [("decode", 1), ("large", 16), ("deep", 16), ("paged", 1), ("layer", 4)])
def test_launches_ahead_give_the_same_results(
    name: str, requests: int, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results equal bit for bit, whether or not the host waits for all launches between two steps.

    Some first steps are launched by cuBLASLt. With one proposal there is no choice by time, which may differ between
    the two runs.
    """
    from launchopt.devices.cublaslt import tuning
    from launchopt.devices.cuda.device import CudaDevice

    monkeypatch.setattr(tuning, "PROPOSALS", 1)
    found = []
    for ahead in (False, True):
        vocab = None if sampling is NONE else 3000
        stream = stream_of(name, [(0, 2 * TOKENS)] * requests, Dtype.bf16, vocab=vocab)
        run = run_of(CudaDevice(0), stream, MegakernelMode(ahead=ahead), sampling)
        for _ in range(3):
            run.run()
            run.check()
        arrays = [array.get() for array in run.device.arenas.arrays.values()]
        found.append([*(array.tobytes() for array in arrays), run.flights.done[: stream.tokens].tobytes()])
        if ahead:
            assert run.prepared.path.ahead.called_off == 1
            before_step(run, 2 * TOKENS - 2)
            assert run.prepared.path.ahead.called_off == 1
            finish(run)
        else:
            close(run)
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_P], ids=lambda sampling: sampling.kind.name)
def test_launches_that_the_compiled_loop_admits(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop admits all but the first launch of each copy of the weights. Python admits none."""
    from launchopt.devices.cuda.device import CudaDevice

    asked = asked_of_python(monkeypatch)
    vocab = None if sampling is NONE else 3000
    stream = stream_of("decode", [(0, 3 * TOKENS)], Dtype.bf16, vocab=vocab)
    run = run_of(CudaDevice(0), stream, sampling=sampling)
    for _ in range(2):
        asked.clear()
        run.run_pumped()
        run.check()
        assert asked[0] is False
        assert not any(asked)
        assert len(asked) < run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel)
        assert run.prepared.path.ahead.called_off == 1
    close(run)


@pytest.mark.gpu
def test_a_launch_that_waits_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch gives up before the host expects it to. Its step is launched once more."""
    from launchopt.devices.cuda.device import CudaDevice
    from launchopt.devices.megakernel import launch_ahead

    monkeypatch.setattr(launch_ahead, "PATIENCE_NS", 20_000_000)
    monkeypatch.setattr(launch_ahead, "STALE_NS", 10_000_000)
    run = run_of(CudaDevice(0), stream_of("decode", [(0, 2 * TOKENS)], Dtype.fp16))
    submit = run.prepared.submit_steps

    def slowly(batch: StepBatch, flush_ns: int) -> None:
        submit(batch, flush_ns)
        time.sleep(0.06)

    run.run()
    monkeypatch.setattr(run.prepared, "submit_steps", slowly)
    run.run()
    run.check()
    assert run.prepared.path.ahead.called_off > TOKENS
    close(run)


class Counted:
    """Counts launches of the kernel for feedback, without another effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from launchopt.devices.feedback.kernel import GpuFeedback

        self.count, launch = 0, GpuFeedback.launch

        def counted(feedback: GpuFeedback, rows: int) -> None:
            self.count += rows > 0
            launch(feedback, rows)

        monkeypatch.setattr(GpuFeedback, "launch", counted)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_K, TOP_P], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("name", "requests"), [("decode", 1), ("decode", 2), ("decode", 16), ("deep", 16), ("paged", 4)]
)
def test_a_launch_feeds_back_its_results(
    name: str, requests: int, dtype: Dtype, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other kernel feeds back, except after steps that are launched in another way."""
    from launchopt.devices.cuda.device import CudaDevice

    stream = stream_of(name, [(0, TOKENS)] * requests, dtype, vocab=None if sampling is NONE else 3000)
    device: Any = CudaDevice(0)
    run, launches = run_of(device, stream, sampling=sampling), Counted(monkeypatch)
    for _ in range(2):
        launches.count = 0
        run.run()
        run.check()
        fused = run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel)
        assert fused >= TOKENS - 1
        assert launches.count == TOKENS - fused
        assert (device.sampling_ns() > 0) == (sampling is not NONE)
    close(run)


@pytest.mark.gpu
def test_the_host_samples_on_request() -> None:
    from launchopt.devices.cuda.device import CudaDevice

    ids = []
    for on_host in (False, True):
        stream = stream_of("decode", [(0, TOKENS)] * 3, Dtype.bf16, vocab=300)
        run = StepRun(MegakernelMode(), stream, 3, CudaDevice(0), TOP_K, on_host)
        run.run()
        run.check()
        assert Strategy.megakernel in run.launches(LaunchColumn.STRATEGY)
        ids.append((run.flights.done[: stream.tokens] & LOW_HALF).tolist())
        close(run)
    assert ids[0] == ids[1]
