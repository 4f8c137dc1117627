"""Compares our kernel counts and times with those of nsys.

    scripts/nsys_profile.sh mode=batched workload.commands=65536            # NSYS_OUT=profile
    launchopt run mode=batched workload.commands=65536 timing=cupti hydra.run.dir=traced
    launchopt nsys_agree profile/profile.sqlite --run traced

Reads an nsys SQLite export twice: with `nsys stats` and with our own join. Also reads folders of timing=cupti runs of
the same job. Prints a table; --output writes the rows to a Parquet file. Exit code 1: they disagree.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launchopt.analysis.profiles.nsys import read_profile
from launchopt.analysis.profiles.nsys_agreement import Agreement, Sum, agreements, agreements_with_run, kernel_sum
from launchopt.errors import DataError, DeviceError
from runner.ending import end
from runner.output_names import file_named
from runner.profiles.output import cell, print_table, write_parquet
from runner.reading import CommandParser, exit_code

_REPORTS = ("cuda_gpu_kern_sum", "gpukernsum")  # names of the report since 2023 and before
_TIMEOUT_S = 600
_HEADINGS = ("quantity", "by", "theirs", "ours", "difference", "allowed", "agrees")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: _print(options.file, options.run, options.output))


def _parser() -> CommandParser:
    parser = CommandParser("nsys_agree", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="a profile exported with `nsys export --type sqlite`")
    parser.add_argument(
        "--run", type=Path, action="append", default=[], metavar="FOLDER", help="a timing=cupti run of the same job"
    )
    parser.add_argument(
        "--output", type=file_named(".parquet"), metavar="FILE.parquet", help="also write the rows here"
    )
    return parser


def _print(file: Path, runs: Sequence[Path], output: Path | None) -> int:
    found = compare(file, runs)
    if output is not None:
        write_parquet(Agreement, [asdict(one) for one in found], output)
    print_table(_HEADINGS, [_cells(one) for one in found])
    return 0 if all(one.agrees for one in found) else 1


def compare(file: Path, runs: Sequence[Path]) -> list[Agreement]:
    """Compare our counts and times with nsys's; DataError or DeviceError if something is missing."""
    found = agreements(read_profile(file), nsys_kernel_sum(file))
    if runs:
        from launchopt.recording.results import read_summaries

        rows = read_summaries(runs)
        for mode in dict.fromkeys(row["mode"] for row in rows):
            found += agreements_with_run(mode, read_profile(file, mode).inside, rows)
    return found


def nsys_kernel_sum(file: Path) -> Sum:
    """Return the count and time of the kernels in `file` by `nsys stats`."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise DeviceError("nsys not found: the comparison needs its own statistics; put it on the PATH")
    output = ""
    for report in _REPORTS:
        call = [nsys, "stats", "--report", report, "--format", "csv", str(file)]
        try:
            done = subprocess.run(
                call, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise DataError(file, None, f"nsys stats did not finish within {_TIMEOUT_S} s") from None
        output = done.stdout + done.stderr
        if done.returncode == 0 and "could not be found" not in output:
            return kernel_sum(done.stdout.splitlines(), f"nsys stats --report {report}")
    last_line = (output.strip().splitlines() or ["no output"])[-1]
    raise DataError(file, None, f"nsys stats failed: {last_line}")


def _cells(one: Agreement) -> list[str]:
    def value(number: float) -> str:
        return f"{number:,.0f}" if one.limit == 0 else cell(number)

    shares = [f"{one.difference:+.3%}", f"{one.limit:.0%}" if one.limit else "none"]
    return [one.what, one.by, value(one.theirs), value(one.ours), *shares, "yes" if one.agrees else "NO"]


if __name__ == "__main__":
    end(main)
