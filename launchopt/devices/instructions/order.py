"""Order of a list: which instruction waits for which, and which one has its inputs by mail.

`with_dependencies` sets WAITS, MAIL and LEVEL of a list whose order is right and whose fusions are set. It inserts
joins (op JOIN) where an instruction would wait for more than MOST_WAITS others.

Waits follow from memory alone (`dependencies`). Two cases need no wait:

* A GEMM, or fused attention, may get its inputs by mail, element by element as they are made. MAIL names the sender.
Mail
  says nothing about what the sender has stored.
* OP_ADD behind a GEMM may add what a GEMM of as many rows has stored before. Both are divided alike, so each thread
adds
  numbers that it has stored itself. No wait is needed if all other dependencies already imply the order. Where two
  blocks share only one of the two GEMMs, launchopt/devices/megakernel/tasks.py uses mail or a wait instead.
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
    """Fused instructions, or one alone, with the spans that they read and write.

    gemm: the streamed GEMM among them, if there is one.
    """

    rows: Instructions
    reads: Spans
    writes: Spans
    gemm: Instruction | None

    @property
    def mails(self) -> bool:
        """Whether it can receive and send mail."""
        return self.gemm is not None or (len(self.rows) > 1 and self.rows[0, Word.OP] == Op.ROPE)


def _unit(rows: Instructions, itemsize: int) -> Unit:
    touched = [accesses(row, itemsize) for row in rows]
    reads, writes = ([span for each in touched for span in each[i]] for i in range(2))
    gemms = [row for row in rows if streamable(row, itemsize)]
    return Unit(rows, reads, writes, gemms[0] if gemms else None)


def with_dependencies(instructions: Instructions, itemsize: int) -> Instructions:
    """Return the instructions in the same order, with joins where needed, and with waits, MAIL and LEVEL set.

    Joins and waits of the given list are ignored.
    """
    real = instructions[instructions[:, Word.OP] != JOIN]
    units = [_unit(real[group], itemsize) for group in groups_of(real)]
    found = _conflicts(units)
    senders = [_sender(units, i, found[i], itemsize) for i in range(len(units))]
    before: list[int] = []  # for each unit, as bits: the units that end before it begins
    for i, sender in enumerate(senders):
        others = np.flatnonzero(found[i]).tolist()
        held = _held(units, i, others, before)
        before.append(_all_before(others, before))
        for j in (sender, held):  # removed before `reduced`: nothing follows from these
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
    """Return, as bits, `others` and all units before them."""
    found = 0
    for j in others:
        found |= before[j] | 1 << j
    return found


def _shares(one: Spans, other: Spans) -> bool:
    tables = (np.array(spans, np.int64).reshape(-1, dep.SPAN_COLUMNS) for spans in (one, other))
    first, second = tables
    return bool(dep.overlaps(first[:, None], second[None]).any())


def _sender(units: list[Unit], i: int, conflicting: dep.Flags, itemsize: int) -> int:
    """Return the unit whose outputs, or their first features, are the inputs of unit i; NOBODY: it gets no mail."""
    own = units[i]
    if not own.mails:
        return NOBODY
    inputs, others = own.reads[:1], own.reads[1:]  # operand B of the first instruction; the rest
    for j in reversed(np.flatnonzero(conflicting).tolist()):
        unit = units[j]
        if not _shares(unit.writes, inputs):
            continue
        sent, wanted = unit.rows[-1], own.rows[0]
        fits = wanted[Word.K] <= sent[Word.M] and not sent[Word.M] * itemsize % VECTOR_BYTES
        alone = not _shares(unit.reads + unit.writes, own.writes) and not _shares(unit.writes, others)
        is_same = _same(sent[list(SENT)], wanted[list(WANTED)])
        return j if is_same and fits and alone and unit.mails else NOBODY  # alone: unit i needs nothing else of it
    return NOBODY


def _same(one: Instruction, other: Instruction) -> bool:
    """Compare address, requests, first request and stride; a single request has no stride."""
    return bool(((one == other) | [False, False, False, bool(one[1] == 1)]).all())


def _held(units: list[Unit], i: int, others: list[int], before: list[int]) -> int:
    """Return the unit whose threads stored what unit i adds, if i's other dependencies imply its end; else NOBODY."""
    own = units[i]
    if own.gemm is None or own.rows[-1, Word.OP] != Op.ADD:
        return NOBODY
    reads = own.reads[:-1]  # all but operand A of ADD, which comes last
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
    """Return for each instruction those that must run before it: it waits for them, or has mail from them.

    A wait for a fused group is a wait for its last instruction. Within a group each instruction follows the one before.
    """
    last = np.arange(len(instructions)) + np.maximum(instructions[:, Word.FUSED], 0)
    waits = instructions[:, Word.WAIT0 : Word.WAIT3 + 1]
    found = []
    for i, row in enumerate(instructions):
        own = [*waits[i, : row[Word.WAITS]].tolist()]
        own += [] if row[Word.MAIL] == NOBODY else [int(row[Word.MAIL])]
        found.append([i - 1] if row[Word.FUSED] == PART else sorted(int(last[j]) for j in own))
    return found
