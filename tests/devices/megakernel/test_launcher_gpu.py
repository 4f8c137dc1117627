"""mode=megakernel on a GPU: every row of every step is right, a step is one launch, tokens equal baseline's.

Cases that need neither 16-bit elements nor attention also run on the fake GPU, with the same assertions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from support.megakernel.megakernel_runs import (
    COPY_CALLS,
    EACH,
    GREEDY,
    TOKENS,
    TOP_K,
    cases,
    close,
    opened,
    run_of,
    stream_of,
)

from launchopt.batching.batch import StepBatch
from launchopt.batching.batcher import shape_finder
from launchopt.command import COMMAND_DTYPE, LOW_HALF, Dtype, ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.baseline import Baseline, EachCommand
from launchopt.modes.coalesced import Coalesced
from launchopt.modes.megakernel import MegakernelMode
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.sampling import Sampling


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened(request.param) as made:
        yield made


@cases(EACH)
def test_requests_in_step_are_one_launch_a_step(device: Any, name: str, requests: int, dtype: Dtype) -> None:
    """The first step is an exception: its inputs lie elsewhere. For one request it is one launch when it repeats."""
    stream = stream_of(name, [(0, TOKENS)] * requests, dtype)
    run, rows = run_of(device, stream), len(stream.rows_of(stream.decode_kind))
    for again in (False, True):
        run.run()
        run.check()
        strategies, sizes = run.launches(LaunchColumn.STRATEGY), run.launches(LaunchColumn.SIZE)
        alone = TOKENS if again and requests == 1 else TOKENS - 1
        first = len(strategies) - alone
        assert strategies[first:] == [Strategy.megakernel] * alone
        assert sizes[first:] == [requests * rows] * alone
        assert Strategy.megakernel not in strategies[:first]
        assert sum(sizes[:first]) == (TOKENS - alone) * requests * rows
        gathered = sum(copied > 0 for copied in run.launches(LaunchColumn.PACKED_BYTES))
        in_vain: int = run.prepared.path.ahead.called_off
        assert 0 < in_vain <= 2
        assert run.recorder.launch_calls == len(sizes) + COPY_CALLS * gathered + in_vain
    close(run)


@cases([("decode", 3), ("paged", 3)], [Dtype.fp32])
def test_other_steps_are_launched_as_in_coalesced(device: Any, name: str, requests: int, dtype: Dtype) -> None:
    """These are the prompts of the requests, and their first steps."""
    found = []
    for mode in (MegakernelMode(), Coalesced()):
        stream = stream_of(name, [(3, 3)] * requests, dtype)
        run = run_of(device, stream, mode)
        run.run()
        run.check()
        columns = (
            run.launches(column)
            for column in (
                LaunchColumn.BATCH,
                LaunchColumn.SHAPE,
                LaunchColumn.SIZE,
                LaunchColumn.STRATEGY,
            )
        )
        found.append(list(zip(*columns, strict=True)))
        close(run)
    ours, theirs = found
    launched = [row for row in ours if row[3] != Strategy.megakernel]
    steps = {row[0] for row in ours if row[3] == Strategy.megakernel}
    assert len(launched) > len(steps) == 2
    assert launched == [row for row in theirs if row[0] not in steps]


@cases([("decode", 4), ("layer", 4), ("paged", 4)])
def test_prompts_and_arbitrary_batches(device: Any, name: str, requests: int, dtype: Dtype) -> None:
    """From the second round on, the same batches appear again."""
    stream = stream_of(name, [(3, 3), (0, 4), (0, 5), (5, 2)][:requests], dtype)
    run, found = run_of(device, stream), []
    for seed in (None, 1, 1, 1):
        run.run(seed)
        run.check()
        found.append(run.launches(LaunchColumn.STRATEGY).count(Strategy.megakernel))
        assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
    assert found[1] < found[2] == found[3]
    close(run)


class CommandsOfSteps(EachCommand):
    """Launches each command of a whole step alone, in the order of the batch."""

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch each command."""
        shape_of = np.zeros(len(batch.words), np.int32)
        shape_finder(self.device.work.shapes).classify(batch.words.reshape(-1).view(COMMAND_DTYPE), shape_of)
        self.submit_each(batch.words, shape_of, flush_ns)


class EachAlone(Baseline):
    """A version of baseline that takes whole steps instead of single commands."""

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> CommandsOfSteps:
        """Plan as baseline does."""
        plain = super().prepare(device, limits)
        return CommandsOfSteps(self, device, plain.path)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [GREEDY, TOP_K], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("name", ["decode", "paged"])
def test_sampled_tokens_are_those_of_baseline(name: str, sampling: Sampling) -> None:
    from launchopt.devices.cuda.device import CudaDevice

    ids = []
    for mode in (MegakernelMode(), EachAlone()):
        stream = stream_of(name, [(2, 4), (0, TOKENS), (0, TOKENS)], Dtype.fp32, vocab=300)
        run = run_of(CudaDevice(0), stream, mode, sampling)
        run.run()
        run.check()
        if mode.name == "megakernel":
            assert Strategy.megakernel in run.launches(LaunchColumn.STRATEGY)
        ids.append((run.flights.done[: stream.tokens] & LOW_HALF).tolist())
        close(run)
    assert ids[0] == ids[1]
    assert len(set(ids[0])) > 1
