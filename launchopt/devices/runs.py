"""Find the commands of a batch whose operands are evenly spaced in memory, so that one strided call can run them."""

from __future__ import annotations

from launchopt.command import Op
from launchopt.native import compiled
from launchopt.records import op_of, request_of, slots_of
from launchopt.types import Int, Words

# The first and the last op that read sequences. A launch of one runs consecutive requests, in ascending order.
FIRST_SEQUENCE_OP, LAST_SEQUENCE_OP = int(Op.SLOT_MAP), int(Op.AV)


@compiled
def run_end(words: Words, first: Int, move_a: Int, move_b: Int, move_c: Int) -> Int:
    """Return one past the last record, from `first` on, whose slots each follow the record before by a fixed step.

    move_a, move_b, move_c: the steps, in slots. For an op that reads sequences, request numbers must rise by one, too.
    Even spacing does not imply that: prompts of one token may lie one lane apart although a request without a prompt
    stands between them.
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
