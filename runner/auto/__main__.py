"""The table of mode=auto from results: how long each mode took for each work, by device.

    launchopt tune outputs/run/20261127-120000-000000    add these results to outputs/tuning/<device>.json, or to the
                                                         table that $LAUNCHOPT_TUNING names
    launchopt tune outputs --check                       what auto would choose for works that it has not seen

In: folders with results of runs in which modes took turns, such as mode=graph against=all. Runs with arrivals or a
tracer are left out. Out: one table per device, which mode=auto reads. `launchopt advise` adds its own results.

--check leaves out each work in turn, chooses a mode for it by the others, and says how far behind the best mode it is:
the upper limit of the 95% interval, or below five repeats the largest ratio of a repeat. It writes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from launchopt.errors import DataError
from runner.ending import end
from runner.reading import CommandParser, exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: _check(options) if options.check else _tune(options))


def _tune(options: argparse.Namespace) -> int:
    from launchopt.analysis.stream_rows import counted
    from runner.auto.table import add, default_path, entries_in, named_path

    entries = entries_in(options.folders)
    if not entries:
        raise DataError(options.folders[0], None, "no closed loop in which two or more modes took turns")
    for device in sorted({entry.work.device for entry in entries}):
        path = options.save or named_path() or default_path(device)
        own = [entry for entry in entries if entry.work.device == device]
        count = add(path, own)
        print(f"{device}: {counted(len(own), 'measured work')} added; {path} has {count}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from launchopt.analysis.choice import MARGIN, entries_of, judged_unseen
    from launchopt.analysis.tables.markdown import NUMBER, TEXT, pipe_table
    from launchopt.recording import results

    rows = results.read_summaries(options.folders)
    found = judged_unseen(entries_of(rows, results.read_manifests(options.folders)), rows)
    headings = {"run": TEXT, "work": TEXT, "modes": NUMBER, "auto": TEXT, "best": TEXT, "times as long": NUMBER}
    cells = [
        (
            each.entry.run,
            str(each.entry.work),
            f"{len(each.entry.wall_ms)}",
            each.choice.mode,
            each.best,
            f"{each.behind:.3f}",
        )
        for each in sorted(found, key=lambda each: -each.behind)
    ]
    print(pipe_table(headings, cells))
    close = sum(each.is_close for each in found)
    print(f"\n{close} of {len(found)} choices take at most {MARGIN:g} times as long as the best mode.")
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("tune", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE.json",
        help="the table; default: $LAUNCHOPT_TUNING, or else outputs/tuning/<device>.json",
    )
    parser.add_argument(
        "--check", action="store_true", help="judge choices for works that were left out; writes nothing"
    )
    return parser


if __name__ == "__main__":
    end(main)
