"""Which memory an instruction reads, and which it writes.

In: an instruction (`instruction_words`). Out: spans as `dependencies` takes them. Keys, values and their pages are
found by positions that only the device knows: an op on the cache counts as reading, or writing, all of a layer's.
"""

from __future__ import annotations

from launchopt.command import INDEX_BYTES, Op
from launchopt.devices.instructions import dependencies as dep
from launchopt.devices.instructions.words import POSITIONED_OPS, VECTOR_OPS, Instruction, Word

Spans = list[dep.Span]


def accesses(row: Instruction, itemsize: int) -> tuple[Spans, Spans]:
    """What an instruction may read, and what it may write."""
    word = {each: int(row[each]) for each in Word}
    op = Op(word[Word.OP])
    if op is Op.SLOT_MAP:
        return [_positions(word, is_next=True), _pages(word)], [
            *(_positions(word, is_next) for is_next in (False, True)),
            (word[Word.C], INDEX_BYTES * word[Word.N], word[Word.STRIDE_C], word[Word.REQUESTS]),
        ]
    reads = [_rows(word, "B", word[Word.K], itemsize)]
    if op is Op.GEMM:
        last_row = (word[Word.M] - 1) * word[Word.LDA]
        reads.append((word[Word.A], (last_row + word[Word.K]) * itemsize, word[Word.STRIDE_A], _requests(word, "A")))
    elif op in VECTOR_OPS:
        reads.append((word[Word.A], word[Word.M] * itemsize, 0, 1))
    elif op is Op.ADD:
        reads.append(_rows(word, "A", word[Word.M], itemsize))
    elif op is Op.KV_WRITE:
        reads.append((word[Word.A], INDEX_BYTES * word[Word.N], word[Word.STRIDE_A], _requests(word, "A")))
        return reads, [_pool(word, Word.C, itemsize)]
    elif op in (Op.QK, Op.AV):
        reads.append(_pool(word, Word.A, itemsize))
    if op in POSITIONED_OPS:
        reads += [_positions(word, is_next=False), _pages(word)]
    return reads, [_rows(word, "C", word[Word.M], itemsize)]


Words = dict[Word, int]


def _requests(word: Words, role: str) -> int:
    """How many operands there are: one where all requests share it."""
    return word[Word.REQUESTS] if word[Word[f"STRIDE_{role}"]] else 1


def _rows(word: Words, role: str, features: int, itemsize: int) -> dep.Span:
    """An operand of N rows a request. Of a single request rows of others may lie between them."""
    row_bytes, rows = word[Word[f"LD{role}"]] * itemsize, word[Word.N]
    requests = _requests(word, role)
    if requests == 1:
        return word[Word[role]], features * itemsize, row_bytes, rows
    return word[Word[role]], (rows - 1) * row_bytes + features * itemsize, word[Word[f"STRIDE_{role}"]], requests


def _pool(word: Words, role: Word, itemsize: int) -> dep.Span:
    """A layer's cache, whole."""
    tokens = word[Word.ALL_REQUESTS] * word[Word.PAGES] * word[Word.PAGE_TOKENS]
    return word[role], 2 * tokens * word[Word.KV_HEADS] * word[Word.HEAD_DIM] * itemsize, 0, 1


def _positions(word: Words, is_next: bool) -> dep.Span:
    """Where its requests' columns start, or where the next step's do."""
    first = word[Word.FIRST_REQUEST] + is_next * word[Word.ALL_REQUESTS]
    return word[Word.POSITIONS] + INDEX_BYTES * first, INDEX_BYTES * word[Word.REQUESTS], 0, 1


def _pages(word: Words) -> dep.Span:
    """The page table, whole."""
    return word[Word.TABLE], INDEX_BYTES * word[Word.ALL_REQUESTS] * word[Word.PAGES], 0, 1
