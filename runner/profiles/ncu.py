"""Prints the bottleneck of each kernel that Nsight Compute replayed.

    launchopt ncu profile.csv                             a line per kernel
    launchopt ncu profile.csv --output kernels.parquet    the same rows as a Parquet file, with whole names

Reads a CSV of ncu's raw page, which `scripts/ncu_profile.sh` makes. `markdown` makes one table of several such files.
The folder of each names the profiled run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from launchopt.analysis.profiles.ncu import Kernel, read_kernels, short_name
from launchopt.analysis.tables.markdown import NUMBER, TEXT, plain
from launchopt.errors import DataError
from launchopt.files import open_regular
from runner.ending import end
from runner.output_names import file_named
from runner.profiles.output import cell, print_notes, print_table, write_parquet
from runner.reading import CommandParser, exit_code

_LINE_BYTES_MAX, _BLANK_LINES_MAX = 1 << 20, 100_000
_HEADINGS = {
    "name": "kernel",
    "duration_us": "duration\nus",
    "dram_read_mb": "DRAM read\nMB",
    "dram_gb_per_s": "DRAM\nGB/s",
    "dram_percent": "DRAM\n% of peak",
    "memory_percent": "memory\n% of peak",
    "sm_percent": "SM\n% of peak",
    "l2_hit_percent": "L2 hits\n%",
    "occupancy_percent": "occupancy\n%",
    "registers": "registers\na thread",
    "waves": "waves",
    "grid": "grid",
    "block": "block",
    "limit": "nearest\nlimit",
}
_NOTE = (
    "ncu runs each kernel alone, several times, and flushes the caches before each pass. So these durations are no "
    "headline times, and nothing overlaps. latency: the kernel stays below 60% of every peak."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = CommandParser("ncu", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="made with `ncu --import REPORT --csv --page raw`")
    parser.add_argument(
        "--output", type=file_named(".parquet"), metavar="FILE.parquet", help="also write the rows here, names in full"
    )
    options = parser.parsed(argv)
    return exit_code(lambda: _print(options.file, options.output))


def _print(file: Path, output: Path | None) -> int:
    kernels = read(file)
    if output is not None:
        write_parquet(Kernel, [asdict(kernel) for kernel in kernels], output)
    if not kernels:
        print("no kernel was profiled")
        return 0
    print_table(list(_HEADINGS.values()), map(_cells, kernels))
    print_notes([_NOTE])
    return 0


def read(file: Path) -> list[Kernel]:
    """Return the kernels of a file; DataError if it cannot be read."""
    try:
        with open_regular(file) as opened:
            return read_kernels(_lines(opened, file), str(file))
    except OSError as error:
        raise DataError(file, None, f"cannot be read ({error.strerror or error})") from None


def _lines(opened: BinaryIO, file: Path) -> Iterator[str]:
    """Yield the lines of an open file; DataError for a line, or a number of blank lines, that no profile has."""
    number = blank = 0
    while raw := opened.readline(_LINE_BYTES_MAX + 1):
        number += 1
        blank = 0 if raw.strip() else blank + 1
        if len(raw) > _LINE_BYTES_MAX:
            raise DataError(file, number, f"the line is longer than {_LINE_BYTES_MAX:,} bytes")
        if blank > _BLANK_LINES_MAX:
            raise DataError(file, number, f"over {_BLANK_LINES_MAX:,} blank lines in a row")
        yield raw.decode(errors="replace")


def profiles(folder: Path) -> list[Path]:
    """Return the files that `--output` wrote below a folder."""
    return sorted(folder.glob("*/profile.parquet"))


def markdown(folder: Path) -> str:
    """Return the profiles below a folder as one table, a line for each kernel; DataError if a file cannot be read."""
    from launchopt.reading.parquet import read_all

    headings = [heading.replace("\n", " ") for heading in _HEADINGS.values()]
    lines: list[list[str]] = []
    for path in profiles(folder):
        try:
            kernels = [Kernel(**row) for row in read_all(path).to_pylist()]
        except TypeError as error:
            raise DataError(path, None, f"no profile of kernels ({error})") from None
        lines += [[path.parent.name.replace("_", " "), *_cells(kernel)] for kernel in kernels]
    rules = {"profiled": TEXT} | dict.fromkeys(headings, NUMBER) | {headings[0]: TEXT}
    return f"{plain(rules, lines)}\n{_NOTE}"


def _cells(kernel: Kernel) -> list[str]:
    return [short_name(kernel.name), *(_cell(field, getattr(kernel, field)) for field in [*_HEADINGS][1:])]


def _cell(field: str, value: str | int | float | None) -> str:
    if isinstance(value, float):
        return f"{value:,.{2 if field == 'waves' else 1}f}"
    return cell(value)


if __name__ == "__main__":
    end(main)
