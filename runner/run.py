"""One job from plan to folder: takes the session through its repeats and keeps what was measured.

summary.parquet and manifest.json are written anew after every repeat, so that whatever ends the run, what was
measured so far is there, and the manifest says how it ended.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from launchopt import results
from launchopt.environment import environment
from launchopt.errors import DeviceError, Interrupted, LaunchoptError, RunError, VerificationError
from launchopt.producer import Production
from launchopt.timing.nvml import GpuWatch, open_watch
from launchopt.timing.nvtx_ranges import is_profiled
from launchopt.workloads.trace import TraceStream
from runner.children import interrupted
from runner.groups import Closed, Gemv
from runner.plan import Plan
from runner.programs import OwnSize
from runner.repeats import Rounds
from runner.session import ChildError, Session
from runner.terminal import Terminal, say, throttled_repeats
from runner.tokens import TokenResults
from runner.trace_workload import Trace

SHAPES_SPELLED = 8  # more are only counted
HELD_SHARE = 0.95  # of the rate at which commands were due: reaching less is overload


@dataclass
class Run:
    """A job's folder and what is in it so far."""

    plan: Plan
    folder: Path
    rounds: Rounds
    notices: list[str]  # said before it began
    rows: list[results.Row] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    histograms: list[results.Row] = field(default_factory=list)

    def save(self, status: str) -> None:
        """Write summary and manifest as things stand."""
        self.manifest |= {"status": status, "repeats_done": len(self.rows), "repeats": self.rounds.as_dict()}
        self.manifest["notices"] = [*self.notices, *self.late_notices()]
        if self.rows:
            config = self.plan.composed
            results.write_rows(self.folder / "summary.parquet", results.SUMMARY, self.rows, config)
            results.write_rows(self.folder / "histograms.parquet", results.HISTOGRAMS, self.histograms, config)
        results.write_manifest(self.folder, self.manifest)

    def late_notices(self) -> list[str]:
        """What only the repeats could tell."""
        modes = dict.fromkeys(row["mode"] for row in self.rows)
        throttled = ((mode, throttled_repeats([row for row in self.rows if row["mode"] == mode])) for mode in modes)
        return [*self.rounds.notices(), *(f"{mode}: repeats throttled: {text}" for mode, text in throttled if text)]


def execute(plan: Plan, folder: Path, overrides: list[str]) -> Run:
    """Run the plan into `folder`. A LaunchoptError says how it ended early; the folder is complete either way."""
    notices = list(plan.notices)
    watch = _watch(plan, notices)
    config = plan.config
    rounds = Rounds(config.rounds, config.repeats_limit_s, [arm.mode for arm in plan.arms], config.seed)
    run = Run(plan, folder, rounds, notices)
    run.manifest = {
        "run_id": plan.job(folder).run_id,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "overrides": overrides,
        "refused": plan.refused,
        "config": plan.composed,
        "stream": _stream_facts(plan),
        "environment": environment() | {"device": plan.info.as_dict()},
        "garbage_collection": "off between the start barrier and the last result",
        "runs": [],
    }
    run.save("running")
    try:
        with _Signals(), Terminal(plan, rounds.runs, notices) as terminal:
            _repeats(run, terminal, watch)
        say(run.late_notices())
    except KeyboardInterrupt:
        run.save("interrupted")
        raise Interrupted(f"interrupted; {len(run.rows)} finished repeats are in {folder}") from None
    except LaunchoptError as error:
        run.manifest["error"] = str(error)
        if isinstance(error, ChildError) and error.trace:
            (folder / "traceback.txt").write_text(error.trace)
        run.save("failed")
        raise
    except OSError as error:
        raise RunError(f"{folder}: {error.strerror or error}") from None
    finally:
        for half in folder.glob(".*.tmp"):  # a table that a killed child could not finish
            half.unlink(missing_ok=True)
    failed = [row for row in run.rows if row["status"] != "ok"]
    run.save("failed" if failed else "ok")
    if failed:
        wrong = f"{failed[0]['mode']} repeat {failed[0]['repeat']}: {failed[0]['status']}"
        raise VerificationError(f"{len(failed)} of {len(run.rows)} repeats failed; {wrong}")
    return run


def _watch(plan: Plan, notices: list[str]) -> GpuWatch | None:
    """What reads the GPU's clocks and energy; None on the CPU, and with a notice where NVML does not answer."""
    if plan.info.kind != "cuda":
        return None
    try:
        return open_watch(plan.info.index)
    except DeviceError as error:
        notices.append(str(error))
        return None


def _repeats(run: Run, terminal: Terminal, watch: GpuWatch | None) -> None:
    plan = run.plan
    tokens = TokenResults(plan, run.folder, run.manifest["run_id"])
    with Session(plan.job(run.folder), terminal.progress, watch) as session, tokens:
        run.manifest |= {"device_versions": session.about["versions"], "ceilings": session.about["ceilings"]}
        for arm, repeat in run.rounds:
            terminal.expects(run.rounds.runs)
            result, produced = session.run(arm, repeat, run.rounds.label(arm, repeat))
            row = _row(plan, run.manifest["run_id"], result["row"], produced)
            histograms = dict(result["histograms"])
            extra = dict(result["extra"])
            if produced.tokens is not None:
                row |= tokens.add(row["mode"], repeat, row["wall_ms"], produced.tokens, histograms, extra)
            else:
                row |= _open_loop(plan, row)
            run.histograms += _histogram_rows(row, histograms)
            if produced.pushed != row["commands"]:
                row["status"] = f"failed: {produced.pushed} commands pushed, {row['commands']} executed"
            run.rows.append(row)
            run.rounds.took(arm, row["wall_ms"])
            run.manifest["runs"].append({"mode": row["mode"], "repeat": repeat, **extra})
            run.save("running")
            terminal.finished(len(run.rows))


def _row(plan: Plan, run_id: str, measured: dict[str, Any], produced: Production) -> results.Row:
    """A row of summary.parquet from what the consumer measured, the producer did and the config says."""
    config, stream = plan.config, plan.stream
    workload = config.workload
    model = None if isinstance(workload, Gemv | OwnSize) else config.model.name
    late_ns, late_max_ns = produced.late_p99_ns, produced.late_max_ns
    spelled = ", ".join(str(shape) for shape in stream.shapes)
    return {
        **dict.fromkeys(results.SUMMARY.names),
        **measured,
        "run_id": run_id,
        "workload": workload.name,
        "model": workload.model if isinstance(workload, Trace) else model,
        "device": plan.info.kind,
        "gpu": plan.info.name if plan.info.kind == "cuda" else None,
        "dtype": stream.dtype.name,
        "shapes": spelled if len(stream.shapes) <= SHAPES_SPELLED else f"{len(stream.shapes)} shapes",
        "layers": None if isinstance(workload, Gemv | Trace) else stream.layers,
        "cache": workload.cache.value,
        "input_footprint_bytes": stream.input_bytes,
        "arrival": "replay" if _has_gaps(plan) else config.arrival.kind,
        "requests": stream.requests,
        "scheduler": config.scheduler.kind,
        "max_batch": config.batching.max_batch,
        "timeout_us": config.batching.timeout_us,
        "producer_blocked_ms": produced.blocked_ns / 1e6,
        "producer_late_p99_us": None if late_ns is None else late_ns / 1e3,
        "producer_late_max_us": None if late_max_ns is None else late_max_ns / 1e3,
        "traced": config.timing.kind.value in ("cupti", "torch") or is_profiled(),
        "interleaved": len(plan.arms) > 1,
    }


def _open_loop(plan: Plan, row: results.Row) -> results.Row:
    """Arrival columns of independent commands: the rate that was asked for, and whether it was reached."""
    arrival = plan.config.arrival
    if _has_gaps(plan):
        assert isinstance(plan.stream, TraceStream)
        asked = row["commands"] / plan.stream.span_ns * 1e9
    elif isinstance(arrival, Closed) or not isinstance(plan.config.workload, Gemv):
        return {}
    else:
        asked = arrival.rate_per_s
    rate = row["commands"] / row["wall_ms"] * 1e3
    return {"arrival_rate_per_s": asked, "completed_rate_per_s": rate, "overloaded": rate < HELD_SHARE * asked}


def _has_gaps(plan: Plan) -> bool:
    """Whether a trace's commands come when they came."""
    return isinstance(plan.stream, TraceStream) and plan.stream.span_ns > 0


def _histogram_rows(row: results.Row, histograms: dict[str, list[tuple[int, int, int]]]) -> list[results.Row]:
    named = {name: row[name] for name in ("run_id", "mode", "repeat")}
    return [
        {**named, "what": what, "low": low, "high": high, "count": count}
        for what, rows in histograms.items()
        for low, high, count in rows
    ]


def _stream_facts(plan: Plan) -> dict[str, Any]:
    stream = plan.stream
    return {
        "commands": stream.commands,
        "layers": stream.layers,
        "replicas": stream.replicas,
        "requests": stream.requests,
        "shapes": {str(shape): count for shape, count in sorted(stream.counts.items())},
        "arena_bytes": stream.arena_bytes,
        "input_footprint_bytes": stream.input_bytes,
        "cache_bytes": plan.info.cache_bytes,
        "cache_residency": plan.residency,
    }


class _Signals:
    """SIGTERM ends a run as Ctrl-C does: children, ring and folder are put in order first, which takes seconds at most.

    The first signal counts. Later ones are ignored to the end of the process, or they would undo that order.
    """

    def __enter__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._interrupt)
        if interrupted():
            self._interrupt(signal.SIGINT, None)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        self._before.clear()
        raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
