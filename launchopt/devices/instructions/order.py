"""Waits between the instructions of a list, and the instructions that receive their inputs through mailboxes.

`with_dependencies` sets the columns WAITS, WAIT0 to WAIT3, MAIL and LEVEL. The list must be in a valid order, and its
fusions must be set. If an instruction would wait for more than MOST_WAITS others, it inserts joins (op JOIN) before it.

Waits follow from the memory that instructions read and write (`dependencies`). Two cases need no wait:

* A GEMM, or fused attention, may receive its inputs through mailboxes (kernels/megakernel/mailboxes.cuh), element by
  element as they are made. Column MAIL is the sender. A received element does not imply that the sender has stored its
  other outputs.
* An OP_ADD that is fused behind a GEMM may add the outputs of an earlier GEMM with the same number of rows. The blocks
  divide both GEMMs alike, so each thread adds elements that it has stored itself. The wait is left out if the other
  waits imply that the earlier GEMM is complete. If the two blocks of a cluster share tiles of only one of the GEMMs,
  launchopt/devices/megakernel/tasks.py uses mailboxes or a wait instead.
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
from launchopt.kernels.shared_megakernel import JOIN, MOST_WAITS

# Columns of outputs, of inputs, and of the operand that ADD adds. `_same` compares the first with one of the others.
SENT = Word.C, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_C
WANTED = Word.B, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_B
ADDED = Word.A, Word.REQUESTS, Word.FIRST_REQUEST, Word.STRIDE_A


@dataclass(frozen=True)
class Unit:
    """A group of fused instructions, or a single instruction, with the spans that it reads and writes.

    gemm: the streamed GEMM of the group, or None.
    """

    rows: Instructions
    reads: Spans
    writes: Spans
    gemm: Instruction | None

    @property
    def mails(self) -> bool:
        """Whether the unit can receive inputs, and send outputs, through mailboxes."""
        return self.gemm is not None or (len(self.rows) > 1 and self.rows[0, Word.OP] == Op.ROPE)


def _unit(rows: Instructions, itemsize: int) -> Unit:
    touched = [accesses(row, itemsize) for row in rows]
    reads, writes = ([span for each in touched for span in each[i]] for i in range(2))
    gemms = [row for row in rows if streamable(row, itemsize)]
    return Unit(rows, reads, writes, gemms[0] if gemms else None)


def with_dependencies(instructions: Instructions, itemsize: int) -> Instructions:
    """Return the instructions in the same order, with waits, MAIL and LEVEL set, and with the joins that are needed.

    Joins and waits of the given list are ignored. itemsize: bytes of an element.
    """
    real = instructions[instructions[:, Word.OP] != JOIN]
    units = [_unit(real[group], itemsize) for group in groups_of(real)]
    found = _conflicts(units)
    senders = [_sender(units, i, found[i], itemsize) for i in range(len(units))]
    before: list[int] = []  # for each unit: bits of the units that are complete before it begins
    for i, sender in enumerate(senders):
        others = np.flatnonzero(found[i]).tolist()
        held = _held(units, i, others, before)
        before.append(_all_before(others, before))
        for j in (sender, held):  # these are no waits, so `reduced` must not derive other waits from them
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
    """Return the bits of the units `others` and of all units that are complete before one of those begins."""
    found = 0
    for j in others:
        found |= before[j] | 1 << j
    return found


def _shares(one: Spans, other: Spans) -> bool:
    tables = (np.array(spans, np.int64).reshape(-1, dep.SPAN_COLUMNS) for spans in (one, other))
    first, second = tables
    return bool(dep.overlaps(first[:, None], second[None]).any())


def _sender(units: list[Unit], i: int, conflicting: dep.Flags, itemsize: int) -> int:
    """Return the unit that sends unit i its inputs through mailboxes, or NOBODY.

    The inputs must be the sender's outputs, or their first features. conflicting: earlier units that conflict with i.
    """
    own = units[i]
    if not own.mails:
        return NOBODY
    inputs, others = own.reads[:1], own.reads[1:]  # operand B of its first instruction; everything else that it reads
    for j in reversed(np.flatnonzero(conflicting).tolist()):
        unit = units[j]
        if not _shares(unit.writes, inputs):
            continue
        sent, wanted = unit.rows[-1], own.rows[0]
        fits = wanted[Word.K] <= sent[Word.M] and not sent[Word.M] * itemsize % VECTOR_BYTES
        alone = not _shares(unit.reads + unit.writes, own.writes) and not _shares(unit.writes, others)
        is_same = _same(sent[list(SENT)], wanted[list(WANTED)])
        # alone: apart from its inputs, unit i does not depend on unit j.
        return j if is_same and fits and alone and unit.mails else NOBODY
    return NOBODY


def _same(one: Instruction, other: Instruction) -> bool:
    """Return whether two operands are the same: address, requests, first request and stride, in that order.

    With a single request the strides may differ.
    """
    return bool(((one == other) | [False, False, False, bool(one[1] == 1)]).all())


def _held(units: list[Unit], i: int, others: list[int], before: list[int]) -> int:
    """Return the unit for whose outputs unit i need not wait, or NOBODY.

    Each thread of unit i then adds elements that it has stored itself as a thread of that unit. The other dependencies
    of unit i must imply that the unit is complete. others: earlier units that conflict with i.
    """
    own = units[i]
    if own.gemm is None or own.rows[-1, Word.OP] != Op.ADD:
        return NOBODY
    reads = own.reads[:-1]  # all spans that the unit reads, without operand A of ADD, which is the last
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
    places = []  # index of each step's first instruction
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
    """Return for each instruction the earlier instructions for which it waits, or from which it receives its inputs.

    A wait for a fused group is a wait for the group's last instruction. Within a group each instruction waits for the
    previous one.
    """
    last = np.arange(len(instructions)) + np.maximum(instructions[:, Word.FUSED], 0)
    waits = instructions[:, Word.WAIT0 : Word.WAIT3 + 1]
    found = []
    for i, row in enumerate(instructions):
        own = [*waits[i, : row[Word.WAITS]].tolist()]
        own += [] if row[Word.MAIL] == NOBODY else [int(row[Word.MAIL])]
        found.append([i - 1] if row[Word.FUSED] == PART else sorted(int(last[j]) for j in own))
    return found
