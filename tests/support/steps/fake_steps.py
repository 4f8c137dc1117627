"""Whole steps through `LtSteps` on the host. A fake cuBLASLt launches, NumPy feeds back, every command is checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.command import COMMAND_DTYPE, RecordWord
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.steps.stages import LtSteps
from launchopt.records import SHAPE_MASK
from launchopt.streams.chains.chain import ChainStream
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings
from support.cuda.fake_lt import FakeLt
from support.steps.launching import recorded
from support.steps.no_driver import NO_DRIVER
from support.steps.program_interpreter import NONE
from support.steps.step_runs import batches


class FakeSteps:
    """LtSteps with the tables of a `FakeLt`; NumPy feeds back the results."""

    def __init__(self, stream: ChainStream, most: int, fail_at: int | None = None) -> None:
        self.stream, self.most = stream, most
        limits = {shape: min(most, stream.together(shape)) for shape in stream.shapes}
        self.fake = FakeLt(stream, limits, fail_at)
        self.steps = LtSteps(self.fake, limits, self.fake.base)
        cpu = CpuSteps(stream, self.fake.arenas, NONE)
        self.flights = Flights(stream, NO_DRIVER, cpu.done)
        self.flights.reset()
        self._feed_back = cpu.feed_back

    def run(self, seed: int | None) -> list[StepBatch]:
        """Run all steps, and return the batches that were launched, with copies of their words."""
        found = []
        for batch in batches(self.stream, self.most, seed):
            found.append(StepBatch(batch.words.copy(), batch.reason, batch.size, batch.rows))
            self.steps.launch(batch, flush_ns=0)
            self._feed_back(self.flights, self.flights.collect(batch.words[-batch.size :]))
        return found

    def check(self, unwritten: frozenset[str] = frozenset()) -> None:
        assert list(self.fake.recorder.faults()) == []
        ids = self.flights.done[: self.stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        found = verify_chain(self.stream, self.fake.arenas, NONE, ids, CheckSettings(64), unwritten)
        assert found.ok, found.first_wrong

    @property
    def launches(self) -> Any:
        return recorded(self.fake.recorder).launches


def is_even(stream: ChainStream, batch: StepBatch) -> list[bool]:
    """Return for each row whether the operands of its requests are evenly spaced, as a strided call needs."""
    moves, by_key, found = stream.strides(), {shape.packed: shape for shape in stream.shapes}, []
    for row in batch.words.reshape(batch.rows, batch.size, -1):
        shape = by_key[int(row[0, RecordWord.MN]), int(row[0, RecordWord.K_OP_DTYPE] & SHAPE_MASK)]
        records = row.view(COMMAND_DTYPE).reshape(-1)
        slots = np.stack([records[f"slot_{role}"].astype(np.int64) for role in "abc"], axis=1)
        found.append(bool((np.diff(slots, axis=0) == moves[shape]).all()))
    return found
