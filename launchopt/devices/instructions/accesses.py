"""The memory that an instruction reads and writes, as spans (launchopt/devices/instructions/dependencies.py).

Only the device knows the positions that select keys, values and pages. An op on the KV cache therefore counts as
reading, or writing, the whole cache of its layer.
"""

from __future__ import annotations

from launchopt.command import INDEX_BYTES, Op
from launchopt.devices.instructions import dependencies as dep
from launchopt.devices.instructions.words import POSITIONED_OPS, VECTOR_OPS, Instruction, Word

Spans = list[dep.Span]


def accesses(row: Instruction, itemsize: int) -> tuple[Spans, Spans]:
    """Return the spans that an instruction may read, and the spans that it may write. itemsize: bytes of an element."""
    word = {each: int(row[each]) for each in Word}
    op = Op(word[Word.OP])
    if op is Op.SLOT_MAP:
        return [_positions(word, is_next=True), _pages(word)], [
            *(_positions(word, is_next) for is_next in (False, True)),
            dep.Span(word[Word.C], INDEX_BYTES * word[Word.N], word[Word.STRIDE_C], word[Word.REQUESTS]),
        ]
    reads = [_rows(word, "B", word[Word.K], itemsize)]
    if op is Op.GEMM:
        last_row = (word[Word.M] - 1) * word[Word.LDA]
        length = (last_row + word[Word.K]) * itemsize
        reads.append(dep.Span(word[Word.A], length, word[Word.STRIDE_A], _requests(word, "A")))
    elif op is Op.ROPE and word[Word.QK_NORM]:
        reads.append(dep.Span(word[Word.A], 2 * word[Word.HEAD_DIM] * itemsize, 0, 1))
    elif op in VECTOR_OPS:
        reads.append(dep.Span(word[Word.A], word[Word.M] * itemsize, 0, 1))
    elif op is Op.ADD:
        reads.append(_rows(word, "A", word[Word.M], itemsize))
    elif op is Op.KV_WRITE:
        reads.append(dep.Span(word[Word.A], INDEX_BYTES * word[Word.N], word[Word.STRIDE_A], _requests(word, "A")))
        return reads, [_pool(word, Word.C, itemsize)]
    elif op in (Op.QK, Op.AV):
        reads.append(_pool(word, Word.A, itemsize))
    if op in POSITIONED_OPS:
        reads += [_positions(word, is_next=False), _pages(word)]
    return reads, [_rows(word, "C", word[Word.M], itemsize)]


Words = dict[Word, int]


def _requests(word: Words, role: str) -> int:
    """Return the number of operands of a role (A, B or C): 1 if all requests share it, else one per request."""
    return word[Word.REQUESTS] if word[Word[f"STRIDE_{role}"]] else 1


def _rows(word: Words, role: str, features: int, itemsize: int) -> dep.Span:
    """Return the span of an operand of N rows per request.

    features: elements of a row. Between two rows of a request, memory may hold rows of other requests.
    """
    row_bytes, rows = word[Word[f"LD{role}"]] * itemsize, word[Word.N]
    requests = _requests(word, role)
    if requests == 1:
        return dep.Span(word[Word[role]], features * itemsize, row_bytes, rows)
    length = (rows - 1) * row_bytes + features * itemsize
    return dep.Span(word[Word[role]], length, word[Word[f"STRIDE_{role}"]], requests)


def _pool(word: Words, role: Word, itemsize: int) -> dep.Span:
    """Return the span of a layer's whole KV cache. role: the word with its address."""
    tokens = word[Word.ALL_REQUESTS] * word[Word.PAGES] * word[Word.PAGE_TOKENS]
    return dep.Span(word[role], 2 * tokens * word[Word.KV_HEADS] * word[Word.HEAD_DIM] * itemsize, 0, 1)


def _positions(word: Words, is_next: bool) -> dep.Span:
    """Return the span of the positions of the instruction's requests, in this step or in the next."""
    first = word[Word.FIRST_REQUEST] + is_next * word[Word.ALL_REQUESTS]
    return dep.Span(word[Word.POSITIONS] + INDEX_BYTES * first, INDEX_BYTES * word[Word.REQUESTS], 0, 1)


def _pages(word: Words) -> dep.Span:
    """Return the span of the whole page table."""
    return dep.Span(word[Word.TABLE], INDEX_BYTES * word[Word.ALL_REQUESTS] * word[Word.PAGES], 0, 1)
