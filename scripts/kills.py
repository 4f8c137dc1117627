"""One kill of `kill_campaign`: its plan, the strike, and what it left.

A kill sends a signal to a victim of a run or sweep, at a random time of a phase:

    interpreter  Python starts: no line of ours has run     starting     until the ring exists
    preparing    operands, plans, warm-up run               running      commands move
    checking     outputs, tables, until the next repeat     between      between two jobs of a sweep

`STOP CONT` stops the victim for `hold_s` and continues it; `STOP KILL` stops it and then kills it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from launchopt.analysis.tables.reliability import SIGNALS, VICTIMS
from runner.run.leftovers import tidy
from scripts.watched_run import CHILDREN, Run, eventually

SOFT = ("TERM", "HUP", "INT")  # a run can handle them
# Approximate maximum of each phase, s; a kill comes at a random time within it.
PHASES = {"interpreter": 0.06, "starting": 1.2, "preparing": 0.5, "running": 0.1, "checking": 0.3, "between": 0.1}
REPEATS, JOBS = 4, 5
_WORK = "workload=gemv_micro workload.m=16 workload.k=64 workload.cache=hot mode=batched against=[] device=cpu"
JOB = f"{_WORK} workload.commands=50000 repeats={REPEATS} record.commands=all"
SWEEP = f"-m {_WORK} workload.commands=2000 repeats=1 seed=range({JOBS})"
PATIENCE_S = 60.0  # longest wait for a phase to begin, and for a run to end
CLEANUP_S = 10.0  # longest wait for the children of a run to end
HOLD_S = 0.3  # longest time for which a victim is stopped


@dataclass(slots=True)
class Kill:
    """One kill: its plan, the state of the run, and the outcome."""

    number: int
    victim: str
    phase: str  # as planned
    delay_s: float  # from the start of the phase
    after: int = 0  # repeats of a run, or jobs of a sweep, that finish first
    signal: str = "KILL"
    hold_s: float = 0.0  # how long a victim is stopped
    job: str = "run"  # or sweep
    struck: str = ""  # the actual phase of the kill
    exit_code: int | None = None
    reason: str = ""  # lines of standard error that begin with "error: "
    status: str = ""  # in the manifest or sweep.json, after the cleanup; empty without one
    repeats_before: int = 0
    repeats_after: int = 0
    ended_s: float = 0.0  # from the kill to the end of every process
    segments_until_next_start: int = 0
    lost: int = 0
    leaked: int = 0
    hung: int = 0
    tracebacks: int = 0
    wrong: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether something was lost, leaked, hung, or not as promised."""
        return bool(self.lost or self.leaked or self.hung or self.tracebacks or self.wrong)


def plan(kills: int, seed: int) -> list[Kill]:
    """Return the kills of a campaign, in random order. The same arguments give the same kills."""
    chance = random.Random(seed)
    # Children exist late in a start, and the tracker takes no part in what follows it. A part of all kills, such as the
    # first 60, has every victim, signal and phase.
    cases = [
        (victim, name, phase)
        for phase in PHASES
        for victim in VICTIMS
        for name in SIGNALS
        if phase != "interpreter" or victim in ("parent", "group")
    ]
    planned = []
    while len(planned) < kills:
        chance.shuffle(cases)
        for victim, name, phase in cases[: kills - len(planned)]:
            is_sweep = phase == "between" or chance.random() < 0.25
            after = chance.randrange(1, JOBS) if phase == "between" else 0
            if phase in ("running", "checking") and not is_sweep:
                after = chance.randrange(REPEATS)
            delay_s, hold_s = chance.uniform(0, PHASES[phase]), chance.uniform(0, HOLD_S)
            job = "sweep" if is_sweep else "run"
            planned.append(Kill(len(planned), victim, phase, delay_s, after, name, hold_s, job))
    return planned


def strike(kill: Kill, folder: Path) -> Kill:
    """Start a run in `folder`, strike, and return the kill with everything that it lost, leaked or left wrong."""
    run = Run(folder, SWEEP if kill.job == "sweep" else JOB)
    try:
        # Watching uses a core: a pause between two reads disturbs the run less.
        eventually(lambda: run.process.poll() is not None or _is_time(run, kill), PATIENCE_S)
        time.sleep(kill.delay_s)
        if kill.victim not in ("parent", "group"):
            eventually(lambda: run.process.poll() is not None or kill.victim in run.others(), PATIENCE_S)
        run.others()  # remembers them
        kill.repeats_before, kill.struck = run.repeats(), run.phase()
        if run.process.poll() is not None:
            kill.struck = "ended"
        else:
            _send(kill, run)
        _wait(kill, run)
        _count_faults(kill, run)
    finally:
        run.end()
    return kill


def _is_time(run: Run, kill: Kill) -> bool:
    if kill.phase == "interpreter":
        return True
    if kill.phase == "between":
        return run.jobs_ended() >= kill.after
    return run.phase() == kill.phase and run.repeats() >= kill.after


def _send(kill: Kill, run: Run) -> None:
    first, *then = kill.signal.split()
    with contextlib.suppress(psutil.Error, ProcessLookupError, KeyError):
        _send_one(kill, run, first)
        for name in then:
            time.sleep(kill.hold_s)
            _send_one(kill, run, name)


def _send_one(kill: Kill, run: Run, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    if kill.victim == "group":
        os.killpg(run.process.pid, number)
    elif kill.victim == "parent":
        run.process.send_signal(number)
    else:
        run.others()[kill.victim].send_signal(number)


def _wait(kill: Kill, run: Run) -> None:
    """Wait for the end of every process of the run."""
    began_s = time.monotonic()
    try:
        stderr = run.process.communicate(timeout=PATIENCE_S)[1]
    except subprocess.TimeoutExpired:
        kill.hung, stderr = 1, ""
    kill.reason = "\n".join(line for line in stderr.splitlines() if line.startswith("error: "))
    kill.exit_code = run.process.returncode
    if kill.struck != "interpreter":
        kill.tracebacks = stderr.count("Traceback (most recent call last)") + stderr.count("Exception ignored")
    if not kill.hung and not eventually(lambda: not run.alive(), CLEANUP_S):
        kill.leaked += len(run.alive())
    kill.ended_s = time.monotonic() - began_s


def _count_faults(kill: Kill, run: Run) -> None:
    if kill.exit_code is None or kill.exit_code >= 0:  # it has cleaned up itself
        kill.leaked += len(run.segments()) + len(run.hidden())
    kill.segments_until_next_start = len(run.segments())
    tidy(run.folder.parent / "next")
    if kill.exit_code is not None and kill.exit_code < 0:
        kill.leaked += len(run.segments()) + len(run.hidden())
    kill.tracebacks += len(list(run.folder.rglob("traceback.txt")))
    kill.status, kill.repeats_after = run.status(), run.repeats()
    kill.lost = max(0, kill.repeats_before - min(kill.repeats_after, run.readable_repeats()))
    kill.wrong = _wrong(kill, run)


def _wrong(kill: Kill, run: Run) -> str:
    """Return the unexpected exit code, status and reason; empty if they are as promised."""
    stale = [about for about in run.manifests() if about.get("status") == "running"]
    if _is_promised(kill, run) and not stale:
        return ""
    said = f"{'; a manifest says running' if stale else ''}: {kill.reason[-200:]}"
    return f"ended with {kill.exit_code}, status {kill.status or 'none'}{said}"


def _is_promised(kill: Kill, run: Run) -> bool:
    is_whole = kill.exit_code == 0 and kill.status == "ok" and not kill.reason
    is_child = kill.victim in CHILDREN
    if kill.struck == "ended" or kill.signal == "STOP CONT" or kill.victim == "tracker":
        return is_whole
    if kill.signal == "INT" and is_child:  # it leaves Ctrl-C to the parent, which a terminal asks too
        return is_whole
    if kill.signal in SOFT:
        return _is_soft_end(kill, run) or is_whole  # it came as the command ended
    if not is_child:
        return kill.exit_code == -signal.SIGKILL and kill.status in ("killed", "ok", "")
    if is_whole:  # a child without a job is replaced
        return kill.struck in ("interpreter", "starting", "preparing", "between") or _was_idle(kill)
    wanted = f"{kill.victim} was killed by signal 9"
    return (kill.exit_code, kill.status) == (1, "failed") and kill.reason == f"error: {wanted}"


def _is_soft_end(kill: Kill, run: Run) -> bool:
    """Return whether a run ended as SIGTERM, SIGHUP or SIGINT promise."""
    number = signal.Signals[f"SIG{kill.signal}"]
    if kill.exit_code == 128 + number:
        name = "" if kill.signal == "INT" else f" by SIG{kill.signal}"
        is_said = kill.reason.startswith(f"error: interrupted{name}") and "\n" not in kill.reason
        return is_said and kill.status in ("interrupted", "ok", "")
    # Python itself: INT is a KeyboardInterrupt in its own start
    is_pythons = kill.exit_code == -number or (kill.signal == "INT" and kill.exit_code == 1)
    return kill.struck == "interpreter" and is_pythons and not run.folder.exists()


def _was_idle(kill: Kill) -> bool:
    """Return whether all work was done when the kill came."""
    return kill.repeats_after == (JOBS if kill.job == "sweep" else REPEATS)
