"""Prints the launches of two modes for one job, side by side.

    launchopt nsys_compare batched=A.sqlite graph=B.sqlite                          a line per quantity
    launchopt nsys_compare batched=A.sqlite graph=B.sqlite --output both.parquet    the rows of both, too

Reads two nsys SQLite exports, each after the name of its mode; `scripts/nsys_compare.sh` makes them. The table covers
the NVTX ranges, which are the timed runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launchopt.analysis.profiles.nsys import Profile, RangeRow, read_profile
from runner.ending import end
from runner.output_names import file_named
from runner.profiles.nsys import notes
from runner.profiles.output import cell, print_notes, print_table, write_parquet
from runner.reading import CommandParser, exit_code

_LINES = {
    "ranges": "ranges (a launch of a batch each)",
    "launch_calls": "launch calls",
    "kernels": "kernels",
    "kernels_per_range": "kernels a range",
    "host_ms": "host ms in ranges",
    "call_ms": "ms in launch calls",
    "call_us_p50": "launch call p50 us",
    "launch_delay_us_p50": "launch delay p50 us",
    "gpu_busy_ms": "GPU busy ms",
    "kernel_ms": "sum of kernel times ms",
}
_TRACED = (
    "Times are traced: nsys, and Python between launches to mark the ranges, make them larger than in a plain run. "
    "For headline times run both modes without it: mode=A against=B."
)
_DELAY = (
    "Launch delay: from the return of a launch call to the start of its first kernel, waits for earlier work included."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = CommandParser("nsys_compare", __doc__)
    parser.add_argument("a", type=_named, metavar="MODE=A.sqlite", help="a mode and its profile")
    parser.add_argument("b", type=_named, metavar="MODE=B.sqlite", help="the other; B / A is its share of the first")
    parser.add_argument(
        "--output", type=file_named(".parquet"), metavar="FILE.parquet", help="also write the rows of both here"
    )
    options = parser.parsed(argv)
    return exit_code(lambda: _print((options.a, options.b), options.output))


def _print(sides: tuple[tuple[str, Path], tuple[str, Path]], output: Path | None) -> int:
    modes = [mode for mode, _ in sides]
    a, b = (read_profile(file, mode) for mode, file in sides)
    if output is not None:
        _write(modes, (a, b), output)
    print_table(["in ranges of the mode", f"A: {modes[0]}", f"B: {modes[1]}", "B / A"], lines(a.inside, b.inside))
    print_notes(f"{side}: {note}" for side, profile in (("A", a), ("B", b)) for note in notes(profile))
    print_notes(
        f"{side}: no range of mode={mode}: is that the mode of this profile?"
        for side, mode, profile in zip("AB", modes, (a, b), strict=True)
        if profile.total.ranges and not profile.inside.ranges
    )
    print_notes([*([_DELAY] if a.total.kernels and b.total.kernels else []), _TRACED])
    return 0


def lines(a: RangeRow, b: RangeRow) -> list[list[str]]:
    """Return a line for each quantity: its name, both values, and B / A."""
    return [
        [name, cell(getattr(a, field)), cell(getattr(b, field)), cell(_ratio(getattr(a, field), getattr(b, field)))]
        for field, name in _LINES.items()
    ]


def _ratio(a: float | None, b: float | None) -> float | None:
    """Return B / A; None if one is missing or A is 0."""
    return None if b is None or not a else b / a


def _named(text: str) -> tuple[str, Path]:
    mode, equals, file = text.partition("=")
    if not (mode and equals and file):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a mode and its profile, as MODE=FILE")
    return mode, Path(file)


def _write(modes: Sequence[str], profiles: Sequence[Profile], path: Path) -> None:
    """Write the rows of both. The column `side` distinguishes two profiles of one mode."""
    rows = [
        {"side": side, "mode": mode, **asdict(row)}
        for side, mode, profile in zip("AB", modes, profiles, strict=True)
        for row in profile.rows
    ]
    write_parquet(RangeRow, rows, path, first=("side", "mode"))


if __name__ == "__main__":
    end(main)
