"""One job from plan to folder: runs its repeats and saves their results.

summary.parquet and manifest.json are replaced after every repeat. However the run ends, the folder holds the finished
repeats, and the manifest says how it ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from launchopt.devices.cuda.info import uuid_of
from launchopt.errors import DeviceError, Interrupted, LaunchoptError, RunError, VerificationError
from launchopt.files import Reserve, reason
from launchopt.modes import mode_class
from launchopt.producing.production import Production
from launchopt.recording import results
from launchopt.recording.environment import environment
from launchopt.recording.identity import stream_hash
from launchopt.recording.manifest import Manifest
from launchopt.recording.summary_columns import derived
from launchopt.timing.nvml import GpuWatch, open_watch
from launchopt.timing.nvtx_ranges import is_profiled
from launchopt.verify.chance import chance_to_find
from runner.plan.plan import Plan
from runner.run.leftovers import remove_unfinished, tidy
from runner.run.repeats import Rounds
from runner.run.resume import config_hash
from runner.run.session import ChildError, Session
from runner.run.signals import Signals
from runner.run.terminal import Terminal, throttled_repeats
from runner.run.tokens import TokenResults
from runner.run.watchdog import Moved, limited
from runner.screen.pager import Voice
from runner.worker.messages import HistogramRows, RepeatResult

SHAPES_LISTED = 8  # maximum shapes that a summary lists; it only counts the others


@dataclass
class Run:
    """A job's folder and the results in it so far."""

    plan: Plan
    folder: Path
    rounds: Rounds
    notices: list[str]  # printed before the run
    reserve: Reserve  # disk space that is freed for the final manifest, so that it fits on a full disk
    rows: list[results.Row] = field(default_factory=list)
    manifest: Manifest = field(default_factory=dict)
    histograms: list[results.Row] = field(default_factory=list)

    def save(self, status: str) -> None:
        """Replace summary, histograms and manifest."""
        self.manifest |= {"status": status, "repeats_done": len(self.rows), "repeats": self.rounds.as_dict()}
        self.manifest["notices"] = [*self.notices, *self.late_notices()]
        if self.rows:
            config = self.plan.composed
            results.write_rows(self.folder / "summary.parquet", results.SUMMARY, self.rows, config)
            results.write_rows(self.folder / "histograms.parquet", results.HISTOGRAMS, self.histograms, config)
        results.write_manifest(self.folder, self.manifest)

    def end(self, status: str) -> None:
        """Save for the last time, with the reserved disk space. The children no longer write."""
        self.reserve.release()
        remove_unfinished(self.folder)  # unfinished tables of a killed child
        self.save(status)

    def late_notices(self) -> list[str]:
        """Return notices that follow from the repeats."""
        modes = dict.fromkeys(row["mode"] for row in self.rows)
        throttled = ((mode, throttled_repeats([row for row in self.rows if row["mode"] == mode])) for mode in modes)
        throttling = [f"{mode}: repeats throttled: {text}" for mode, text in throttled if text]
        sampled = [] if self.plan.stream.has_steps else sampled_check(self.rows)
        return [*self.rounds.notices(), *forwarded_lines(self.manifest["runs"]), *throttling, *sampled]


def sampled_check(rows: Sequence[results.Row]) -> list[str]:
    """Return a notice if only a sample of the independent commands was checked."""
    sampled = [row for row in rows if (row["checked_commands"] or row["commands"]) < row["commands"]]
    if not sampled:
        return []
    row = min(sampled, key=lambda row: row["checked_commands"])
    commands, checked = row["commands"], row["checked_commands"]
    found = chance_to_find(max(1, commands // 10_000), commands, checked)
    return [
        f"{checked:,} of {commands:,} commands were checked, at random, in the time allowed (verify_budget_s);"
        f" if one of 10,000 is wrong, that is found with a probability of {found:.3g}; verify=full checks all"
    ]


def forwarded_lines(runs: Iterable[Manifest]) -> list[str]:
    """Return a line for each mode that did not launch every command by its own strategy.

    `megakernel: 32 of 640 commands were launched otherwise: strided 32` counts the repeat with the most such commands.
    `runs` are the manifest's entries of repeats: mode, and the number of commands of each `launch_rows.Strategy`.
    """
    most: dict[str, tuple[int, int, str]] = {}
    for run in runs:
        own, by = mode_class(run["mode"]).own_strategy, run["commands_by_strategy"]
        if not own:
            continue
        others = {name: count for name, count in by.items() if name != own}
        listed = ", ".join(f"{name} {count:,}" for name, count in others.items())
        found = sum(others.values()), sum(by.values()), listed
        most[run["mode"]] = max(most.get(run["mode"], found), found)
    return [
        f"{mode}: {others:,} of {commands:,} commands were launched otherwise: {listed}"
        for mode, (others, commands, listed) in most.items()
        if others
    ]


def execute(plan: Plan, folder: Path, overrides: list[str], voice: Voice | None = None) -> Run:
    """Run the plan into `folder`. Raises a LaunchoptError if it ends early; the folder is consistent either way."""
    voice, notices = voice or Voice(), [*plan.notices, *tidy(folder)]
    watch = _watch(plan, notices)
    config = plan.config
    rounds = Rounds(config.rounds, config.repeats_limit_s, [arm.mode for arm in plan.arms], config.seed)
    run = Run(plan, folder, rounds, notices, Reserve(folder))
    run.manifest = {
        "run_id": plan.job(folder).run_id,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "overrides": overrides,
        "refused": plan.refused,
        "config": plan.composed,
        "config_hash": config_hash(plan.composed),
        "stream": _stream_facts(plan),
        "environment": environment() | {"device": plan.info.as_dict()},
        "garbage_collection": "off between the start barrier and the last result",
        "runs": [],
    }
    run.save("running")
    voice.notices(notices)
    try:
        with Signals() as signals, Terminal(plan, rounds.runs, voice.name) as terminal:
            _repeats(run, terminal, watch, signals)
        voice.notices(run.late_notices())
        failed = [row for row in run.rows if row["status"] != "ok"]
        run.end("failed" if failed else "ok")
    except KeyboardInterrupt:
        run.end("interrupted")
        raise Interrupted(f"interrupted; {len(run.rows)} finished repeats are in {folder}") from None
    except (LaunchoptError, OSError) as error:
        foreseen = error if isinstance(error, LaunchoptError) else RunError(f"{folder}: {reason(error)}")
        _keep_error(run, foreseen)
        raise foreseen from None
    if failed:
        wrong = f"{failed[0]['mode']} repeat {failed[0]['repeat']}: {failed[0]['status']}"
        raise VerificationError(f"{len(failed)} of {len(run.rows)} repeats failed; {wrong}")
    return run


def _keep_error(run: Run, error: LaunchoptError) -> None:
    """Save the error and the finished repeats, as far as the disk has space."""
    run.manifest["error"] = str(error)
    with contextlib.suppress(RunError, OSError):
        if isinstance(error, ChildError) and error.trace:
            (run.folder / "traceback.txt").write_text(error.trace)
    with contextlib.suppress(RunError, OSError):
        run.end("failed")


def _watch(plan: Plan, notices: list[str]) -> GpuWatch | None:
    """Return the reader of the GPU's clocks and energy. None on the CPU; None and a notice if NVML does not answer."""
    if plan.info.kind != "cuda":
        return None
    try:
        return open_watch(uuid_of(plan.info.index))
    except DeviceError as error:
        notices.append(str(error))
        return None


def _repeats(run: Run, terminal: Terminal, watch: GpuWatch | None, signals: Signals) -> None:
    plan = run.plan

    def progress(label: str, moved: Moved) -> None:
        signals.announce()
        terminal.progress(label, moved)

    tokens, config = TokenResults(plan, run.folder, run.manifest["run_id"]), plan.config
    progress_of_job = limited(progress, config.job_timeout_s)
    with Session(plan.job(run.folder), progress_of_job, watch, config.watchdog_s) as session, tokens:
        about = dict(session.about)
        run.manifest |= {"device_versions": about.pop("versions"), **about}
        terminal.begun()
        for arm, repeat in run.rounds:
            terminal.expects(run.rounds.runs)
            with signals.finishing(label := run.rounds.label(arm, repeat)):
                _keep(run, tokens, arm, *session.run(arm, repeat, label))
                terminal.finished(arm)


def _keep(run: Run, tokens: TokenResults, arm: int, result: RepeatResult, produced: Production) -> None:
    """Add one finished repeat to the run and save it."""
    plan, repeat = run.plan, result.row["repeat"]
    row = _row(plan, run.manifest["run_id"], result.row, produced)
    histograms, extra = dict(result.histograms), dict(result.extra)
    if produced.tokens is not None:
        found = tokens.add(row["mode"], repeat, row["wall_ms"], produced.tokens)
        row |= found.row
        histograms |= found.histograms
        extra |= found.extra
    elif plan.due_per_s is not None:
        row["arrival_rate_per_s"] = plan.due_per_s
    run.histograms += _histogram_rows(row, histograms)
    if produced.pushed != row["commands"]:
        row["status"] = f"failed: {produced.pushed} commands pushed, {row['commands']} executed"
    row |= derived(row)
    run.rows.append(row)
    run.rounds.took(arm, row["wall_ms"])
    run.manifest["runs"].append({"mode": row["mode"], "repeat": repeat, **extra})
    run.save("running")


def _row(plan: Plan, run_id: str, measured: results.Row, produced: Production) -> results.Row:
    """Return a row of summary.parquet: the consumer's columns, the producer's and those of the config."""
    config, stream = plan.config, plan.stream
    workload = config.workload
    late_ns, late_max_ns = produced.late_p99_ns, produced.late_max_ns
    listed = ", ".join(str(shape) for shape in stream.shapes)
    return {
        **dict.fromkeys(results.SUMMARY.names),
        **measured,
        "run_id": run_id,
        "workload": workload.name,
        "model": workload.model_name(config.model.name),
        "device": plan.info.kind,
        "gpu": plan.info.name if plan.info.kind == "cuda" else None,
        "dtype": stream.dtype.name,
        "shapes": listed if len(stream.shapes) <= SHAPES_LISTED else f"{len(stream.shapes)} shapes",
        "layers": stream.layers if workload.has_layers else None,
        "cache": workload.cache.value,
        "input_footprint_bytes": stream.input_bytes,
        "arrival": "replay" if plan.stream.span_ns else config.arrival.kind,
        "independent": stream.independent,
        "requests": stream.requests,
        "scheduler": config.scheduler.kind + (", steps ahead" if config.scheduler.ahead else ""),
        "max_batch": config.batching.max_batch,
        "timeout_us": config.batching.timeout_us,
        "producer_blocked_ms": produced.blocked_ns / 1e6,
        "producer_late_p99_us": None if late_ns is None else late_ns / 1e3,
        "producer_late_max_us": None if late_max_ns is None else late_max_ns / 1e3,
        "traced": config.timing.kind.value in ("cupti", "torch") or is_profiled(),
        "interleaved": len(plan.arms) > 1,
    }


def _histogram_rows(row: results.Row, histograms: HistogramRows) -> list[results.Row]:
    named = {name: row[name] for name in ("run_id", "mode", "repeat")}
    return [
        {**named, "what": what, "low": low, "high": high, "count": count}
        for what, rows in histograms.items()
        for low, high, count in rows
    ]


def _stream_facts(plan: Plan) -> dict[str, object]:
    stream = plan.stream
    return {
        "hash": stream_hash(stream),
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
