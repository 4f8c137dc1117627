"""Run whole steps through a mode on one thread, in batches that a step batcher may form, with feedback of results.

`batches(stream)` yields batches in an order that a seed fixes. Requests of a batch may be at different tokens, with
different copies of the weights. `StepRun` drives a mode that takes steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from launchopt.batching.batch import FlushReason, FlushRules, StepBatch
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.command import COMMAND_DTYPE, Flag, as_words
from launchopt.devices.base import Device
from launchopt.devices.cpu.device import CpuDevice
from launchopt.devices.loops.runner import Feedback, LoopSettings
from launchopt.devices.loops.steps import StepLoop
from launchopt.devices.peers.segment import Team
from launchopt.modes import mode_class
from launchopt.modes.base import Mode
from launchopt.prefixes.sharing import NO_DONOR
from launchopt.queue.ring import Ring
from launchopt.recording.recorder import LEAST_ROWS, Recorder
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings
from support.steps.launching import recorded
from support.steps.no_driver import NO_DRIVER
from support.steps.program_interpreter import NONE, SEED
from support.steps.stream_steps import records_of, steps_of


def batches(stream: ChainStream, most: int, seed: int | None = None, together: int = 1) -> Iterator[StepBatch]:
    """Yield every step of every request once, in batches of up to `most` requests. seed None: requests stay in step.

    together: most decode steps of a request in one batch.
    """
    generator = None if seed is None else np.random.default_rng(seed)
    kinds = [steps_of(stream, request) for request in range(stream.requests)]
    at, seq = [0] * stream.requests, 0
    while left := [request for request in range(stream.requests) if at[request] < len(kinds[request])]:
        left = [request for request in left if not _is_held_back(stream, request, at)]
        first = min(left, key=lambda request: at[request]) if generator is None else int(generator.choice(left))
        kind = kinds[first][at[first]]
        alike = [request for request in left if kinds[request][at[request]] == kind]
        if generator is None:
            alike = [request for request in alike if at[request] == at[first]][:most]
        else:
            size = int(generator.integers(1, min(most, len(alike)) + 1))
            alike = sorted(generator.choice(alike, size, replace=False).tolist())
        steps = 1
        if all(at[request] > 0 for request in alike) and kind == stream.kinds[stream.decode_kind]:
            steps = min(together, *(len(kinds[request]) - at[request] for request in alike))
        parts = []
        for number in range(steps):
            parts.append(np.stack([records_of(stream, request, at[request]) for request in alike], axis=1))
            parts[-1]["step"] += np.array([sum(_rows(stream, kinds[r][: at[r]])) for r in alike], np.uint32)
            if number < steps - 1:
                parts[-1]["flags"][-1] |= np.uint16(Flag.GOES_ON)
            for request in alike:
                at[request] += 1
        records = np.concatenate(parts)
        records["seq"] = np.arange(seq, seq + records.size).reshape(records.shape)
        seq += records.size
        yield StepBatch(as_words(records.reshape(-1)), FlushReason.full, len(alike), len(records))


def _is_held_back(stream: ChainStream, request: int, ended: list[int]) -> bool:
    """Return whether another request has to compute cached tokens of a request first. ended: steps of each."""
    donor, needed = stream.table[request, [ChainColumn.DONOR, ChainColumn.DONOR_STEPS]].tolist()
    return donor != NO_DONOR and ended[donor] < needed


def _rows(stream: ChainStream, kinds: list[Any]) -> list[int]:
    sizes = np.diff(stream.kind_stops, prepend=0)
    return [int(sizes[stream.kinds.index(kind)]) for kind in kinds]


def _drive(ring: Ring, back: Ring, stream: ChainStream, most: int) -> None:
    """Push the records of each batch, request after request, once the previous batch is complete."""
    ends = np.zeros(1, COMMAND_DTYPE)
    for batch in batches(stream, most):
        # Push all steps together. If one step came first, it could be flushed alone, and the others would wait for that
        # request's next step.
        records = np.concatenate([batch.words[request :: batch.size] for request in range(batch.size)])
        assert ring.push(records.view(COMMAND_DTYPE)[:, 0]) == len(records)
        for _ in range(batch.size):
            while not back.pop(ends):
                pass
    ring.close()


def asked_of_python(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets an entry per later call of `LaunchAhead.admit`: whether it admitted the launch.

    Python calls it only for launches that the compiled loop has not admitted.
    """
    from launchopt.devices.megakernel.launch_ahead import LaunchAhead

    asked, admit = list[bool](), LaunchAhead.admit

    def noted(ahead: LaunchAhead, program: Any, arguments: int) -> bool:
        asked.append(admit(ahead, program, arguments))
        return asked[-1]

    monkeypatch.setattr(LaunchAhead, "admit", noted)
    return asked


class StepRun:
    """Runs one stream through one mode. device None: the CPU device."""

    def __init__(
        self,
        mode: str | Mode,
        stream: ChainStream,
        most: int,
        device: Device | None = None,
        sampling: Sampling = NONE,
        on_host: bool = False,
        team: Team | None = None,
    ) -> None:
        self.stream, self.most, self.sampling = stream, most, sampling
        self.device: Any = device or CpuDevice(threads=1)
        self.mode = mode_class(mode)() if isinstance(mode, str) else mode
        self.recorder = Recorder(stream.commands, max(LEAST_ROWS // 2, most * stream.most_rows(self.mode.together)))
        limits = {shape: min(most, stream.together(shape)) for shape in stream.shapes}
        self.device.open(stream, self.recorder, SEED, team)
        nobody = NO_DRIVER  # no driver to notify
        self.flights = self.device.open_steps(stream, sampling, on_host, nobody)
        self.prepared = self.mode.prepare(self.device, limits)
        self.device.warm_up()

    def _begin(self) -> None:
        self.recorder.reset()
        self.flights.reset()
        self.device.arenas.poison()
        self.device.synchronize()
        self.device.use_mode(self.mode.name)
        self.device.start(0, self.prepared.path)
        self.prepared.start()
        self.device.begin()

    def run(self, seed: int | None = None) -> None:
        """Run every step once."""
        self._begin()
        for batch in batches(self.stream, self.most, seed, self.mode.together):
            self.prepared.submit_steps(batch, 0)
            self.device.feed_back(self.flights, self.flights.collect(batch.words[-batch.size :]))
        self.device.finish()

    def run_pumped(self) -> None:
        """Run every step once, through the compiled loop. Records come once the previous batch is complete."""
        stream, device = self.stream, self.device
        rows = int(np.diff(stream.kind_stops, prepend=0).max())
        batcher = StepBatcher(steps_of_requests(stream.table), rows, self.most, FlushRules(1 << 60))
        self._begin()
        waits = LoopSettings(spin_ns=20_000, sleep_ns=20_000)
        feedback = Feedback(self.flights, device.feed_back, lambda: None)
        with Ring.create(1024) as ring, Ring.create(64) as back, ThreadPoolExecutor(1) as pool:
            self.flights.back = back
            prepared = self.prepared
            admission = prepared.path.ahead.admission
            pump = StepLoop(ring, batcher, prepared.submit_steps, feedback, self.recorder, waits, admission)
            drive = pool.submit(_drive, ring, back, stream, self.most)
            pump.run()
            drive.result()
        device.finish()

    def check(self) -> None:
        """Check that each command ran once, and that its output is right."""
        assert list(self.recorder.faults()) == []
        ids = self.flights.done[: self.stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        split, unwritten = self.device.split, self.mode.unwritten_of(self.stream)
        shares = None if split is None else split.shares
        given = self.stream, self.device.arenas, self.sampling, ids, CheckSettings(64), unwritten
        found = verify_chain(*given, shares=shares)
        assert found.ok, found.first_wrong

    def launches(self, column: int) -> list[int]:
        values: list[int] = recorded(self.recorder).launches[:, column].tolist()
        return values

    def close(self) -> None:
        self.prepared.close()
        self.device.close()
        self.recorder.close()
