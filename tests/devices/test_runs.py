"""Runs of evenly spaced commands. If the op reads a sequence, the requests of a run are also consecutive."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.megakernel.instruction_runs import InstructionRun
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.command import COMMAND_DTYPE, Op, Records, as_words
from launchopt.devices.cpu.ops import STATEFUL
from launchopt.devices.runs import FIRST_SEQUENCE_OP, LAST_SEQUENCE_OP, run_end
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain_table import ChainColumn

moves = st.tuples(*[st.integers(0, 3)] * 3)


def goes_on(records: Records, i: int, move: tuple[int, int, int]) -> bool:
    """Return whether record i belongs to the run of the previous record."""
    here, before = records[i], records[i - 1]
    slots = (int(here[f"slot_{role}"]) - int(before[f"slot_{role}"]) for role in "abc")
    in_turn = int(here["request"]) == int(before["request"]) + 1
    return tuple(slots) == move and (in_turn or Op(int(here["op"])) not in STATEFUL)


@settings(deadline=None)
@given(st.sampled_from(Op), moves, st.lists(st.tuples(moves, st.sampled_from([0, 1, 1, 1, 2])), max_size=8))
def test_a_run_ends_where_slots_or_sequences_do_not_go_on(
    op: Op, move: tuple[int, int, int], steps: list[tuple[tuple[int, int, int], int]]
) -> None:
    records = np.zeros(len(steps) + 1, COMMAND_DTYPE)
    records["op"] = op
    for i, (slots, requests) in enumerate(steps, 1):
        for role, given_move, other in zip("abc", move, slots, strict=True):
            # Two of three distances are the usual one.
            records[f"slot_{role}"][i] = records[f"slot_{role}"][i - 1] + (given_move if i % 3 else other)
        records["request"][i] = records["request"][i - 1] + requests
    words, first = as_words(records), 0
    while first < len(records):
        stop = int(run_end(words, first, *move))
        assert stop > first
        assert all(goes_on(records, i, move) for i in range(first + 1, stop))
        assert stop == len(records) or not goes_on(records, stop, move)
        first = stop


def test_ops_of_sequences_are_those_that_know_of_requests() -> None:
    assert {op for op in Op if FIRST_SEQUENCE_OP <= op <= LAST_SEQUENCE_OP} == STATEFUL


def test_requests_that_happen_to_lie_a_lane_apart_keep_their_sequences() -> None:
    """The batch has requests 0 and 2, whose prompts of one token have regions of half a lane, but not request 1."""
    stream, found = stream_of("layer", [(1, 2)] * 3, layers=2, vocab=100), 0
    assert stream.table[2, ChainColumn.PREFILL] - stream.table[0, ChainColumn.PREFILL] == stream.lane_units
    for seed in range(8):
        rig = InstructionRun(stream, Sampling(SamplingKind.greedy))
        for batch in batches(stream, 2, seed):
            records = batch.words.view(COMMAND_DTYPE).reshape(batch.rows, batch.size)
            found += records["request"][0].tolist() == [0, 2] and int(records["token"][0, 0]) == 0
            rig.step(batch)
        assert rig.verify().ok
    assert found, "no batch of the prompts of 0 and 2"
