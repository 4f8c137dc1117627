"""The check of a split model, against the whole model: correct ranks pass, and a wrong share or sum is found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.steps.checked_tokens import GREEDY
from support.steps.program_interpreter import NONE, Run
from support.steps.split_runs import split_runs, streams_of

from launchopt.command import Dtype, Op, Records
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.peers.host import HostPeers
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.types import Array

EXCHANGE = HostPeers.exchange

PROGRAMS = pytest.mark.parametrize("name", ["layer", "linear"])


@PROGRAMS
@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_ranks_compute_the_tokens_of_the_whole_model(name: str, dtype: Dtype, tensor: int) -> None:
    part, whole = streams_of(name, tensor, dtype, vocab=50)
    alone = Run(whole, GREEDY)
    with split_runs(part, GREEDY) as runs:
        for run in runs:
            found = run.verify()
            assert (found.ok, found.first_wrong) == (True, None)
            assert 0 < found.max_rel_error < found.tolerance
            assert np.array_equal(run.ids, runs[0].ids)
    assert dtype is not Dtype.fp32 or np.array_equal(runs[0].ids, alone.ids)


def rounding_as_nccl(self: HostPeers, op: Op, operands: Sequence[tuple[Array, Array]]) -> None:
    """Exchange; then add again in the dtype, as a ring of NCCL does. Parts stay until the next exchange."""
    EXCHANGE(self, op, operands)
    for b, c in operands if op is Op.ALL_REDUCE else ():
        place = b.__array_interface__["data"][0] - self.own.__array_interface__["data"][0]
        first, *others = (np.ndarray(b.shape, b.dtype, each, place, b.strides) for each in self.activations)
        total = to_float32(first, Dtype.bf16)
        for part in others:
            total = to_float32(from_float32(total + to_float32(part, Dtype.bf16), Dtype.bf16), Dtype.bf16)
        c[:] = from_float32(total, Dtype.bf16)


@pytest.mark.parametrize("tensor", [4, 8])
def test_sums_whose_every_addition_is_rounded_have_a_bound_of_their_own(
    tensor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostPeers, "exchange", rounding_as_nccl)
    errors = {}
    for rounds_sums in (True, False):
        part, _ = streams_of("layer", tensor, Dtype.bf16, vocab=50, rounds_sums=rounds_sums)
        with split_runs(part, GREEDY) as runs:
            found = [run.verify() for run in runs]
        errors[rounds_sums] = {each.first_wrong and "all_reduce" in each.first_wrong for each in found}
    assert errors == {True: {None}, False: {True}}


@PROGRAMS
def test_all_ranks_have_the_same_bits_after_every_layer(name: str) -> None:
    part, _ = streams_of(name, 4, Dtype.bf16)
    with split_runs(part, NONE) as runs:
        history = [run.arenas.arrays[part.history].copy() for run in runs]
    for each in history[1:]:
        assert np.array_equal(each, history[0])


def without_sum(run: Run, request: int, step: int, records: Records) -> Records:
    """Drop the first all-reduce of a step: its output stays as it was, and the peers are told that it took place."""
    first = int(np.flatnonzero(records["op"] == Op.ALL_REDUCE)[0])
    if (request, step) == (2, 3):
        _, b, c = run.operands(records[first])
        assert run.split is not None
        run.split.peers.exchange(Op.ALL_REDUCE, [(b, c)])
        c[:] = b  # its own part alone
        return np.delete(records, first)
    return records


@PROGRAMS
@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=["outputs", "ids"])
def test_a_sum_without_the_parts_of_others_is_found_by_the_rank_that_has_it(name: str, sampling: Sampling) -> None:
    part, _ = streams_of(name, 2, vocab=None if sampling is NONE else 50)
    with split_runs(part, sampling, {1: without_sum}) as (_, wrong):
        found = wrong.verify()
    assert not found.ok
    assert found.first_wrong is not None


def test_logits_that_are_not_those_of_the_other_rank_are_found() -> None:
    part, _ = streams_of("layer", 2, vocab=50)
    with split_runs(part, GREEDY) as (wrong, _):
        assert wrong.verify().ok
        lane = (int(part.table[1, ChainColumn.LANE]) + part.logits_offset) * part.activations.cols
        wrong.arenas.arrays[part.activations].reshape(-1)[lane + 25] += 1e-4  # of the other's half
        found = wrong.verify()
    assert not found.ok
    assert "all_gather:50x1x25" in str(found.first_wrong)


def test_a_share_of_another_rank_or_a_changed_weight_is_found() -> None:
    part, _ = streams_of("layer", 2)
    with split_runs(part) as (run, other):
        assert run.split is not None
        shares = run.split.shares
        assert shares.fault(run.arenas) is None
        assert "the share of weight qkv of layer 0 is not that of the whole weight" in str(shares.fault(other.arenas))
        arena = next(arena for arena in part.arenas if arena.role == "a" and arena.cols == 64)
        run.arenas.arrays[arena][1, 5] += 1
        assert "is not that of the whole weight" in str(shares.fault(run.arenas))
