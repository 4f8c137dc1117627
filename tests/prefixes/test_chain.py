"""Keys of blocks: the same as far as prompts are the same, and none for a block that is not full."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from launchopt.prefixes.chain import ROOT, keys_of

TOKENS = st.lists(st.integers(0, 2), max_size=24)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_a_key_is_the_hash_of_all_tokens_up_to_the_end_of_the_block() -> None:
    ends = [array([1, 2]), array([1, 2, 3, 4])]
    assert keys_of(array([1, 2, 3, 4, 5]), 2) == [sha256(ROOT + end.tobytes()).digest() for end in ends]
    assert keys_of(array([1, 2]), 2, root=b"tenant") == [sha256(b"tenant" + ends[0].tobytes()).digest()]


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_two_prompts_share_the_keys_of_the_full_blocks_of_their_common_beginning(
    one: list[int], other: list[int], block: int
) -> None:
    common = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    length = min(len(one), len(other)) if common is None else common
    ours, theirs = keys_of(array(one), block), keys_of(array(other), block)
    assert [len(ours), len(theirs)] == [len(one) // block, len(other) // block]
    shared = length // block
    assert ours[:shared] == theirs[:shared]
    assert not {*ours[shared:]} & {*theirs[shared:]}


def test_another_root_shares_nothing() -> None:
    tokens = array([7] * 32)
    assert not {*keys_of(tokens, 4)} & {*keys_of(tokens, 4, root=b"tenant")}
