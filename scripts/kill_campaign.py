"""Kills runs at random points and checks that nothing is lost, leaked or reported wrongly.

    python scripts/kill_campaign.py                       1,000 kills, two runs at a time
    python scripts/kill_campaign.py --kills 50 --seed 7   fewer, others

Each kill is a SIGKILL to the consumer, the producer, the parent, or the whole process group. The group includes
Python's resource tracker, as with the out-of-memory killer of a container. The kill comes at a random time of a phase:

    starting    before the ring exists        preparing   operands, plans, warm-up run
    running     commands move                 checking    outputs, tables, until the next repeat runs

The last two phases belong to the first repeat, or to one after up to three finished ones.

Then the script cleans up as every start of a run does (`runner.run.leftovers.tidy`), while another run's segment is in
use. It counts three faults. *lost*: repeats that were in the folder before the kill and are missing or unreadable now.
*leaked*: processes, segments of shared memory and temporary files that are left. *wrong*: an unexpected exit code,
reason or status, or the removal of the other run's segment.

The script prints a table and writes campaign.parquet (a row for each kill) and manifest.json (the counts) to
outputs/reliability/<time>. Ctrl-C keeps the finished kills. Exit code: 1 after a fault, 130 after Ctrl-C, else 0. Needs
Linux and the package, and no GPU.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launchopt.devices.cpu.info import cpu_info
from launchopt.files import write_atomically
from launchopt.queue.ring import Ring
from launchopt.recording.environment import environment
from launchopt.recording.manifest import write_manifest
from runner.reading import CommandParser
from runner.run.leftovers import FOLDER, held, tidy
from runner.screen.pager import console
from runner.values import whole_number
from scripts.watched_run import Run, eventually

VICTIMS = ("consumer", "producer", "parent", "group")
# Approximate maximum of each phase, s; a kill comes at a random time within it.
PHASES = {"starting": 1.2, "preparing": 0.5, "running": 0.1, "checking": 0.3}
REPEATS = 4
JOB = (
    "workload=gemv_micro workload.m=16 workload.k=64 workload.cache=hot workload.commands=50000 mode=batched "
    f"device=cpu repeats={REPEATS} record.commands=all"
)
PATIENCE_S = 60.0  # longest wait for a phase to begin, and for a run to end
CLEANUP_S = 10.0  # longest wait for the children of a killed run to end


@dataclass(slots=True)
class Kill:
    """One kill: its plan, the state of the run, and the outcome."""

    number: int
    victim: str
    phase: str  # as planned
    delay_s: float  # from the start of the phase
    after: int = 0  # repeats that finish first
    struck: str = ""  # the actual phase of the kill
    exit_code: int | None = None
    reason: str = ""
    status: str = ""  # in the manifest, after the cleanup; empty without a manifest
    repeats_before: int = 0
    repeats_after: int = 0
    ended_s: float = 0.0  # from the kill to the end of every process
    segments_until_next_start: int = 0
    lost: int = 0
    leaked: int = 0
    wrong: str = ""


def strike(kill: Kill, folder: Path) -> Kill:
    """Start a run in `folder`, kill its victim, and return the kill with everything that was lost, leaked or wrong."""
    run = Run(folder, JOB)
    try:
        waits_for = ("consumer", "producer").index(kill.victim) + 1 if kill.victim in ("consumer", "producer") else 0
        # Watching uses a core: a pause between two reads disturbs the run less.
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
        lines = run.process.communicate(timeout=PATIENCE_S)[1].splitlines()
        kill.reason = "\n".join(line for line in lines if line.startswith("error: "))  # without Python's warnings
        kill.exit_code = run.process.returncode
        if not eventually(lambda: not run.alive(), CLEANUP_S):
            kill.leaked += len(run.alive())
        kill.ended_s = time.monotonic() - began_s
        _count_faults(kill, run)
    finally:
        run.end()
    return kill


def _is_time(run: Run, kill: Kill) -> bool:
    return run.phase() == kill.phase and run.repeats() >= kill.after


def _count_faults(kill: Kill, run: Run) -> None:
    kill.segments_until_next_start = len(run.segments())
    tidy(run.folder.parent / "next")
    files = [path for path in run.folder.glob("*") if path.name.startswith(".")] if run.folder.exists() else []
    kill.leaked += len(run.segments()) + len(files)
    manifest = run.manifest()
    kill.status, kill.repeats_after = manifest.get("status", ""), int(manifest.get("repeats_done", 0))
    kill.lost = max(0, kill.repeats_before - min(kill.repeats_after, _readable_repeats(run.folder)))
    kill.wrong = _wrong(kill)


def _readable_repeats(folder: Path) -> int:
    """Return the number of repeats in the summary; -1 if a table of the folder cannot be read."""
    try:
        rows = {path.name: pq.read_table(path).num_rows for path in folder.glob("*.parquet")}
    except (OSError, pa.ArrowException):
        return -1
    return int(rows.get("summary.parquet", 0))


def _wrong(kill: Kill) -> str:
    """Return the unexpected exit code, status and reason; empty if they are as expected."""
    if kill.struck == "ended":
        is_expected = kill.exit_code == 0
    elif kill.victim in ("parent", "group"):
        is_expected = kill.exit_code == -signal.SIGKILL and kill.status in ("killed", "")
    elif kill.exit_code == 0:  # a child that dies before its job is replaced
        is_expected = kill.struck in ("starting", "preparing") and kill.status == "ok" and not kill.reason
    else:
        reason = f"error: {kill.victim} was killed by signal 9"
        is_expected = kill.exit_code == 1 and kill.status == "failed" and kill.reason == reason
    return "" if is_expected else f"ended with {kill.exit_code}, status {kill.status or 'none'}: {kill.reason[-200:]}"


def campaign(kills: int, seed: int, workers: int, folder: Path) -> Iterator[Kill]:
    """Yield every kill when it is done. Runs work below `folder`. A ring of this process stays in use throughout."""
    chance = random.Random(seed)
    # Any len(VICTIMS) kills in a row have each victim once, and each phase once.
    phases = tuple(PHASES) * 2
    pairs = [pair for first in range(len(PHASES)) for pair in zip(VICTIMS, phases[first:], strict=False)]
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


def summary(kills: Sequence[Kill]) -> list[dict[str, str | int | float]]:
    """Return the counts of each victim and phase, then those of all kills."""
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


def _parser() -> CommandParser:
    parser = CommandParser("kill_campaign", __doc__)
    parser.add_argument("--kills", type=whole_number(1), default=1000, metavar="N", help="how many (default 1000)")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of the random points (default 0)")
    parser.add_argument("--workers", type=whole_number(1), default=2, metavar="N", help="runs at a time (default 2)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: outputs/reliability/<time>")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign, save and print its counts, and return the exit code."""
    options = _parser().parsed(argv, needs_words=False)
    began = datetime.now(UTC)
    out: Path = options.out or Path("outputs/reliability") / began.strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    done: list[Kill] = []
    screen = console(stderr=True)
    folder = tempfile.TemporaryDirectory(prefix="launchopt-kills-")
    with folder, screen.status("") as status, contextlib.suppress(KeyboardInterrupt):  # keeps the finished kills
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
    about: dict[str, object] = {"started_utc": began.isoformat(timespec="seconds"), "seed": options.seed}
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
