"""`TraceStream`: the GEMMs of a profiler's trace, in its order, at its times.

In: operators in order of time, each a batch of one or more GEMMs (`launchopt.traces.gemms`). Out: a stream with a
command per GEMM; `repeat` runs through the whole trace several times. Each thread of the trace is a request.

A trace records neither dependencies nor addresses. So no command reads the output of another. If a mode gains by
batching commands of one thread, a real model has that gain only where these commands are independent. Commands with
weights of one shape take these weights in turn (`RowStream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from launchopt.command import Dtype
from launchopt.streams.row_stream import NO_WEIGHT, At, Columns, Rows, RowStream, Weights, turns_of
from launchopt.streams.stream import Block
from launchopt.traces.gemms import Gemm


def first_commands(gemms: Sequence[Gemm], commands: int | None) -> list[Gemm]:
    """Return the operators of the first `commands` GEMMs (None: all). The batch of the last one may be cut."""
    kept: list[Gemm] = []
    for gemm in gemms:
        if commands is not None and commands <= gemm.batch:
            return [*kept, replace(gemm, batch=commands)]
        kept.append(gemm)
        commands = None if commands is None else commands - gemm.batch
    return kept


class TraceStream(RowStream):
    """Commands of `gemms`, `repeat` times over.

    weights: chooses the number of different weights of an arena. speed: 2 halves the gaps of the trace; None: no gaps.
    """

    def __init__(
        self, gemms: Sequence[Gemm], dtype: Dtype, weights: Weights, repeat: int = 1, speed: float | None = None
    ) -> None:
        sizes = np.array([(gemm.m, gemm.n, gemm.k) for gemm in gemms])
        rows = Rows(sizes, np.array([gemm.batch for gemm in gemms]), np.full(len(gemms), NO_WEIGHT))
        super().__init__(rows, dtype, weights, repeat)
        self._thread = np.array([gemm.thread for gemm in gemms])
        self.requests = len(np.unique(self._thread))
        self._steps = turns_of(self._thread, rows.count, np.full(self.requests, self.commands))
        self._due_ns: Columns | None = None
        if speed is not None:
            self._due_ns = np.rint(np.array([gemm.start_ns for gemm in gemms]) / speed).astype(np.int64)
            self._turn_ns = round(max(gemm.end_ns for gemm in gemms) / speed)

    @property
    def span_ns(self) -> int:
        """Time at which the last command is due, ns since the start; 0 without gaps."""
        return 0 if self._due_ns is None else int(self._due_ns[-1]) + (self._turns - 1) * self._turn_ns

    def _block(self, at: At) -> Block:
        records = super()._block(at).records
        records["request"], records["step"] = self._thread[at.row], self._steps.at(at)
        return Block(records, None if self._due_ns is None else at.turn * self._turn_ns + self._due_ns[at.row])
