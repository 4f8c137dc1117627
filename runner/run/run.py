"""One job from plan to folder: runs its repeats and saves their results (`saving`).

However the run ends, its files hold the finished repeats and how it ended; but signals that end a process at once lose
the latest ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from launchopt.devices.cuda.info import uuid_of
from launchopt.errors import DeviceError, Interrupted, LaunchoptError, RunError, VerificationError
from launchopt.files import Reserve, reason
from launchopt.producing.production import Production
from launchopt.recording.environment import environment
from launchopt.recording.summary_columns import derived
from launchopt.timing.nvml import GpuWatch, GpuWatches, open_watch
from runner.config.plugged import of_plugins
from runner.ending.signals import how_stopped, signals, stop_code
from runner.plan import gpus
from runner.plan.plan import Plan
from runner.plan.sharing import held
from runner.run import children
from runner.run.children import ChildError
from runner.run.leftovers import tidy
from runner.run.resume import config_hash
from runner.run.rows import histogram_rows, stream_facts, summary_row
from runner.run.saving import Run, now
from runner.run.screens.terminal import Terminal
from runner.run.session import Session
from runner.run.several import gpu_rows, merged
from runner.run.tokens import TokenResults
from runner.run.watchdog import Moved, limited
from runner.screen.pager import Voice
from runner.worker.messages import RepeatResult


def execute(plan: Plan, folder: Path, overrides: list[str], voice: Voice | None = None) -> Run:
    """Run the plan into `folder`. Raises a LaunchoptError if it ends early; the folder is consistent either way."""
    voice, notices = voice or Voice(), [*plan.notices, *tidy(folder)]
    watch = _watch(plan, notices)
    run = Run(plan, folder, [], notices, Reserve(folder))
    run.rounds.append(run.new_rounds())
    plugins = of_plugins(plan.config, [arm.mode for arm in plan.arms])
    run.manifest = {
        "run_id": plan.job(folder).run_id,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "overrides": overrides,
        "refused": plan.refused,
        "waterfall": plan.orders,
        "config": plan.composed,
        "config_hash": config_hash(plan.composed),
        "stream": stream_facts(plan),
        "plugins": {setting: plugin.label for setting, plugin in plugins.items()},
        "environment": environment(each.package for each in plugins.values()) | {"device": plan.info.as_dict()},
        "garbage_collection": "off between the start barrier and the last result",
        "runs": [],
    } | ({"own_gpu": uuid} if (uuid := gpus.own()) and plan.info.kind == "cuda" else {})
    if (own := held(plan.info.kind)) is not None:
        run.manifest["held"] = {"device": own, "from_utc": now()}
    run.save("running")
    voice.notices(notices)
    try:
        with Terminal(plan, run.runs, voice.name) as terminal:
            _repeats(run, terminal, watch)
        voice.notices(run.late_notices())
        failed = [row for row in run.rows if row["status"] != "ok"]
        with signals.held():
            run.end("failed" if failed else "ok")
            run.has_ended = True
    except KeyboardInterrupt as stop:
        raise _interrupted(run, stop) from None
    except (LaunchoptError, OSError) as error:
        if signals.is_raised:  # a library made this error of the signal's exception
            raise _interrupted(run, signals.stopped()) from None
        foreseen = error if isinstance(error, LaunchoptError) else RunError(f"{folder}: {reason(error)}")
        _keep_error(run, foreseen)
        raise foreseen from None
    except BaseException as error:
        _keep_error(run, RunError(f"{type(error).__name__}: {error}"))
        raise
    if failed:
        wrong = f"{failed[0]['mode']} repeat {failed[0]['repeat']}: {failed[0]['status']}"
        raise VerificationError(f"{len(failed)} of {len(run.rows)} repeats failed; {wrong}")
    return run


def _interrupted(run: Run, stop: BaseException) -> Interrupted:
    """Save the finished repeats of a run that a signal ended, and return the error to report."""
    if not run.has_ended:
        with contextlib.suppress(RunError, OSError):
            run.end("interrupted")
    text = f"{how_stopped(stop)}; {len(run.rows)} finished repeats are in {run.folder}"
    return Interrupted(text, stop_code(stop))


def _keep_error(run: Run, error: LaunchoptError) -> None:
    """Save the error and the finished repeats, as far as the disk has space."""
    run.manifest["error"] = str(error)
    with contextlib.suppress(RunError, OSError):
        if isinstance(error, ChildError) and error.trace:
            (run.folder / "traceback.txt").write_text(error.trace, "utf-8", "backslashreplace")
    with contextlib.suppress(RunError, OSError):
        run.end("failed")


def _watch(plan: Plan, notices: list[str]) -> GpuWatches | None:
    """Return the reader of the GPUs' clocks and energy; None without any. A GPU that cannot be read has a notice."""
    if plan.info.kind != "cuda":
        return None
    found = list[GpuWatch | None]()
    for index in plan.consumers:
        try:
            found.append(open_watch(uuid_of(index)))
        except DeviceError as error:
            found.append(None)
            notices.append(f"GPU {index}: {error}" if len(plan.consumers) > 1 else str(error))
    return GpuWatches(found) if any(found) else None


def _repeats(run: Run, terminal: Terminal, watch: GpuWatches | None) -> None:
    plan = run.plan

    def progress(label: str, moved: Moved) -> None:
        signals.announce()
        terminal.progress(label, moved)

    tokens, config = TokenResults(plan, run.folder, run.manifest["run_id"]), plan.config
    progress_of_job = limited(progress, config.job_timeout_s)
    with tokens:
        for process in range(config.processes):
            if config.processes > 1:
                children.dismiss(only_used=True)  # each set of processes starts anew
            if process:
                run.rounds.append(run.new_rounds())
            is_last = process == config.processes - 1
            first = len(run.rows)
            jobs = [replace(job, first_part=first, is_last=is_last) for job in plan.jobs(run.folder)]
            with Session(jobs, progress_of_job, watch, config.watchdog_s, run.laps) as session:
                about = dict(session.about)
                run.manifest |= {"device_versions": about.pop("versions"), **about}
                run.manifest["processes"] = [*run.manifest.get("processes", []), session.pids]
                terminal.begun()
                _rounds(run, tokens, terminal, session)
            run.settle(session.about, run.rows[first:])


def _rounds(run: Run, tokens: TokenResults, terminal: Terminal, session: Session) -> None:
    """Run the rounds of one process."""
    rounds, processes = run.rounds[-1], run.plan.config.processes
    which = f"process {len(run.rounds)}/{processes}: " if processes > 1 else ""
    for arm, repeat in rounds:
        terminal.expects(run.runs)
        with signals.finishing(label := which + rounds.label(arm, repeat)):
            result = session.run(arm, repeat, label)
            with signals.held():
                _keep(run, tokens, arm, *result)
            terminal.finished(arm)


def _keep(run: Run, tokens: TokenResults, arm: int, found: Sequence[RepeatResult], produced: Production) -> None:
    """Add one finished repeat to the run, and save it if that is due. found: the result of each consumer."""
    result = merged(run.plan, found)
    run.gpus += gpu_rows(run.plan, run.manifest["run_id"], found)
    plan, repeat = run.plan, result.row["repeat"]
    row = summary_row(plan, run.manifest["run_id"], result.row, produced)
    histograms, extra = dict(result.histograms), dict(result.extra)
    if produced.tokens is not None:
        of_tokens = tokens.add(row["mode"], repeat, row["wall_ms"], produced.tokens)
        row |= of_tokens.row
        histograms |= of_tokens.histograms
        extra |= of_tokens.extra
    elif plan.due_per_s is not None:
        row["arrival_rate_per_s"] = plan.due_per_s
    run.histograms += histogram_rows(row, histograms)
    if produced.pushed != row["commands"]:
        row["status"] = f"failed: {produced.pushed} commands pushed, {row['commands']} executed"
    row |= derived(row) | {"process": len(run.rounds) - 1}
    run.rows.append(row)
    run.rounds[-1].took(arm, row["wall_ms"])
    run.manifest["runs"].append({"mode": row["mode"], "repeat": repeat, **extra})
    run.save_if_due()
