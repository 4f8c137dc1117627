"""Kills runs at random points and looks at what is left: nothing may be lost, leaked or untold.

    python scripts/kill_campaign.py                       1,000 kills, two runs at a time
    python scripts/kill_campaign.py --kills 50 --seed 7   fewer, others

Each kill is a SIGKILL to the consumer, the producer, the parent, or at once to the whole group with Python's resource
tracker (as the out-of-memory killer of a container does), in a phase of the run and after a random time in it:

    starting    before there is a ring        preparing   operands, plans, rehearsal
    running     commands are under way        checking    outputs, tables, until the next repeat runs

The last two come in the first repeat or after one to three that were finished.

Then what every start of a run does first is done (`runner.run.leftovers.tidy`), beside a live neighbour, and counted:
*lost*, repeats that were in the folder before the kill and are not now, or cannot be read; *leaked*, processes,
segments of shared memory and temporary files that are left; *wrong*, an exit code, a reason or a status other than
promised. A neighbour's segment that is gone is wrong, too.

Out: campaign.parquet, a row a kill, and manifest.json, the counts, in outputs/reliability/<time>; a table. Ctrl-C keeps
what was done. Ends with 1 where anything was lost, leaked or wrong, with 130 where it was interrupted. Needs Linux, the
package and no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from launchopt.devices.cpu.info import cpu_info
from launchopt.errors import DataError
from launchopt.files import write_atomically
from launchopt.queue.ring import CLOSED_BIT, HeaderWord, Ring
from launchopt.recording.environment import environment
from launchopt.recording.manifest import read_manifest, write_manifest
from runner.pager import console
from runner.run.leftovers import FOLDER, held, tidy

ROOT = Path(__file__).resolve().parents[1]
VICTIMS = ("consumer", "producer", "parent", "group")
# How long each phase takes at the most, about; a kill comes at a random time of it.
PHASES = {"starting": 1.2, "preparing": 0.5, "running": 0.1, "checking": 0.3}
REPEATS = 4
JOB = (
    "workload=gemv_micro workload.m=16 workload.k=64 workload.cache=hot workload.commands=50000 mode=batched "
    f"device=cpu repeats={REPEATS} record.commands=all"
)
REHEARSED = 64  # so few commands are no run
PATIENCE_S, SOON_S, LOOK_S = 60.0, 10.0, 0.003


@dataclass(slots=True)
class Kill:
    """One kill: what was planned, what was there, what came of it."""

    number: int
    victim: str
    phase: str  # that was waited for
    delay_s: float
    after: int = 0  # repeats that were to be finished first
    struck: str = ""  # the phase in which it came
    exit_code: int | None = None
    reason: str = ""
    status: str = ""  # in the manifest, after the next start; "" where there was none yet
    repeats_before: int = 0
    repeats_after: int = 0
    ended_s: float = 0.0  # until every process was gone
    segments_until_next_start: int = 0
    lost: int = 0
    leaked: int = 0
    wrong: str = ""


class Run:
    """`python -m runner` in its own process group, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *JOB.split(), f"hydra.run.dir={self.folder}"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._known: dict[int, psutil.Process] = {}

    def children(self) -> list[psutil.Process]:
        """Consumer and producer, in the order they are started."""
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self.process.pid)
            self._known |= {child.pid: child for child in parent.children(recursive=True)}
        found = []
        for child in self.alive():
            with contextlib.suppress(psutil.Error):
                if "--multiprocessing-fork" in child.cmdline():
                    found.append(child)
        return sorted(found, key=lambda child: child.pid)

    def alive(self) -> list[psutil.Process]:
        """Every descendant ever seen that still runs."""
        found = []
        for child in self._known.values():
            with contextlib.suppress(psutil.Error):
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def segments(self) -> list[Path]:
        """Shared memory of this run."""
        return list(FOLDER.glob(f"launchopt_{self.process.pid}_*"))

    def phase(self) -> str:
        """By the words of the ring."""
        for ring in self.segments():
            with contextlib.suppress(OSError):
                words = np.fromfile(ring, np.uint64, count=HeaderWord.TAIL + 1)
                if len(words) <= HeaderWord.TAIL:
                    return "starting"
                pushed, popped = int(words[HeaderWord.HEAD]), int(words[HeaderWord.TAIL])
                if pushed & ~CLOSED_BIT <= REHEARSED:
                    return "preparing" if self.repeats() == 0 else "checking"
                return "checking" if pushed == popped | CLOSED_BIT else "running"
        return "starting"

    def manifest(self) -> dict[str, Any]:
        """Empty where there is none yet."""
        try:
            return read_manifest(self.folder)
        except DataError:
            return {}

    def repeats(self) -> int:
        """Finished, as the manifest says."""
        return int(self.manifest().get("repeats_done", 0))

    def end(self) -> None:
        """Whatever is still there, goes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for left in self.alive():
            with contextlib.suppress(psutil.Error):
                left.kill()
        self.process.communicate()


def eventually(condition: Callable[[], Any], within_s: float) -> bool:
    """Whether it came true in time."""
    limit = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(LOOK_S)
    return True


def strike(kill: Kill, folder: Path) -> Kill:
    """Start a run in `folder`, kill what is planned, look at what is left."""
    run = Run(folder)
    try:
        waits_for = ("consumer", "producer").index(kill.victim) + 1 if kill.victim in ("consumer", "producer") else 0
        # Watching takes a core's time: the less of it, the closer to a run that is not watched.
        eventually(lambda: run.process.poll() is not None or _is_time(run, kill), PATIENCE_S)
        time.sleep(kill.delay_s)
        eventually(lambda: run.process.poll() is not None or len(run.children()) >= waits_for, PATIENCE_S)
        children, kill.repeats_before, kill.struck = run.children(), run.repeats(), run.phase()
        with contextlib.suppress(psutil.Error, ProcessLookupError, IndexError):
            if run.process.poll() is not None:
                kill.struck = "ended"
            elif kill.victim == "group":
                os.killpg(run.process.pid, signal.SIGKILL)
            elif kill.victim == "parent":
                run.process.kill()
            else:
                children[waits_for - 1].kill()
        began_s = time.monotonic()
        told = run.process.communicate(timeout=PATIENCE_S)[1].splitlines()
        kill.reason = "\n".join(line for line in told if line.startswith("error: "))  # not what Python warns of
        kill.exit_code = run.process.returncode
        if not eventually(lambda: not run.alive(), SOON_S):
            kill.leaked += len(run.alive())
        kill.ended_s = time.monotonic() - began_s
        _look(kill, run)
    finally:
        run.end()
    return kill


def _is_time(run: Run, kill: Kill) -> bool:
    return run.phase() == kill.phase and run.repeats() >= kill.after


def _look(kill: Kill, run: Run) -> None:
    kill.segments_until_next_start = len(run.segments())
    tidy(run.folder.parent / "next")
    files = [path for path in run.folder.glob("*") if path.name.startswith(".")] if run.folder.exists() else []
    kill.leaked += len(run.segments()) + len(files)
    manifest = run.manifest()
    kill.status, kill.repeats_after = manifest.get("status", ""), int(manifest.get("repeats_done", 0))
    kill.lost = max(0, kill.repeats_before - min(kill.repeats_after, _readable_repeats(run.folder)))
    kill.wrong = _wrong(kill)


def _readable_repeats(folder: Path) -> int:
    """Repeats in the summary, every table of the folder being readable; -1 where one is not."""
    try:
        rows = {path.name: pq.read_table(path).num_rows for path in folder.glob("*.parquet")}
    except (OSError, pa.ArrowException):
        return -1
    return int(rows.get("summary.parquet", 0))


def _wrong(kill: Kill) -> str:
    """What is not as promised."""
    if kill.struck == "ended":
        told = kill.exit_code == 0
    elif kill.victim in ("parent", "group"):
        told = kill.exit_code == -signal.SIGKILL and kill.status in ("killed", "")
    elif kill.exit_code == 0:  # a child that dies before it is given its job is replaced
        told = kill.struck in ("starting", "preparing") and kill.status == "ok" and not kill.reason
    else:
        reason = f"error: {kill.victim} was killed by signal 9"
        told = kill.exit_code == 1 and kill.status == "failed" and kill.reason == reason
    return "" if told else f"ended with {kill.exit_code}, status {kill.status or 'none'}: {kill.reason[-200:]}"


def campaign(kills: int, seed: int, workers: int, folder: Path) -> Iterator[Kill]:
    """Every kill as it is done; runs live below `folder`. A neighbour of ours lives through it all."""
    chance = random.Random(seed)
    pairs = [(victim, phase) for phase in PHASES for victim in VICTIMS]
    planned = []
    for number in range(kills):
        victim, phase = pairs[number % len(pairs)]
        after = chance.randrange(REPEATS) if phase in ("running", "checking") else 0
        planned.append(Kill(number, victim, phase, chance.uniform(0, PHASES[phase]), after))
    chance.shuffle(planned)

    def one(kill: Kill) -> Kill:
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
            strike(kill, Path(own))
        if not neighbour.exists():
            kill.wrong += " a neighbour's segment was removed"
        return kill

    with Ring.create(64) as ring, held(neighbour := FOLDER / ring.name), ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(one, planned)
        finally:
            pool.shutdown(cancel_futures=True)


def summary(kills: Sequence[Kill]) -> list[dict[str, Any]]:
    """Counts by victim and the phase in which it was struck, and of all."""
    counts = []
    for victim, phase in [*((victim, phase) for victim in VICTIMS for phase in (*PHASES, "ended")), ("all", "all")]:
        mine = [kill for kill in kills if victim == "all" or (kill.victim, kill.struck) == (victim, phase)]
        if phase == "ended" and not mine:  # the run was over before the kill
            continue
        counts.append(
            {
                "victim": victim,
                "phase": phase,
                "tried": len(mine),
                "lost": sum(kill.lost for kill in mine),
                "leaked": sum(kill.leaked for kill in mine),
                "wrong": sum(bool(kill.wrong) for kill in mine),
                "segments_until_next_start": sum(kill.segments_until_next_start for kill in mine),
                "longest_end_s": round(max((kill.ended_s for kill in mine), default=0.0), 2),
            }
        )
    return counts


def _parser() -> argparse.ArgumentParser:
    about, _, details = (__doc__ or "").partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("kill_campaign", None, about, details, formatter_class=formatter)
    parser.add_argument("--kills", type=int, default=1000, metavar="N", help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random points (default 0)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="runs at a time (default 2)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: outputs/reliability/<time>")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, count, save, print. Returns the exit code."""
    options = _parser().parse_args(argv)
    began = datetime.now(UTC)
    out: Path = options.out or Path("outputs/reliability") / began.strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    done: list[Kill] = []
    screen = console(stderr=True)
    folder = tempfile.TemporaryDirectory(prefix="launchopt-kills-")
    with folder, screen.status("") as status, contextlib.suppress(KeyboardInterrupt):  # what was done by then is kept
        for kill in campaign(options.kills, options.seed, options.workers, Path(folder.name)):
            done.append(kill)
            status.update(f"{len(done)} of {options.kills} kills")
            if kill.lost or kill.leaked or kill.wrong:
                screen.print(f"{kill}", markup=False, soft_wrap=True)
    if not done:
        return 130
    counts = summary(done)
    table = pa.Table.from_pylist([asdict(kill) for kill in sorted(done, key=lambda kill: kill.number)])
    write_atomically(out / "campaign.parquet", lambda path: pq.write_table(table, path, compression="zstd"))
    about: dict[str, Any] = {"started_utc": began.isoformat(timespec="seconds"), "seed": options.seed}
    about |= {"workers": options.workers, "job": JOB, "counts": counts}
    about |= {"environment": environment(), "processor": cpu_info().name}
    write_manifest(out, about)
    shown = Table(*(name.replace("_", " ") for name in counts[0]), box=None)
    for row in counts:
        shown.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console().print(shown)
    console().print(str(out), markup=False)
    if any(counts[-1][what] for what in ("lost", "leaked", "wrong")):
        return 1
    return 0 if len(done) == options.kills else 130


if __name__ == "__main__":
    sys.exit(main())
