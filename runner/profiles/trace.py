"""Says what launching cost in traces that other tools recorded.

    python -m runner.trace trace.json.gz                          launch statistics of a PyTorch profiler trace
    python -m runner.trace profile.sqlite                         of `nsys export --type sqlite`
    python -m runner.trace before.json after.json                 a column a file
    python -m runner.trace trace.json --output pairs.parquet      a row a kernel and the launch call that started it
    python -m runner.trace trace.json --json statistics.json      every figure, and every stream and GPU

In: Kineto or Chrome JSON, plain or gzip, or nsys SQLite, told apart by what they hold. A trace of gigabytes is read as
a stream. Out: a table; notes below it say what the trace lacks. A trace without anything of CUDA is said to be so, and
is no error; a file that is no trace is (exit code 2).

Launch calls are cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch and their like, and any other call of the API that
started a kernel. The runtime's and the driver's record of one call count once. Launch delay: from a launch call's
return to the start of the first kernel that it started, taken as 0 where that was earlier (clipped, and counted). GPU
time runs from the start of a GPU's first event to the end of its last, copies and fills included, and is summed over
GPUs. Its idle part is split by what the host had done, because the remedies differ: nothing launched (the host was
busy elsewhere), within a launch call (its cost), launched but not begun (delay, or a wait for other work). A stream's
queue: its events called for and not begun, looked at whenever a call for it begins, itself included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import DataError, Interrupted, LaunchoptError
from launchopt.files import save_json
from runner.pager import until_closed

if TYPE_CHECKING:
    from launchopt.analysis.profiles.launch_pairs import Pairs
    from launchopt.analysis.profiles.launch_stats import LaunchStats
    from launchopt.traces.events import Trace
    from launchopt.traces.kineto import TimeUnit

JSON_VERSION = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        found = statistics(options.files, options.output, options.time_unit)
        if options.json is not None:
            files = [{"file": str(file), **asdict(stats)} for file, stats in found]
            save_json(options.json, {"schema_version": JSON_VERSION, "files": files})
        from runner.profiles.trace_screen import print_statistics

        print_statistics(found)
    except LaunchoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return Interrupted.exit_code
    return 0


def statistics(
    files: Sequence[Path], output: Path | None = None, unit: TimeUnit | None = None
) -> list[tuple[Path, LaunchStats]]:
    """The statistics of each file, and their launches and kernels in `output`.

    DataError for a file that cannot be read or written; then `output` is as it was.
    """
    from launchopt.analysis.profiles.launch_pairs import pair
    from launchopt.analysis.profiles.launch_stats import launch_stats

    found = []
    with _pairs_file(output) if output else nullcontext() as pairs_file:
        for path in files:
            with _said(f"reading {path}"):
                trace = _read(path, unit)
                pairs = pair(trace)
                found.append((path, launch_stats(trace, pairs)))
            if pairs_file is not None:
                pairs_file.add(path, trace, pairs)
    return found


def _read(path: Path, unit: TimeUnit | None) -> Trace:
    from launchopt.traces.events import is_sqlite
    from launchopt.traces.kineto import read_kineto
    from launchopt.traces.nsys_sqlite import read_nsys

    return read_nsys(path) if is_sqlite(path) else read_kineto(path, unit)


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Large files take a while: say so where somebody looks."""
    if not sys.stderr.isatty():
        yield
        return
    from runner.pager import console

    with console(stderr=True).status(what):
        yield


class _PairsFile:
    """The Parquet file of launches and kernels, open."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        from launchopt.analysis.profiles.launch_rows import LAUNCH_KERNELS

        self.writer = pq.ParquetWriter(path, LAUNCH_KERNELS, compression="zstd")

    def add(self, path: Path, trace: Trace, pairs: Pairs) -> None:
        """The rows of one trace."""
        from launchopt.analysis.profiles.launch_rows import launch_rows

        self.writer.write_table(launch_rows(str(path), trace, pairs))


@contextmanager
def _pairs_file(path: Path) -> Iterator[_PairsFile]:
    """Appears under its name when all went well, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        file = _PairsFile(temporary)
        with file.writer:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)


def _parser() -> argparse.ArgumentParser:
    summary, _, details = (__doc__ or "").partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("runner.trace", None, summary, details, formatter_class=formatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a trace")
    parser.add_argument("--output", type=Path, metavar="FILE.parquet", help="launches and kernels, a row a pair")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="all statistics")
    parser.add_argument(
        "--time-unit",
        choices=("us", "ns"),
        help="of times in JSON; left out: us, as the format says, and ns where us would be past the year 5000",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(until_closed(main))
