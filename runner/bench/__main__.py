"""Benchmarks of the command path, compared with the cost of a good C++ program.

    launchopt bench                         every part that this machine can measure
    launchopt bench ring batcher            some
    launchopt bench modes --processes 3     each figure in three processes, one after the other
    launchopt bench --compare OLD NEW       two results; from 3 processes a side on with the interval of the factor

Prints a table and writes bench.parquet and manifest.json to outputs/bench/<time>. The part megakernel also prints the
time of each op of a decode step and writes it to megakernel.parquet. The cpu device skips parts that need a GPU
(resident, stream, megakernel, attention, copies, tracing). The part collectives needs two GPUs, or uses two processes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from launchopt.devices import find_device
from launchopt.errors import ConfigError, explained, nearest
from launchopt.messages import say
from launchopt.reading.ownership import MANIFEST, SWEEP, foreign
from launchopt.recording import results
from launchopt.recording.dataset import TABLES
from launchopt.recording.environment import environment
from runner.bench import (
    account,
    attention,
    batcher,
    collectives,
    copies,
    dispatch,
    megakernel,
    modes,
    pipeline,
    posting,
    recorder,
    resident,
    ring,
    tracing,
)
from runner.bench.comparison import compare
from runner.bench.figures import BENCH, FILE, HEADINGS, Figure, Suite, cells, legend, quantity
from runner.bench.processes import measured
from runner.ending import end
from runner.ending.signals import signals
from runner.reading import CommandParser, exit_code, whole_number
from runner.screen.fitted import FittedTable, Heading
from runner.screen.pager import console, drawn

SUITES = (
    *("ring", "batcher", "recorder", "posting", "dispatch"),
    *("resident", "stream", "megakernel", "attention", "copies", "collectives", "tracing", "modes", "pipeline"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run or compare; return the exit code, which is 0 even if a goal is missed."""
    parser = _parser()
    options = parser.parsed(argv, needs_words=False)
    names = ("suites", "repeats", "processes", "device", "output")
    given = [name for name in names if (getattr(options, name) or None) != parser.get_default(name)]
    return exit_code(lambda: _run(options, given))


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Run or compare. given: the options of a measurement that are not at their default."""
    if options.compare:
        if given:
            other = "PART" if given[0] == "suites" else f"--{given[0]}"
            raise ConfigError("--compare", " ".join(map(str, options.compare)), f"measures nothing: leave out {other}")
        compare(*options.compare)
    else:
        _bench(options)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("bench", __doc__)
    parser.add_argument("suites", nargs="*", metavar="PART", help=f"of {', '.join(SUITES)}; none: all")
    parser.add_argument(
        "--repeats", type=whole_number(1), metavar="N", default=5, help="samples of each figure a process (default 5)"
    )
    parser.add_argument(
        "--processes",
        type=whole_number(1),
        metavar="N",
        default=1,
        help="processes that measure each figure (default 1)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU if usable")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="folders of two results")
    return parser


def _bench(arguments: argparse.Namespace) -> None:
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        why = explained("no such part", ", ".join(SUITES), nearest(unknown[0], SUITES))
        raise ConfigError("PART", unknown[0], why)
    suites = list(dict.fromkeys(arguments.suites or SUITES))  # one that is named twice is measured once
    info, why = find_device(arguments.device, 0)
    folder = arguments.output or Path("outputs/bench") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    _require_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    about: dict[str, object] = {"started_utc": started, "device": info.as_dict(), "why": why}
    about |= {"repeats": arguments.repeats, "processes": arguments.processes}
    results.write_manifest(folder, about | {"status": "running", "environment": environment()})
    for name in (FILE, account.FILE):  # of an earlier result: this one may have no such file
        (folder / name).unlink(missing_ok=True)
    status = "failed"
    try:
        rows = _measure(suites, arguments, info.kind, folder, about)
        status = "ok"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        with signals.held():
            results.write_manifest(folder, about | {"status": status, "environment": environment()})
    if lacking := [name for name in suites if all(row["suite"] != name for row in rows)]:
        print(f"the {info.kind} device measures nothing of {', '.join(lacking)}", file=sys.stderr)
    console().print(_table(rows, info.name))
    if (folder / account.FILE).is_file():
        _print_account(folder)
    say(folder)


def _require_free(folder: Path) -> None:
    """Raise ConfigError for a folder with results of a run or a sweep, or with another program's files of our names."""
    results_of_runs = (each for each in (SWEEP, *(f"{name}.parquet" for name in TABLES)) if (folder / each).exists())
    if kept := next(results_of_runs, None) or foreign(folder, (MANIFEST, FILE, account.FILE)):
        raise ConfigError("--output", folder, f"holds {Path(kept).name}, which no benchmark wrote: name another folder")


def _measure(
    suites: Sequence[str], arguments: argparse.Namespace, device: str, folder: Path, about: dict[str, object]
) -> list[results.Row]:
    """Return the row of each figure. Each is saved as soon as it is measured."""
    repeats, processes = arguments.repeats, arguments.processes
    rows: list[results.Row] = []
    if processes > 1:
        for rows in measured(suites, device, repeats, processes, folder):
            if rows:
                results.write_rows(folder / FILE, BENCH, rows, about)
        return rows
    for name in suites:
        for figure in _suite(name, device, folder)(repeats):
            rows.append(figure.row())
            print(f"{name}: {figure.case}: {quantity(rows[-1]['median'])} {figure.unit}", file=sys.stderr)
            results.write_rows(folder / FILE, BENCH, rows, about)
    return rows


def _suite(name: str, device: str, folder: Path) -> Suite:
    plain: dict[str, Suite] = {
        "ring": ring.suite,
        "batcher": batcher.suite,
        "recorder": recorder.suite,
        "posting": posting.suite,
    }
    if name in plain:
        return plain[name]
    with_device: dict[str, Callable[[int, str], Iterator[Figure]]] = {
        "dispatch": dispatch.suite,
        "resident": resident.suite,
        "stream": resident.streams,
        "megakernel": partial(megakernel.suite, folder=folder),
        "attention": attention.suite,
        "copies": copies.suite,
        "collectives": collectives.suite,
        "tracing": tracing.suite,
        "modes": modes.suite,
        "pipeline": pipeline.suite,
    }
    return partial(_on_device, with_device[name], device)


def _on_device(suite: Callable[[int, str], Iterator[Figure]], device: str, repeats: int) -> Iterator[Figure]:
    yield from suite(repeats, device)


def _table(rows: Sequence[results.Row], machine: str) -> FittedTable:
    headings = [Heading(heading, not side.endswith(":")) for heading, side in HEADINGS.items()]
    return FittedTable(headings, list(map(cells, rows)), "\n".join([machine, *legend(rows)]))


def _print_account(folder: Path) -> None:
    """Print the time of each op of a decode step, case by case."""
    out, cases = console(), account.by_case(account.read(folder))
    out.print(drawn(account.CASES, account.case_cells(cases), "decode steps in one launch"))
    for own in cases:
        out.print(drawn(account.OPS, account.op_cells(own), account.title(own)))
        out.print(account.clock_line(own), soft_wrap=True, markup=False)


if __name__ == "__main__":
    end(main)
