"""Which commands of a batch lie evenly spaced in memory, so that one strided call can take them."""

from __future__ import annotations

from launchopt.command import Op
from launchopt.native import compiled
from launchopt.records import op_of, request_of, slots_of
from launchopt.types import Int, Words

# First and last of the ops that read sequences: a launch takes the requests that follow its first one, in order.
FIRST_SEQUENCE_OP, LAST_SEQUENCE_OP = int(Op.SLOT_MAP), int(Op.AV)


@compiled
def run_end(words: Words, first: Int, move_a: Int, move_b: Int, move_c: Int) -> Int:
    """Return one past the last record that follows `first` with every slot moving on by exactly its move.

    The requests of an op that reads sequences follow each other, too. Evenly spaced lanes do not say so: prompts of one
    token may lie a lane apart where the request between them has none.
    """
    a, b, c = slots_of(words, first)
    in_turn = FIRST_SEQUENCE_OP <= op_of(words, first) <= LAST_SEQUENCE_OP
    stop = first + 1
    while stop < len(words):
        next_a, next_b, next_c = slots_of(words, stop)
        if next_a != a + move_a or next_b != b + move_b or next_c != c + move_c:
            break
        if in_turn and request_of(words, stop) != request_of(words, stop - 1) + 1:
            break
        a, b, c = next_a, next_b, next_c
        stop += 1
    return stop
