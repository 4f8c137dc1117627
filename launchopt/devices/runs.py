"""Find the commands of a batch whose operands are evenly spaced in memory, so that one strided call can run them."""

from __future__ import annotations

from launchopt.command import Op
from launchopt.native import compiled
from launchopt.records import op_of, request_of, slots_of
from launchopt.types import Int, Words

# The first and the last op that read sequences. One launch of such an op takes requests with consecutive numbers.
FIRST_SEQUENCE_OP, LAST_SEQUENCE_OP = int(Op.SLOT_MAP), int(Op.AV)


@compiled
def run_end(words: Words, first: Int, move_a: Int, move_b: Int, move_c: Int) -> Int:
    """Return one past the last record of the run of commands that begins at record `first`.

    From each record of the run to the next, slots A, B and C grow by `move_a`, `move_b` and `move_c`. For ops that read
    sequences, the request's number must also grow by 1. Even spacing does not imply this: two requests with one-token
    prompts can be one lane apart although the batch lacks a request between them.
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
