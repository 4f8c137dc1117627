"""The consumer: pops commands, batches them, lets the mode launch them; then measures and checks what happened.

`arm` makes everything ready, `consume` is the timed part, `result` reads and checks. Between the first record and the
last result no command allocates memory or writes a log, and garbage collection is off.
"""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from types import TracebackType

import numpy as np

from launchopt.batching.batcher import Batcher
from launchopt.devices import open_device
from launchopt.devices.cuda.errors import is_lost
from launchopt.devices.loops.runner import BatchLoop, CommandLoop, ConsumerLoop, LoopSettings
from launchopt.errors import Interrupted, RunError
from launchopt.modes import mode_class
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.stack import shown_on
from launchopt.producing.production import RunKind
from launchopt.queue.ring import MOST_AT_ONCE, Ring
from launchopt.queue.segment import HeaderWord
from launchopt.queue.waiter import Waiter
from launchopt.recording import summary
from launchopt.recording.columns import Row
from launchopt.recording.impossible import clock_faults
from launchopt.recording.manifest import Manifest
from launchopt.recording.recorder import Recorder
from launchopt.recording.summary import Timing
from launchopt.sampling import SamplingKind
from launchopt.streams.chains.chain import chain_of
from launchopt.streams.footprint import least_memory_bytes
from launchopt.timing.cupti import tracer
from launchopt.timing.laps import Laps
from launchopt.timing.sampling import sample_gap
from launchopt.timing.torch_trace import TorchTrace, trace_path
from runner.plan.job import Arm, Job
from runner.worker.ceilings import DeviceCeilings
from runner.worker.chains import Chains, flush_rules
from runner.worker.checks import Checks
from runner.worker.counts import counts_of, least_launches, own_work
from runner.worker.messages import RepeatResult
from runner.worker.setup import collective_columns, cost_columns, held, most_held, prepared_with_costs
from runner.worker.tables import TableWriter

TRACED = ("cupti", "torch")  # kinds of timing that record every launch


class Consumer:
    """The device with the operands of one workload stream, and the mode of every arm ready to run on them."""

    def __init__(self, job: Job) -> None:
        self._job, self._stream, self._laps = job, job.stream, Laps()
        self._laps.begin("memory")
        self._ring = Ring.attach(job.ring_name, job.capacity)
        at_once = min(job.capacity, MOST_AT_ONCE)
        modes = [mode_class(arm.mode, arm.options)(traced=job.timing in TRACED, **arm.options) for arm in job.arms]
        self.recorder = Recorder(job.stream.commands, at_once + most_held(job, modes), job.folder)
        self.device = open_device(job.device_kind, job.device_index, job.threads, job.tunes)
        self._laps.begin("operands")
        self.device.open(job.stream, self.recorder, job.seed, job.team)
        self._chains = Chains(job, chain_of(job.stream), self.device) if job.stream.has_steps else None
        self._waiter = Waiter(self._ring.await_record, job.spin_us, job.sleep_us)
        self._laps.begin("modes")
        self._setups: list[Row] = []  # columns of the setup of each arm
        self.prepared = [self._prepare(mode, arm) for mode, arm in zip(modes, job.arms, strict=True)]
        self._laps.begin("ceilings")
        self._ceilings = DeviceCeilings(self.device, job)
        self._laps.begin("loops")
        self._tracer = tracer() if job.timing == "cupti" else None
        self._torch = TorchTrace() if job.timing == "torch" else None
        self._tables = TableWriter(job)
        self._checks = Checks(job, self.device, self._chains, partial(self._ring.set_word, HeaderWord.CHECKED))
        self._load_loops()

    def _prepare(self, mode: Mode, arm: Arm) -> Prepared:
        """Make a mode ready to launch, and keep the columns of its setup costs."""
        limits = arm.limits(self._stream, mode.takes_of(self._stream))
        try:
            prepared, costs = prepared_with_costs(mode, self.device, limits)
        except Exception as error:
            error.add_note(f"while {arm.label} was prepared")
            raise
        self._setups.append(costs)
        return prepared

    def _load_loops(self) -> None:
        """Load each compiled loop that an arm needs, while the producer loads its own: compiling takes seconds."""
        self.device.synchronize()
        self.device.start(0)
        loaded = set[tuple[Takes, bool]]()
        for arm, prepared in zip(self._job.arms, self.prepared, strict=True):
            needs = (prepared.mode.takes_of(self._stream), prepared.path.ahead is None)
            if needs not in loaded:
                loaded.add(needs)
                self._arm = arm
                self._loop_of(prepared, arm.buckets(self._stream, prepared.mode), RunKind.WARM_UP)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(*([RunError] if error else [])):  # the earlier error is the one to report
                self._tables.close()
        finally:
            # A lost GPU refuses every call. Its memory is freed when the process ends.
            if error is None or not is_lost(error):
                for prepared in self.prepared:
                    prepared.close()
                self.device.close()
            self.recorder.close()
            if self._chains:
                self._chains.release()
            self._ring.release()
            gc.unfreeze()  # so that cycles of this job's objects can be collected

    def about(self) -> Manifest:
        """Return versions, ceilings, and where the seconds of the set-up went, for the manifest."""
        seconds = self._laps.seconds()
        return {"versions": self.device.versions(), "ceilings": self._ceilings.columns(), "set_up_seconds": seconds}

    def ended(self) -> Manifest:
        """Return the bandwidths behind the last run and how far they changed, for the manifest."""
        return self._ceilings.after()

    def arm(self, index: int, kind: RunKind = RunKind.RUN) -> None:
        """Make the next run ready: poison the outputs, clear the records, synchronize the clocks.

        index: the arm's index. Only a timed run makes NVTX ranges.
        """
        arm, prepared = self._job.arms[index], self.prepared[index]
        mode = prepared.mode
        self._index, self._arm, self._active = index, arm, prepared
        limits = arm.buckets(self._stream, mode)
        self.recorder.reset()
        self.device.arenas.poison()
        self.device.synchronize()
        self.device.use_mode(mode.label() if kind is RunKind.RUN else "")
        self._state = {"before": self.device.state()}
        gc.collect()
        gc.freeze()  # until the end of the job: the next `collect` skips what is alive now
        gc.disable()
        self._collections = _collections()
        # A warm-up run puts events around every launch, so that this path is loaded before a clock starts, too.
        wanted = max(self._job.sample_every, mode.sample_every) if self._job.sample_every else 0
        warms_up = kind is RunKind.WARM_UP
        every = 1 if warms_up else sample_gap(wanted, least_launches(self._stream, mode, limits))
        self.device.start(every, prepared.path)
        prepared.start(warm_up=warms_up)
        self._loop = self._loop_of(prepared, limits, kind)
        self._is_traced = kind is not RunKind.AUDIT
        if self._tracer and self._is_traced:  # started last, so that it does not record what `prepared.start` does
            self._tracer.start()
        if self._torch and self._is_traced:
            self._torch.start()

    def _loop_of(self, prepared: Prepared, limits: list[int], kind: RunKind) -> ConsumerLoop:
        """Return the loop of one run, with a new batcher."""
        job, chains, takes = self._job, self._chains, prepared.mode.takes_of(self._stream)
        pack_bytes = self.device.pack_bytes_per_launch
        settings = LoopSettings(int(job.spin_us * 1e3), int(job.sleep_us * 1e3), pack_bytes)
        if chains:
            chains.start(kind, prepared.mode.unwritten_of(self._stream), self._checks.settings(0.0))
        if chains and takes is Takes.steps:
            steps = chains.step_loop(self._arm, self._ring, prepared, self.recorder, settings)
            self._flushes = steps.flushes
            return steps
        order = chains.order() if chains else None
        batcher = Batcher(self._stream.shapes, limits, flush_rules(job, self._arm), order)
        self._flushes = batcher.flushes
        launcher = self.device.launcher(prepared)
        if chains:
            return BatchLoop(self._ring, batcher, launcher, settings, chains.feedback)
        loop = CommandLoop if prepared.takes_commands else BatchLoop
        return loop(self._ring, batcher, launcher, settings)

    def _await_first(self) -> None:
        """Wait for the first record; raise Interrupted if the parent sets the ring's STOP word first."""
        while not self._ring.await_record(0) and not self._ring.is_closed:
            if self._ring.word(HeaderWord.STOP):
                raise Interrupted("stopped by the parent")
            self._waiter.wait()

    def consume(self) -> None:
        """Execute the run, from its first record to its last result."""
        try:
            self._await_first()
            self.device.begin()
            self._loop.run()
            span = self.device.finish()
        finally:
            self._collections = _collections() - self._collections  # read before `enable`, which may collect at once
            gc.enable()
        activity = self._tracer.stop() if self._tracer and self._is_traced else None
        if self._torch and self._is_traced:
            self._torch.stop()
        if self._chains:
            self._chains.ended(self._index)
        self._timing = Timing(self._ring.word(HeaderWord.START_NS), span, activity)
        self._state["after"] = self.device.state()

    def result(self, index: int, repeat: int) -> RepeatResult:
        """Check the outputs of the run. Return its summary row, its entry for the manifest, and its histograms."""
        job, arm, prepared = self._job, self._job.arms[index], self._active
        if self._torch:
            self._torch.write(trace_path(self._job.folder, arm.label, repeat))
        row, histograms = summary.measured(self.recorder, self._flushes, self._timing, self._stream)
        counted = self.recorder.counted()
        counts = counts_of(self._ring, self.recorder, counted)
        own = own_work(self._stream, self.recorder, self._chains) if job.consumers > 1 else None
        announced = self._stream.commands
        if own is not None:
            requests = self._chains is not None
            announced = chain_of(self._stream).commands_of(np.flatnonzero(own)) if requests else counts["pushed"]
        faults = summary.differences({"announced": announced} | counts)
        faults += self.recorder.faults(counted, announced)
        faults += clock_faults(self.recorder, self._timing)
        wall_s = (self._timing.span.end_ns - self._timing.start_ns) / 1e9
        checked = self._checks.of_run(index, repeat, prepared.mode, wall_s, own)
        row |= checked.columns
        faults += checked.faults
        together = arm.max_batch * prepared.path.stream_count
        row["least_memory_bytes"] = least_memory_bytes(self._stream, together, self.device.info.cache_bytes)
        # A ceiling holds for one GPU that measured it alone, and for the bytes that this GPU has moved.
        is_alone = own is None and not job.is_split
        why, impossible = self._ceilings.above(row) if is_alone else (None, False)
        if impossible:
            faults.append(f"impossible rate: {why}")
        if job.open_loop:
            row |= self._completion(arm, held(job, arm, prepared.mode))
        row |= {
            "mode": arm.label,
            "stack": shown_on(self.device.info.kind, prepared.mode.stack_on(self._stream)),
            "repeat": repeat,
            "ordering": self._stream.ordering(job.violated, prepared.mode.keeps_order),
            "sampling_ms": self.device.sampling_ns() / 1e6 if job.sampling.kind is not SamplingKind.none else None,
            "above_ceiling": why,
            **cost_columns(prepared, self._setups[index]),
            **collective_columns(self.device),
            "status": "ok" if not faults else f"failed: {'; '.join(faults)}",
            **self._ceilings.columns(row),
        }
        self._tables.add(arm.label, repeat, self.recorder, self._timing)
        found = {name: each.rows() for name, each in histograms.items()}
        return RepeatResult(
            row,
            self._about(counts) | {"check_seconds": checked.seconds, "compared_run": checked.compared_run},
            found,
            b"" if own is None else np.packbits(own).tobytes(),
        )

    def _completion(self, arm: Arm, held_commands: int) -> Row:
        """Return the columns of an open loop of independent commands."""
        return summary.completion(self.recorder, self._timing, held_commands, int(arm.timeout_us * 1e3))

    def _about(self, counts: dict[str, int]) -> Manifest:
        """Return the entry of the run for the manifest."""
        prepared, timing = self._active, self._timing
        about: Manifest = {
            "counts": counts,
            "commands_by_strategy": self.recorder.commands_by_strategy(),
            "left_out": [each._asdict() for each in prepared.left_out],
            "unfused_commands": prepared.counters().unfused_commands,
            "gc_collections": self._collections,
            "device_clock_error_ns": timing.span.clock_error_ns,
            "state": self._state,
        }
        if timing.activity:
            about["cupti_clock_error_ns"] = timing.activity.clock_error_ns
        return about


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
