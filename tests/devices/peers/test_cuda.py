"""Ranks of a split model on GPUs, over stand-ins for CuPy and nvmath: a thread for each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cuda import FakeRank, fake_cuda
from support.steps.checked_tokens import GREEDY
from support.steps.program_interpreter import NONE
from support.steps.split_runs import in_ranks, streams_of, team_of
from support.steps.step_runs import StepRun

from launchopt.command import Op
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from launchopt.recording.launch_rows import LaunchColumn
from launchopt.streams.chains.chain_table import ChainColumn


@pytest.fixture
def device() -> Iterator[Any]:
    with fake_cuda(FakeRank) as device:
        yield device


def all_reduces(run: StepRun) -> int:
    rows = [run.stream.rows(kind) for kind in range(len(run.stream.kinds))]
    return sum(row.op is Op.ALL_REDUCE for row in rows[run.stream.decode_kind])


def outputs_of(run: StepRun) -> Any:
    """Return the outputs of all tokens, or the logits of the last token of each request."""
    stream, arrays = run.stream, run.device.arenas.arrays
    if stream.vocab is None:
        return arrays[stream.history]
    first = (stream.table[:, ChainColumn.LANE] + stream.logits_offset) * stream.activations.cols
    return arrays[stream.activations].reshape(-1)[first[:, None] + np.arange(stream.vocab)]


@pytest.mark.parametrize("vocab", [None, 48])
@pytest.mark.parametrize("mode", ["coalesced", "engine"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_compute_the_whole_model_with_an_all_reduce_a_launch(
    vocab: int | None, mode: str, ranks: int, device: Any
) -> None:
    stream, _ = streams_of("linear", ranks, vocab=vocab)
    sampling = NONE if vocab is None else GREEDY
    with team_of(ranks, 0) as (_, members):
        devices = [type(device)() for _ in members]
        made = in_ranks(ranks, lambda rank: StepRun(mode, stream, 3, devices[rank], sampling, team=members[rank]))
        for run in made:
            run.device.split.reset()

        def run(rank: int) -> Any:
            made[rank].run()
            return made[rank].device.split.collectives()

        counts = {found.calls for found in in_ranks(ranks, run)}
        assert len(counts) == 1
        assert counts.pop() >= all_reduces(made[0])
        for each in made:
            each.check()
            assert each.device.split.shares.fault(each.device.arenas) is None
        first, *others = [outputs_of(each) for each in made]
        for other in others:
            assert np.array_equal(first, other), "all ranks have the same bits"

        def close(rank: int) -> None:
            made[rank].device.close()
            made[rank].device.split.close()

        in_ranks(ranks, close)


def test_an_all_reduce_and_the_add_behind_it_are_one_launch(device: Any) -> None:
    stream, _ = streams_of("residual", 2)
    mode = mode_class("coalesced", {"fuse": ["reduce"]})
    with team_of(2, 0) as (_, members):
        devices = [type(device)() for _ in members]
        made = in_ranks(2, lambda rank: StepRun(mode(), stream, 3, devices[rank], team=members[rank]))
        in_ranks(2, lambda rank: made[rank].run())
        for run in made:
            run.check()
            launched = Counter(stream.shapes[index].op for index in run.launches(LaunchColumn.SHAPE))
            assert set(launched) == {Op.GEMM, Op.ALL_REDUCE}
            assert launched[Op.GEMM] == 2 * launched[Op.ALL_REDUCE]
        in_ranks(2, lambda rank: (made[rank].device.close(), made[rank].device.split.close()))


def test_gpus_without_peer_access_are_refused_in_one_line(device: Any) -> None:
    stream, _ = streams_of("linear", 2)
    device.cupy.has_peer_access = False
    with team_of(2, 0) as (_, members):
        devices = [type(device)() for _ in members]

        def opened(rank: int) -> str:
            with pytest.raises(ConfigError) as error:
                StepRun(mode_class("coalesced")(), stream, 3, devices[rank], team=members[rank])
            return str(error.value)

        for text in in_ranks(2, opened):
            assert text.endswith("GPU 0 cannot read the memory of GPU 0: name GPUs with peer access (NVLink)")
