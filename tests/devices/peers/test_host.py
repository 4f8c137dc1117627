"""All-reduces and gathers between ranks in shared memory."""

from __future__ import annotations

import threading
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes.peer_ranks import ROUNDS, SIZES, add_in_rounds, parts_of
from support.steps.split_runs import PATIENCE_S, in_ranks, team_of

from launchopt.command import COLLECTIVES, Dtype, Op
from launchopt.devices.arenas import STORAGE, from_float32, to_float32
from launchopt.devices.peers.host import HostPeers
from launchopt.errors import Interrupted, RunError

ELEMENTS = 768


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(sorted(COLLECTIVES)),
    st.sampled_from(Dtype),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_every_rank_gets_the_sum_or_the_parts_in_the_order_of_ranks(
    op: Op, dtype: Dtype, ranks: int, commands: int, seed: int
) -> None:
    parts = np.random.default_rng(seed).standard_normal((ranks, commands, 2, 16)).astype(np.float32)
    stored = np.stack([from_float32(part, dtype) for part in parts])
    total = np.zeros(parts.shape[1:], np.float32)
    for part in stored:
        total += to_float32(part, dtype)
    expected = from_float32(total, dtype) if op is Op.ALL_REDUCE else np.concatenate(stored, axis=-1)
    with team_of(ranks, ELEMENTS * np.dtype(STORAGE[dtype]).itemsize) as (_, members):
        peers = [HostPeers(member, dtype, ELEMENTS) for member in members]

        def add(rank: int) -> object:
            own = peers[rank].own
            b = own[: commands * 64].reshape(commands, 2, 32)[:, :, :16]  # rows with gaps, as in a lane
            c = own[commands * 64 :][: expected.size].reshape(expected.shape)
            b[...] = stored[rank]
            peers[rank].exchange(op, [(b[i : i + 1], c[i : i + 1]) for i in range(commands)])
            return c.copy()

        for found in in_ranks(ranks, add):
            assert np.array_equal(found, expected)
        assert {each.collectives().calls for each in peers} == {int(op is Op.ALL_REDUCE)}
        for each in peers:
            each.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_add_again_and_again_without_a_second_barrier(ranks: int) -> None:
    """Parts of two places take turns. A rank that ran ahead would overwrite a part that another still reads."""
    context = get_context("spawn")
    with team_of(ranks, SIZES.memory_bytes) as (_, members), context.Pool(ranks) as pool:
        found = pool.map_async(add_in_rounds, members, chunksize=1).get(PATIENCE_S)
    expected = sum(parts_of(rank, np.arange(ROUNDS)) for rank in range(ranks))
    for of_rank in found:
        assert np.array_equal(of_rank, expected)


def test_a_wait_ends_when_the_parent_says_stop() -> None:
    with team_of(2, ELEMENTS * 4) as (segment, members):
        peers = HostPeers(members[0], Dtype.fp32, ELEMENTS)
        timer = threading.Timer(0.05, segment.stop)
        timer.start()
        with pytest.raises(Interrupted, match="stopped while an all-reduce waited"):
            peers.exchange(Op.ALL_REDUCE, [(peers.own[None, None, :4], peers.own[None, None, 4:8])])
        assert peers.collectives().calls == 0
        timer.join()
        peers.close()


def test_ranks_that_execute_different_commands_are_told_apart() -> None:
    with team_of(2, ELEMENTS * 4) as (_, members):
        peers = [HostPeers(member, Dtype.fp32, ELEMENTS) for member in members]

        def add(rank: int) -> str:
            place = 16 * rank
            own = peers[rank].own[None, None, place : place + 4]
            with pytest.raises(RunError) as error:
                peers[rank].exchange(Op.ALL_REDUCE, [(own, np.zeros((1, 1, 4)))])
            return str(error.value)

        for text in in_ranks(2, add):
            assert text.startswith("all-reduce 1: the ranks execute different commands")
        for each in peers:
            each.close()
