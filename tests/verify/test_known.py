"""Outputs whose bits were compared before are not compared again; any other outputs are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.devices.arenas import Arenas
from launchopt.streams.operands import ArenaKey
from launchopt.verify.commands import Verification
from launchopt.verify.hashes import Hashes
from launchopt.verify.known import KnownOutputs

SEED = 3
INPUTS, OUTPUTS = ArenaKey("a", 33, 65, Dtype.fp32), ArenaKey("c", 40, 3, Dtype.fp16)
RIGHT = Verification(9, 9, 0, 1e-4, 1e-3, 1.0, None)
WRONG = Verification(9, 9, 2, 1e-1, 1e-3, 1.0, "output 3")


def arenas() -> Arenas:
    made = Arenas(np, {INPUTS: 7, OUTPUTS: 5})
    made.fill(SEED)
    made.poison()
    made.peers = (np.zeros(64, np.uint16),)
    return made


def compared(known: KnownOutputs, run: str, found: Verification = RIGHT, also: bytes = b"") -> bool:
    """Check the outputs in memory; return whether they were compared, and not known."""
    calls = list[str]()

    def compare() -> Verification:
        calls.append(run)
        return found

    result = known.check(run, also, compare)
    assert result.found == found
    assert (result.run == run) == bool(calls)
    return bool(calls)


def test_the_same_bits_are_compared_once() -> None:
    known = KnownOutputs(arenas(), Hashes(np, SEED))
    assert [compared(known, run) for run in ("first", "second", "third")] == [True, False, False]


@given(st.data())
def test_outputs_with_one_other_word_are_compared(data: st.DataObject) -> None:
    made = arenas()
    known, outputs = KnownOutputs(made, Hashes(np, SEED)), made.arrays[OUTPUTS].reshape(-1)
    assert compared(known, "first")
    at = data.draw(st.integers(0, len(outputs) - 1))
    bit = data.draw(st.integers(0, 15))
    outputs.view(np.uint16)[at] ^= np.uint16(1 << bit)
    assert compared(known, "second")
    outputs.view(np.uint16)[at] ^= np.uint16(1 << bit)
    assert not compared(known, "third")


@given(st.data())
def test_outputs_with_other_signs_are_compared(data: st.DataObject) -> None:
    """A sign is the highest bit of a word, whose product with an odd number is the same for all of them."""
    made = arenas()
    known, outputs = KnownOutputs(made, Hashes(np, SEED)), made.arrays[OUTPUTS].reshape(-1).view(np.uint16)
    outputs[...] = np.arange(1, len(outputs) + 1)
    assert compared(known, "first")
    changed = data.draw(st.lists(st.integers(0, len(outputs) - 1), min_size=1, max_size=64, unique=True))
    bit = data.draw(st.integers(10, 15))
    outputs[changed] ^= np.uint16(1 << bit)
    assert compared(known, "second")


def test_two_exchanged_slots_are_compared() -> None:
    made = arenas()
    made.arrays[OUTPUTS][...] = np.arange(made.arrays[OUTPUTS].size).reshape(made.arrays[OUTPUTS].shape)
    known = KnownOutputs(made, Hashes(np, SEED))
    assert compared(known, "first")
    made.arrays[OUTPUTS][[1, 4]] = made.arrays[OUTPUTS][[4, 1]]
    assert compared(known, "second")


def test_activations_of_another_gpu_are_part_of_the_state() -> None:
    made = arenas()
    known = KnownOutputs(made, Hashes(np, SEED))
    assert compared(known, "first")
    made.peers[0][17] = 1
    assert compared(known, "second")


def test_what_the_caller_names_is_part_of_the_state() -> None:
    known = KnownOutputs(arenas(), Hashes(np, SEED))
    assert [compared(known, run, also=ids) for run, ids in (("1", b"1"), ("2", b"2"), ("3", b"1"))] == [
        True,
        True,
        False,
    ]


def test_wrong_outputs_are_compared_again() -> None:
    known = KnownOutputs(arenas(), Hashes(np, SEED))
    assert [compared(known, run, WRONG) for run in ("first", "second")] == [True, True]


def test_inputs_have_a_check_of_their_own() -> None:
    made = arenas()
    known = KnownOutputs(made, Hashes(np, SEED))
    assert compared(known, "first")
    made.arrays[INPUTS][2, 2] += 1
    assert not compared(known, "second")
