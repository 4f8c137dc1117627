"""Sends signals to runs and sweeps at random points and checks that nothing is lost, leaked, hung or wrong.

    python scripts/kill_campaign.py                       1,000 kills, two runs at a time
    python scripts/kill_campaign.py --kills 60 --seed 7   fewer, others
    python scripts/kill_campaign.py --out FOLDER          continue the campaign in FOLDER
    timeout -s INT 560 python scripts/kill_campaign.py --out FOLDER    the same, and stop after 560 s with code 124

Each kill is a signal: SIGKILL, SIGTERM, SIGHUP, SIGINT, or SIGSTOP and then SIGCONT or SIGKILL. Its victim is the
consumer, the producer, the parent, Python's tracker of shared memory, or the whole process group. It comes at a random
time of a phase (`scripts/kills.py`), from the first millisecond on. A part of the victims are sweeps.

Then the script cleans up as every start of a run does (`runner.run.leftovers.tidy`), while another run's segment is in
use. It counts five faults. *lost*: repeats that were in the folder before the kill and are missing or unreadable now.
*leaked*: processes, segments of shared memory, locks and temporary files. If the run ended in order, those left before
the cleanup count; if SIGKILL ended it, those left after the cleanup. *hung*: runs that did not end. *tracebacks*: those
on standard error or in the folder. *wrong*: an unexpected exit code, reason or status, or the removal of the other
run's segment.

It writes to outputs/reliability/<time>: kills.jsonl, a line as each kill ends; then campaign.parquet (the same rows)
and manifest.json (the counts). Ctrl-C keeps the finished kills, and the same command with --out continues, by the same
revision. The files are then those of one campaign. A kill takes a few seconds of processor time. Exit code: 1 after a
fault, 2 if an option is wrong or FOLDER has another campaign, 130 after Ctrl-C, else 0. Needs Linux and the package,
and no GPU.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launchopt.analysis.tables.reliability import VICTIMS
from launchopt.devices.cpu.info import cpu_info
from launchopt.errors import DataError
from launchopt.files import write_atomically
from launchopt.queue.ring import Ring
from launchopt.recording.environment import environment
from launchopt.recording.manifest import Manifest, read_manifest, write_manifest
from runner.ending import end
from runner.reading import CommandParser, whole_number
from runner.run.leftovers import FOLDER, held
from runner.screen.pager import console
from scripts.kills import JOB, PHASES, SWEEP, Kill, plan, strike

LINES = "kills.jsonl"
FAULTS = ("lost", "leaked", "hung", "tracebacks", "wrong")


def campaign(kills: Sequence[Kill], workers: int, folder: Path) -> Iterator[Kill]:
    """Yield every kill when it is done. Runs work below `folder`. A ring of this process stays in use throughout."""

    def one(kill: Kill) -> Kill:
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
            strike(kill, Path(own))
        if not neighbour.exists():
            kill.wrong += " a neighbour's segment was removed"
        return kill

    with (
        _signals_for_children(),
        Ring.create(64) as ring,
        held(neighbour := FOLDER / ring.name),
        ThreadPoolExecutor(workers) as pool,
    ):
        try:
            yield from (done.result() for done in as_completed([pool.submit(one, kill) for kill in kills]))
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _signals_for_children() -> Iterator[None]:
    """Handle signals that this process ignores: its children would ignore them, too."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is signal.SIG_IGN:
                before[each] = signal.signal(each, lambda number, frame: None)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def summary(kills: Sequence[Kill]) -> list[dict[str, str | int | float]]:
    """Return the counts of each victim and phase, then those of all kills."""
    counts = []
    for victim, phase in [*((victim, phase) for victim in VICTIMS for phase in (*PHASES, "ended")), ("all", "all")]:
        mine = [kill for kill in kills if victim == "all" or (kill.victim, kill.struck) == (victim, phase)]
        if not mine and victim != "all":
            continue
        counts.append(
            {
                "victim": victim,
                "phase": phase,
                "tried": len(mine),
                "lost": sum(kill.lost for kill in mine),
                "leaked": sum(kill.leaked for kill in mine),
                "hung": sum(kill.hung for kill in mine),
                "tracebacks": sum(kill.tracebacks for kill in mine),
                "wrong": sum(bool(kill.wrong) for kill in mine),
                "segments_until_next_start": sum(kill.segments_until_next_start for kill in mine),
                "longest_end_s": round(max((kill.ended_s for kill in mine), default=0.0), 2),
            }
        )
    return counts


def finished(path: Path, planned: Sequence[Kill]) -> list[Kill]:
    """Return the kills of an earlier start in `path`; ValueError if they are not of this plan."""
    if not path.exists():
        return []
    done = [Kill(**json.loads(line)) for line in path.read_text().splitlines() if line.endswith("}")]
    parts = ("number", "job", "signal", "victim", "phase", "delay_s")
    for kill in done:
        same = kill.number < len(planned) and all(
            getattr(kill, each) == getattr(planned[kill.number], each) for each in parts
        )
        if not same:
            raise ValueError(f"{path}: of another campaign: --kills or --seed differ; choose another --out")
    return done


def earlier(out: Path, here: Mapping[str, object]) -> Manifest:
    """Return the manifest of the campaign's earlier starts, empty without one; ValueError if another revision made it.

    here: the environment of this start.
    """
    if not (out / "manifest.json").exists():
        return {}
    about = read_manifest(out)
    revision = about.get("environment", {}).get("git_revision")
    if revision != here.get("git_revision"):
        raise ValueError(f"{out}: of revision {revision}, not of {here.get('git_revision')}; choose another --out")
    return about


def save(out: Path, done: Sequence[Kill], about: dict[str, object]) -> list[dict[str, str | int | float]]:
    """Write campaign.parquet and manifest.json; return the counts."""
    counts = summary(done)
    table = pa.Table.from_pylist([asdict(kill) for kill in sorted(done, key=lambda kill: kill.number)])

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # pyarrow itself opens no path that is not UTF-8
            pq.write_table(table, file, compression="zstd")

    write_atomically(out / "campaign.parquet", write)
    write_manifest(out, about | {"job": JOB, "sweep": SWEEP, "counts": counts, "processor": cpu_info().name})
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
    began, began_s, here = datetime.now(UTC), time.monotonic(), environment()
    out: Path = options.out or Path("outputs/reliability") / began.strftime("%Y%m%d-%H%M%S")
    planned = plan(options.kills, options.seed)
    try:
        done = finished(out / LINES, planned)
        before = earlier(out, here) if done else {}
    except (ValueError, TypeError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    had = {kill.number for kill in done}
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):  # keeps the finished kills
        _continue([kill for kill in planned if kill.number not in had], options.workers, out, done)
    if not done:
        return 130
    seconds = round(time.monotonic() - began_s, 1)
    about: dict[str, object] = {
        "started_utc": before.get("started_utc", began.isoformat(timespec="seconds")),
        "seed": options.seed,
        "workers": options.workers,
        "seconds": round(seconds + before.get("seconds", 0.0), 1),
        "environment": here,
    }
    counts = save(out, done, about)
    shown = Table(*(name.replace("_", " ") for name in counts[0]), box=None)
    for row in counts:
        shown.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console().print(shown)
    console().print(
        f"{len(done)} of {options.kills} kills, {len(done) - len(had)} now in {seconds:.0f} s; {out}", markup=False
    )
    if any(counts[-1][what] for what in FAULTS):
        return 1
    return 0 if len(done) == options.kills else 130


def _continue(kills: Sequence[Kill], workers: int, out: Path, done: list[Kill]) -> None:
    """Strike, and append each kill to `done` and to the lines in `out` when it ends."""
    whole = "".join(f"{json.dumps(asdict(kill))}\n" for kill in done)  # the last line may be half of one
    write_atomically(out / LINES, lambda temporary: temporary.write_text(whole))
    screen, most = console(stderr=True), len(done) + len(kills)
    with (
        (out / LINES).open("a", buffering=1) as lines,
        tempfile.TemporaryDirectory(prefix="launchopt-kills-") as folder,
        screen.status("") as status,
    ):
        for kill in campaign(kills, workers, Path(folder)):
            done.append(kill)
            lines.write(json.dumps(asdict(kill)) + "\n")
            status.update(f"{len(done)} of {most} kills")
            if kill.is_bad:
                screen.print(f"{kill}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    end(main)
