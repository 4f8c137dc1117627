"""Prints the launches of each NVTX range of an nsys profile.

    launchopt nsys profile.sqlite                            a line per range
    launchopt nsys profile.sqlite --output ranges.parquet    the same rows as a Parquet file, too

Reads what `nsys export --type sqlite` makes of a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launchopt.analysis.profiles.nsys import Profile, RangeRow, read_profile
from launchopt.timing.nvtx_ranges import DOMAIN
from runner.ending import end
from runner.output_names import file_named
from runner.profiles.output import cell, print_notes, print_table, write_parquet
from runner.reading import CommandParser, exit_code

_HEADINGS = {
    "name": "range",
    "ranges": "ranges",
    "launch_calls": "launch\ncalls",
    "kernels": "kernels",
    "host_ms": "host ms",
    "host_us_per_range_p50": "host\np50 us",
    "call_ms": "calls ms",
    "call_us_p50": "call\np50 us",
    "launch_delay_us_p50": "delay\np50 us",
    "gpu_busy_ms": "busy ms",
    "kernels_per_range": "kernels\na range",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = CommandParser("nsys", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="a profile exported with `nsys export --type sqlite`")
    parser.add_argument(
        "--output", type=file_named(".parquet"), metavar="FILE.parquet", help="also write the rows here"
    )
    options = parser.parsed(argv)
    return exit_code(lambda: _print(options.file, options.output))


def _print(file: Path, output: Path | None) -> int:
    profile = read_profile(file)
    if output is not None:
        write_parquet(RangeRow, [asdict(row) for row in profile.rows], output)
    print_table(list(_HEADINGS.values()), [_cells(row) for row in profile.rows], _cells(profile.total))
    print_notes(notes(profile))
    return 0


def _cells(row: RangeRow) -> list[str]:
    return [cell(getattr(row, field)) for field in _HEADINGS]


def notes(profile: Profile) -> list[str]:
    """Return sentences on what is missing in the profile."""
    found = []
    if not profile.total.ranges:
        found.append(
            f"no range of the {DOMAIN} domain in this profile: "
            "nvtx records nothing under an old nsys unless made to, see docs/profilers.md"
        )
    if not profile.total.kernels:
        if profile.total.launch_calls or profile.untraced_graphs:
            found.append("no kernels in this profile, though there are launch calls")
        else:
            found.append("no GPU activity in this profile" + (": NVTX ranges only" if profile.total.ranges else ""))
    if profile.untraced_graphs:
        found.append(
            f"{profile.untraced_graphs:,} CUDA graphs were recorded as a whole: "
            "profile with --cuda-graph-trace=node to count their kernels"
        )
    if profile.unfinished_ranges:
        found.append(f"{profile.unfinished_ranges:,} ranges never ended: counted, but not in the host times")
    return found


if __name__ == "__main__":
    end(main)
