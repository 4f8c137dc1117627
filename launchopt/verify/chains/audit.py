"""Check layers of every step during an audit run, which is not timed and comes before the timed repeats.

After a run only the outputs of last steps are in memory. An audit run executes the same launches, but stops whenever
steps end: all outputs of these steps are still in memory then, because a request's next step overwrites them only
later. The audit copies them. It checks one layer of each step, chosen at random by the seed, or all layers, for many
steps at a time. Of a chunk of a prompt only the last layer's outputs are left; of all its layers, the keys and values
are checked after the run.

A *part* of a step is one of its layers, or the commands outside of the layers: the slot map and the LM head.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from launchopt.devices.arenas import Arenas
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import NO_PROMPT, ChainColumn
from launchopt.streams.chains.placement import NO_LAYER
from launchopt.types import Array, Table, Words
from launchopt.verify.chains.inputs import Inputs, Numbers, last_of_prompt
from launchopt.verify.chains.reference import Evaluator
from launchopt.verify.chains.steps import StepCheck, Steps
from launchopt.verify.commands import CheckSettings, unreported
from launchopt.verify.findings import CheckProgress, Findings

CHUNK_BYTES = 256 << 20  # memory that the check uses at a time, roughly
COPIED_BYTES = 64 << 20  # memory for copies of lanes
FIRST_STEPS = 16  # steps that are checked first, and once more: the first check loads code, the second takes its time


class Audited(NamedTuple):
    """The result of an audit run."""

    parts: int  # parts of all steps of the workload, also of requests that the audit run left out
    checked: int  # parts whose outputs were compared
    wrong: int  # compared outputs that are wrong
    first_wrong: str | None

    @property
    def share(self) -> float:
        """Share of the parts that were compared. It is the probability to find a fault in a single part."""
        return self.checked / self.parts if self.parts else 0.0

    @property
    def fault(self) -> str | None:
        """Return what is wrong; None if nothing is."""
        if not self.wrong:
            return None
        return f"{self.wrong} outputs wrong in the audit run (first: {self.first_wrong})"


class Audit:
    """Checks the steps of one audit run, in about `settings.budget_s`.

    table: the table of the requests of this run. ids: as in `Inputs`. unwritten: as in `StepCheck`.
    """

    def __init__(
        self,
        stream: ChainStream,
        arenas: Arenas,
        table: Table,
        ids: Numbers | Words,
        settings: CheckSettings,
        unwritten: frozenset[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._table, self._settings, self._clock = stream, table, settings, clock
        self._generator = np.random.default_rng([settings.seed, 0xA0D17])
        inputs, evaluator = Inputs(stream, arenas, ids), Evaluator(stream, arenas)
        columns = settings.max_columns
        self._check = StepCheck(stream, inputs, evaluator, unwritten, CHUNK_BYTES, columns, self._generator)
        self._findings = Findings(arenas.xp, stream.tokens, CheckProgress(1, unreported))
        self._layers: dict[int, list[int]] = {}
        self._ended = np.zeros(len(table), np.int64)  # steps of each request that have ended
        has_prompt = table[:, ChainColumn.REST_KIND] != NO_PROMPT
        self._steps_left = int((table[:, ChainColumn.FULL_CHUNKS] + has_prompt + table[:, ChainColumn.DECODES]).sum())
        self._spent_s, self._step_s, self._checks = 0.0, 0.0, 0  # time of all checks, and of a step in the latest one
        flat, self._xp = arenas.arrays[stream.activations].reshape(-1), arenas.xp
        unit, lanes = stream.activations.cols, int(stream.table[0, ChainColumn.LANE])
        lane_elements = stream.lane_units * unit
        first = lanes * unit
        # The lanes of this GPU, then those of others that split the model: an all-reduce reads the outputs of all.
        self._lanes = [
            each[first : first + stream.requests * lane_elements].reshape(stream.requests, -1)
            for each in (flat, *arenas.peers)
        ]
        most = max(1, min(self._steps_left, COPIED_BYTES // (len(self._lanes) * lane_elements * flat.itemsize)))
        self._copies = arenas.xp.empty((len(self._lanes), most, lane_elements), flat.dtype)
        self._kept, self._waiting = 0, list[Steps]()  # copies in use, and their steps
        self._checked = 0

    def steps_ended(self, requests: Numbers) -> None:
        """Take in the steps of these requests that have just ended. The device must be idle until this returns."""
        of_kind = self._count(requests)
        self._steps_left -= len(requests)
        if not self._is_due():
            return
        for steps in of_kind:
            if self._stream.kinds[steps.kind].is_prompt:
                layers = [each for each in self._layers_of(steps.kind) if each in (NO_LAYER, self._stream.layers - 1)]
                self._check_now(steps, layers)
            else:
                self._keep(steps)

    def _count(self, requests: Numbers) -> list[Steps]:
        """Count the steps of these requests, and return them by kind."""
        stream, table = self._stream, self._table[requests]
        at, full, rest = self._ended[requests], table[:, ChainColumn.FULL_CHUNKS], table[:, ChainColumn.REST_KIND]
        self._ended[requests] += 1
        last_chunk = (at == full) & (rest != NO_PROMPT)
        is_prompt = (at < full) | last_chunk
        kinds = np.where(at < full, stream.chunk_kind, np.where(last_chunk, rest, stream.decode_kind))
        outputs = np.where(is_prompt, 1, at - full + 1)
        chunks = table[:, ChainColumn.CACHED] + at * (stream.chunk_tokens or 0)
        starts = np.where(is_prompt, chunks, last_of_prompt(stream, requests) + outputs - 1)
        found = []
        for kind in np.unique(kinds).tolist():
            own = kinds == kind
            found.append(Steps(kind, requests[own], outputs[own], starts[own], at[own]))
        return found

    def _keep(self, steps: Steps) -> None:
        """Copy the lanes of decode steps, for a later check."""
        most = self._copies.shape[1]
        for start in range(0, len(steps.requests), most):
            some = steps.part(slice(start, start + most))
            count = len(some.requests)
            if self._kept + count > (most if self._checks > 1 else min(most, FIRST_STEPS)):
                self._check_kept()
            places = np.arange(self._kept, self._kept + count)
            for copies, lanes in zip(self._copies, self._lanes, strict=True):
                copies[self._kept : self._kept + count] = lanes[self._xp.asarray(some.requests)]
            self._waiting.append(some._replace(places=places))
            self._kept += count

    def _check_kept(self) -> None:
        """Check the steps whose lanes were copied: of each one part, or all parts if the settings say so."""
        if not self._waiting:
            return
        kind = self._waiting[0].kind
        columns = zip(*(each[1:] for each in self._waiting), strict=True)
        steps = Steps(kind, *(np.concatenate(each) for each in columns))
        steps = steps.part(np.argsort(steps.requests, kind="stable"))
        layers = np.array(self._layers_of(kind))
        chosen = self._generator.choice(layers, len(steps.requests))
        before_s = self._spent_s
        for layer in layers.tolist():
            own = steps if self._settings.full else steps.part(chosen == layer)
            if len(own.requests):
                self._check_now(own, [layer], self._copies)
        self._step_s = (self._spent_s - before_s) / len(steps.requests)
        self._checks += 1
        self._waiting, self._kept = [], 0

    def _check_now(self, steps: Steps, layers: list[int], copies: Array = None) -> None:
        """Check these layers of steps."""
        start_s = self._clock()
        self._check.check(self._findings, steps, layers, copies)
        self._checked += len(steps.requests) * len(layers)
        self._spent_s += self._clock() - start_s

    def _layers_of(self, kind: int) -> list[int]:
        """Return the layers of a step; NO_LAYER among them if it has commands outside of the layers."""
        if kind not in self._layers:
            self._layers[kind] = sorted({row.layer for row in self._check.rows(kind)})
        return self._layers[kind]

    def _is_due(self) -> bool:
        """Return whether to check now. If time is short, a random sample of the steps is checked."""
        if math.isinf(self._settings.budget_s) or self._checks < 2:
            return True
        left_s = self._settings.budget_s - self._spent_s - self._kept * self._step_s
        return bool(self._generator.random() * (self._steps_left + 1) * self._step_s < left_s)

    def result(self) -> Audited:
        """Check what was copied, and return what was found."""
        self._check_kept()
        found = self._findings.verdict(self._stream.commands)
        return Audited(self._all_parts(), self._checked, found.wrong, found.first_wrong)

    def _all_parts(self) -> int:
        """Return the number of parts of all steps of the workload."""
        table, parts = self._stream.table, 0
        rests = table[:, ChainColumn.REST_KIND]
        steps = [(kind, int((rests == kind).sum())) for kind in np.unique(rests[rests != NO_PROMPT]).tolist()]
        steps.append((self._stream.chunk_kind, int(table[:, ChainColumn.FULL_CHUNKS].sum())))
        steps.append((self._stream.decode_kind, int(table[:, ChainColumn.DECODES].sum())))
        for kind, count in steps:
            parts += count * len(self._layers_of(kind)) if count else 0
        return parts
