"""`python -m runner.nsys FILE.sqlite`: what each NVTX range of a profile launched, as a table.

Enters: the path of an nsys SQLite export. Leaves: a table on stdout; a Parquet file where --output names one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from launchopt.analysis.nsys import Profile, RangeRow, read_profile
from launchopt.errors import DataError, LaunchoptError
from launchopt.timing.nvtx_ranges import DOMAIN

_HEADINGS = {
    "name": "range",
    "ranges": "ranges",
    "launch_calls": "launch\ncalls",
    "kernels": "kernels",
    "host_ms": "host ms",
    "host_us_per_range_p50": "host\np50 us",
    "call_ms": "calls ms",
    "call_us_p50": "call\np50 us",
    "gpu_busy_ms": "busy ms",
    "kernels_per_range": "kernels\na range",
}
_WIDTH_CHARACTERS = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the process exit code."""
    parser = argparse.ArgumentParser(prog="python -m runner.nsys", description="What each NVTX range launched.")
    parser.add_argument("file", type=Path, help="a profile exported with `nsys export --type sqlite`")
    parser.add_argument("--output", type=Path, metavar="FILE.parquet", help="also write the rows here")
    arguments = parser.parse_args(argv)
    try:
        profile = read_profile(arguments.file)
        if arguments.output is not None:
            _write(profile, arguments.output)
    except LaunchoptError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _print(profile)
    return 0


def _print(profile: Profile) -> None:
    piped = not sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, markup=False)
    # Rich drops columns that do not fit, a line the terminal wraps loses nothing; a pipe has no width at all.
    console.width = max(console.width, _WIDTH_CHARACTERS)
    table = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
    for field, heading in _HEADINGS.items():
        heading = heading.replace("\n", " ") if piped else heading
        table.add_column(heading, justify="left" if field == "name" else "right", no_wrap=True)
    for row in profile.rows:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(profile.total))
    console.print(table)
    for note in _notes(profile):
        console.print(note, soft_wrap=True)


def _cells(row: RangeRow) -> list[str]:
    return [_cell(getattr(row, field)) for field in _HEADINGS]


def _cell(value: str | int | float | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def _notes(profile: Profile) -> list[str]:
    """What the table cannot say itself, one sentence each."""
    notes = []
    if not profile.total.ranges:
        notes.append(
            f"no range of the {DOMAIN} domain in this profile: "
            "nvtx records nothing under an old nsys unless made to, see README"
        )
    if not profile.total.kernels:
        if profile.total.launch_calls or profile.untraced_graphs:
            notes.append("no kernels in this profile, though there are launch calls")
        else:
            notes.append("no GPU activity in this profile" + (": NVTX ranges only" if profile.total.ranges else ""))
    if profile.untraced_graphs:
        notes.append(
            f"{profile.untraced_graphs:,} CUDA graphs were recorded as a whole: "
            "profile with --cuda-graph-trace=node to count their kernels"
        )
    if profile.unfinished_ranges:
        notes.append(f"{profile.unfinished_ranges:,} ranges never ended: counted, but not in the host times")
    return notes


def _write(profile: Profile, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"str": pa.string(), "int": pa.int64()}
    schema = pa.schema([(field.name, kinds.get(str(field.type), pa.float64())) for field in fields(RangeRow)])
    table = pa.Table.from_pylist([asdict(row) for row in profile.rows], schema=schema)
    try:
        pq.write_table(table, path)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None


if __name__ == "__main__":
    sys.exit(main())
