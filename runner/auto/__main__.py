"""The table of mode=auto from results: how long each mode took for each work, by device.

    launchopt tune outputs/run/20261127-120000-000000    add these results to outputs/tuning/<device>.json, or to the
                                                         table that $LAUNCHOPT_TUNING names
    launchopt tune outputs --check                       what auto would choose for works that it has not seen

In: folders with results of runs in which modes took turns, such as mode=graph against=all. Runs with arrivals or a
tracer are left out. Out: one table per device, which mode=auto reads. `launchopt advise` adds its own results.

--check leaves out each work in turn, chooses a mode for it by the others, and says how far behind the best mode it is:
the 95% interval, or below five repeats the smallest and the largest ratio of a repeat. It counts choices within 5%,
those that the interval does not decide, and those behind; also with all works of a workload left out. With --page the
counts replace the text between `<!-- choices -->` and `<!-- /choices -->`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import DataError
from runner.ending import end
from runner.output_names import ENTRIES, file_named
from runner.reading import CommandParser, exit_code, sync_block

if TYPE_CHECKING:
    from launchopt.analysis.choice import Entry, Work
    from launchopt.recording.results import Row

BLOCK = "choices"  # of a page


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parsed(argv)
    if options.page and not options.check:
        parser.error("--page goes with --check: type --check, or leave --page out")
    if options.save and options.check:
        parser.error("--check writes no table: leave --save out, or --check")
    return exit_code(lambda: _check(options) if options.check else _tune(options))


def _tune(options: argparse.Namespace) -> int:
    from launchopt.analysis.stream_rows import counted
    from runner.auto.table import add, default_path, entries_in, named_path

    entries = entries_in(options.folders)
    _require(entries, options)
    for device in sorted({entry.work.device for entry in entries}):
        path = options.save or named_path() or default_path(device)
        own = [entry for entry in entries if entry.work.device == device]
        count = add(path, own)
        print(f"{device}: {counted(len(own), 'measured work')} added; {path} has {count}")
    return 0


def _require(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    """Raise DataError for folders without a measured work."""
    if not entries:
        raise DataError(options.folders[0], None, "no closed loop in which two or more modes took turns")


def _check(options: argparse.Namespace) -> int:
    from launchopt.analysis.choice import MARGIN, entries_of, judged_unseen
    from launchopt.analysis.tables.markdown import NUMBER, TEXT, pipe_table
    from launchopt.recording import results

    rows = results.read_summaries(options.folders)
    entries = entries_of(rows, results.read_manifests(options.folders))
    _require(entries, options)
    found = judged_unseen(entries, rows)
    headings = {"run": TEXT, "work": TEXT, "modes": NUMBER, "auto": TEXT, "best": TEXT, "times as long": NUMBER}
    headings |= {f"within {MARGIN - 1:.0%}": TEXT}
    cells = [
        (
            each.entry.run,
            str(each.entry.work),
            f"{len(each.entry.wall_ms)}",
            each.choice.mode,
            each.best,
            f"{each.low:.3f} to {each.high:.3f}",
            each.standing.value,
        )
        for each in sorted(found, key=lambda each: -each.low)
    ]
    print(pipe_table(headings, cells))
    text = counts_text(entries, rows)
    print(f"\n{text}", end="")
    if options.page:
        sync_block(options.page, BLOCK, text, check=False)
    return 0


def counts_text(entries: Sequence[Entry], rows: Sequence[Row]) -> str:
    """Return a table in Markdown: how many choices stand where, by what is left out."""
    from launchopt.analysis.choice import (
        MARGIN,
        Standing,
        counts_of,
        is_another_work,
        is_another_workload,
        judged_unseen,
    )
    from launchopt.analysis.tables.markdown import NUMBER, TEXT, pipe_table

    rules: dict[str, Callable[[Work, Work], bool]] = {
        "nothing": lambda one, other: True,
        "the work": is_another_work,
        "all works of its workload": is_another_workload,
    }
    within = f"within {MARGIN - 1:.0%}"
    headings = {"left out": TEXT, within: NUMBER, "undecided": NUMBER, "behind": NUMBER}
    counts = {name: counts_of(judged_unseen(entries, rows, rule)) for name, rule in rules.items()}
    cells = [(name, *(f"{each[standing]}" for standing in Standing)) for name, each in counts.items()]
    return f"{pipe_table(headings, cells)}\n"


def _parser() -> CommandParser:
    parser = CommandParser("tune", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument(
        "--save",
        type=file_named(".json", replaces=ENTRIES),
        metavar="FILE.json",
        help="the table; default: $LAUNCHOPT_TUNING, or else outputs/tuning/<device>.json",
    )
    parser.add_argument(
        "--check", action="store_true", help="judge choices for works that were left out; writes no table"
    )
    parser.add_argument("--page", type=file_named(".md"), metavar="PAGE.md", help="with --check: page for the counts")
    return parser


if __name__ == "__main__":
    end(main)
