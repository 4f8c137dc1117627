"""Checks that no two jobs of a sweep held one GPU, or core, at the same time, and saves what each held.

    python scripts/device_use.py outputs/sweep/20261128-101500

In: the manifests of the jobs. Out: device_use.json in the folder of the sweep, with device, begin and end for each job,
and a line. Exit code 2: two jobs held one device at the same time, or a job had none of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.analysis.device_use import summary, uses_of
from launchopt.files import save_json
from runner.reading import CommandParser, exit_code

FILE = "device_use.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)

    def work() -> int:
        uses = uses_of(options.sweep)
        line = summary(options.sweep, uses)
        save_json(options.sweep / FILE, {"summary": line, "jobs": [use._asdict() for use in uses]})
        print(line)
        return 0

    return exit_code(work)


def _parser() -> CommandParser:
    parser = CommandParser("device_use", __doc__)
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="folder of a sweep")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
