"""Who waits for whom in a list of instructions, and who has its inputs by mail.

In: instructions in an order that is right, those done together marked (`instruction_words.groups_of`). Out: the same
list with WAITS, MAIL and LEVEL, and joins (op JOIN) where one would have to wait for more than four.

Who waits for whom follows from memory alone (`dependencies`). Two things need no waiting. A GEMM, or attention, may be
sent its inputs element by element as they are made: whose they are says MAIL. Nothing else follows from having had
mail: not that anything was stored. And a sum with what a GEMM of as many rows stored before is of one thread's own
numbers, since both are cut alike: where the order follows from all else, nobody is waited for. (Where two blocks share
one of both they are not: `megakernel_tasks` has it come by mail, or waited for.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launchopt.command import Op
from launchopt.devices.instructions import dependencies as dep
from launchopt.devices.instructions.accesses import Spans, accesses
from launchopt.devices.instructions.words import (
    NOBODY,
    PART,
    VECTOR_BYTES,
    WORDS,
    Instruction,
    Instructions,
    Word,
    groups_of,
    streamable,
)
from launchopt.kernels.shared import JOIN, MOST_WAITS

SENT = Word.C, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_C
WANTED = Word.B, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_B
ADDED = Word.A, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_A


@dataclass(frozen=True)
class Unit:
    """Instructions that are done as one, and what these read and write.

    gemm: the one whose weights are copied ahead of time, if there is one.
    """

    rows: Instructions
    reads: Spans
    writes: Spans
    gemm: Instruction | None

    @property
    def mails(self) -> bool:
        """Whether it can have mail, and send it."""
        return self.gemm is not None or (len(self.rows) > 1 and self.rows[0, Word.OP] == Op.ROPE)


def _unit(rows: Instructions, itemsize: int) -> Unit:
    touched = [accesses(row, itemsize) for row in rows]
    reads, writes = ([span for each in touched for span in each[i]] for i in range(2))
    gemms = [row for row in rows if streamable(row, itemsize)]
    return Unit(rows, reads, writes, gemms[0] if gemms else None)


def with_dependencies(instructions: Instructions, itemsize: int) -> Instructions:
    """The same instructions in the same order, with joins between them where needed, who waits for whom, and LEVEL.

    Joins that were there before are left out first; what WAITS and so on said is not looked at.
    """
    real = instructions[instructions[:, Word.OP] != JOIN]
    units = [_unit(real[group], itemsize) for group in groups_of(real)]
    found = _conflicts(units)
    senders = [_sender(units, i, found[i], itemsize) for i in range(len(units))]
    before: list[int] = []  # of each unit, as bits, all that end before it begins
    for i, sender in enumerate(senders):
        others = np.flatnonzero(found[i]).tolist()
        held = _held(units, i, others, before)
        before.append(_all_before(others, before))
        for j in (sender, held):  # before others are left out because they follow from it: they do not
            if j != NOBODY:
                found[i, j] = False
    return _listed(units, dep.joined(dep.reduced(found), MOST_WAITS), senders)


def _conflicts(units: list[Unit]) -> dep.Flags:
    spans: Spans = []
    owners, is_write = [], []
    for i, unit in enumerate(units):
        for written, some in enumerate((unit.reads, unit.writes)):
            spans += some
            owners += [i] * len(some)
            is_write += [bool(written)] * len(some)
    table = np.array(spans, np.int64).reshape(-1, dep.SPAN_COLUMNS)
    return dep.conflicts(table, np.array(owners, np.int64), np.array(is_write, np.bool_), len(units))


def _all_before(others: list[int], before: list[int]) -> int:
    """Those of `others`, and all that come before one of them."""
    found = 0
    for j in others:
        found |= before[j] | 1 << j
    return found


def _shares(one: Spans, other: Spans) -> bool:
    tables = (np.array(spans, np.int64).reshape(-1, dep.SPAN_COLUMNS) for spans in (one, other))
    first, second = tables
    return bool(dep.overlaps(first[:, None], second[None]).any())


def _sender(units: list[Unit], i: int, conflicting: dep.Flags, itemsize: int) -> int:
    """Whose last outputs, or the first features of them, are the inputs of unit i; NOBODY where it can have no mail."""
    own = units[i]
    if not own.mails:
        return NOBODY
    inputs, others = own.reads[:1], own.reads[1:]  # the first instruction's B; and all else
    for j in reversed(np.flatnonzero(conflicting).tolist()):
        unit = units[j]
        if not _shares(unit.writes, inputs):
            continue
        sent, wanted = unit.rows[-1], own.rows[0]
        fits = wanted[Word.K] <= sent[Word.M] and not sent[Word.M] * itemsize % VECTOR_BYTES
        alone = not _shares(unit.reads + unit.writes, own.writes) and not _shares(unit.writes, others)
        is_same = _same(sent[list(SENT)], wanted[list(WANTED)])
        return j if is_same and fits and alone and unit.mails else NOBODY  # alone: nothing else to wait for
    return NOBODY


def _same(one: Instruction, other: Instruction) -> bool:
    """Of address, requests, the first request, and the stride, which says nothing about a single request."""
    return bool(((one == other) | [False, False, False, bool(one[1] == 1)]).all())


def _held(units: list[Unit], i: int, others: list[int], before: list[int]) -> int:
    """Who stored what unit i adds, thread by thread, if all else that i comes after says that it has; or NOBODY."""
    own = units[i]
    if own.gemm is None or own.rows[-1, Word.OP] != Op.ADD:
        return NOBODY
    reads = own.reads[:-1]  # all but A of the sum, which comes last
    for j in reversed(others):
        unit, last = units[j], units[j].rows[-1]
        if unit.gemm is None or not _same(last[list(SENT)], own.rows[-1][list(ADDED)]):
            continue
        cut_alike = last[Word.M] == unit.gemm[Word.M] == own.gemm[Word.M]
        alone = not _shares(unit.reads + unit.writes, own.writes) and not _shares(unit.writes, reads)
        follows = _all_before([k for k in others if k != j], before) >> j & 1
        return j if cut_alike and alone and follows else NOBODY
    return NOBODY


def _listed(units: list[Unit], steps: list[dep.Step], senders: list[int]) -> Instructions:
    place, size = {}, 0
    places = []  # of each step's first instruction
    for step in steps:
        places.append(size)
        if step.source != dep.JOIN:
            place[step.source] = size
        size += 1 if step.source == dep.JOIN else len(units[step.source].rows)
    made = np.zeros((size, WORDS), np.int64)
    made[:, Word.MAIL] = made[:, Word.WAIT0 : Word.WAIT3 + 1] = NOBODY
    for at, step in zip(places, steps, strict=True):
        head = made[at]
        if step.source == dep.JOIN:
            head[Word.OP], head[Word.ROW] = JOIN, NOBODY
        else:
            rows = units[step.source].rows
            made[at : at + len(rows), : Word.WAITS] = rows[:, : Word.WAITS]
            made[at : at + len(rows), Word.FUSED :] = rows[:, Word.FUSED :]
            sender = senders[step.source]
            head[Word.MAIL] = NOBODY if sender == NOBODY else place[sender]
        head[Word.WAITS] = len(step.waits)
        head[Word.WAIT0 : Word.WAIT0 + len(step.waits)] = [places[wait] for wait in step.waits]
    made[:, Word.LEVEL] = dep.levels(waits_of(made))
    return made


def waits_of(instructions: Instructions) -> list[list[int]]:
    """Of each instruction those that must have come before it: that it waits for, or has mail from.

    Who waits for some that are done together waits for the last of them; each of these comes after the one before.
    """
    last = np.arange(len(instructions)) + np.maximum(instructions[:, Word.FUSED], 0)
    waits = instructions[:, Word.WAIT0 : Word.WAIT3 + 1]
    found = []
    for i, row in enumerate(instructions):
        own = [*waits[i, : row[Word.WAITS]].tolist()]
        own += [] if row[Word.MAIL] == NOBODY else [int(row[Word.MAIL])]
        found.append([i - 1] if row[Word.FUSED] == PART else sorted(int(last[j]) for j in own))
    return found
