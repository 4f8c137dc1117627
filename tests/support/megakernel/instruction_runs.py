"""Streams run as instruction lists that the host interprets, in batches as a step batcher may form them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.devices.arenas import Arenas, SeqState
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.instructions.compiler import StepCompiler
from launchopt.devices.instructions.order import waits_of
from launchopt.devices.instructions.words import NOBODY, Instructions, Word
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainStream
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings, Verification
from support.megakernel.instruction_interpreter import Placed, run
from support.steps.no_driver import NO_DRIVER
from support.steps.program_interpreter import NONE, SEED
from support.steps.step_runs import batches

Ordered = Callable[[Instructions], Iterable[int] | None]


def in_order(_: Instructions) -> None:
    """Return None: run the list in its own order."""


class InstructionRun:
    """A stream's operands, and the lists of its steps.

    change: modifies a list before it runs. fuse: passed to the `StepCompiler`.
    """

    def __init__(
        self,
        stream: ChainStream,
        sampling: Sampling = NONE,
        change: Callable[[Instructions], Instructions] = lambda program: program,
        fuse: bool = False,
    ) -> None:
        self.stream, self.sampling, self.change = stream, sampling, change
        self.arenas = Arenas(np, stream.arenas, stream.fills)
        self.arenas.fill(SEED)
        self.arenas.poison()
        self.state: SeqState | None = None
        if stream.attention is not None:
            self.state = SeqState(np, stream.attention, stream.requests, stream.seed)
        self.placed = Placed(stream, self.arenas, self.state)
        self.compiler = StepCompiler(self.placed.steps, self.placed.state, fuse=fuse)
        self._steps = CpuSteps(stream, self.arenas, sampling)
        self._flights = Flights(stream, NO_DRIVER, self._steps.done)  # no ring, so no driver is notified
        self._flights.reset()

    def step(self, batch: StepBatch, ordered: Ordered = in_order) -> Instructions:
        """Run one batch and feed it back; return its list."""
        program = self.change(self.compiler.compile(batch))
        run(program, self.placed.memory, self.stream.dtype, ordered(program))
        self.feed_back(batch)
        return program

    def feed_back(self, batch: StepBatch) -> None:
        """Make the results of a batch's steps the next inputs of their requests."""
        self._steps.feed_back(self._flights, self._flights.collect(batch.words[-batch.size :]))

    def all(self, most: int = 8, seed: int | None = None, ordered: Ordered = in_order) -> list[Instructions]:
        """Run every step of every request; return the lists."""
        return [self.step(batch, ordered) for batch in batches(self.stream, most, seed)]

    unwritten: frozenset[str] = frozenset()  # nodes of a program whose outputs are never stored

    def verify(self) -> Verification:
        ids = self._flights.done[: self.stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        return verify_chain(self.stream, self.arenas, self.sampling, ids, CheckSettings(64), self.unwritten)

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of every array that a run writes."""
        arrays: dict[str, Any] = {str(key): array for key, array in self.arenas.arrays.items()}
        if self.state is not None:
            arrays["positions"] = self.state.positions
        return {name: array.tobytes() for name, array in arrays.items()}


def without(program: Instructions, i: int, j: int) -> Instructions:
    """Return the list without the wait, or mail, of instruction i for instruction j."""
    changed = program.copy()
    if changed[i, Word.MAIL] == j:
        changed[i, Word.MAIL] = NOBODY
    left = [each for each in program[i, Word.WAIT0 : Word.WAIT3 + 1].tolist() if each not in (j, NOBODY)]
    changed[i, Word.WAITS] = len(left)
    changed[i, Word.WAIT0 : Word.WAIT3 + 1] = left + [NOBODY] * (4 - len(left))
    return changed


def ancestors(waits: list[list[int]], i: int) -> set[int]:
    """Return the instructions that precede instruction i in every order."""
    found, todo = set[int](), list(waits[i])
    while todo:
        if (each := todo.pop()) not in found:
            found.add(each)
            todo += waits[each]
    return found


def earliest_order(program: Instructions, i: int) -> list[int]:
    """Return an order that runs instruction i as early as its waits allow."""
    waits, first, todo = waits_of(program), set[int](), [i]
    while todo:
        if (each := todo.pop()) not in first:
            first.add(each)
            todo += waits[each]
    return sorted(first) + [each for each in range(len(program)) if each not in first]


def after_second_step(stream: ChainStream, i: int = 0, j: int | None = None, fuse: bool = False) -> dict[str, bytes]:
    """Return memory after two steps.

    j: the second step runs without the wait of instruction i for j, and with i as early as possible. None: unchanged.
    """
    rig = InstructionRun(stream, fuse=fuse)
    first, second = [batch for batch, _ in zip(batches(stream, 4), range(2), strict=False)]
    rig.step(first)
    if j is not None:
        rig.change = partial(without, i=i, j=j)
        rig.step(second, partial(earliest_order, i=i))
    else:
        rig.step(second)
    return rig.contents()
