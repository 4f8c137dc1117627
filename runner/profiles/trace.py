"""Computes the cost of launches in traces that other tools recorded.

    launchopt trace trace.json.gz                          launch statistics of a PyTorch profiler trace
    launchopt trace profile.sqlite                         of `nsys export --type sqlite`
    launchopt trace before.json after.json                 a column per file
    cat trace.json.gz | launchopt trace -                  standard input
    launchopt trace trace.json --output pairs.parquet      a row per kernel, with the launch call that started it
    launchopt trace trace.json --json statistics.json      every figure, and every stream and GPU

Reads Kineto or Chrome JSON, plain or gzip, and nsys SQLite; the content decides which. Large traces are streamed.
Prints a table, and notes on what the trace lacks, and on events that were left out. A trace without CUDA is no error. A
file that is no trace is an error (exit code 2), as is one with only events of an accelerator that is not supported.

Launch calls are cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch and the like (of CUDA, HIP or XPU), and any other
API call that started a kernel. A call that runtime and driver both record counts once. Calls between the begin and the
end of a stream capture are recorded into a graph: they have a count of their own, and their time is in no figure.

Launch delay runs from the return of a launch call to the start of its first kernel. A kernel that starts earlier counts
as 0; the table says how many did.

GPU time runs from the start of a GPU's first event to the end of its last, with copies and fills, summed over GPUs. Its
idle part is split by the state of the host: nothing launched (the host was busy elsewhere); within a launch call (its
cost); launched, not begun (delay, or a wait for other work). If the GPU idles at least half of the time, the last lines
say launch-bound if at least half of that is within launch calls, host-bound if at least half of it is within launch
calls or with nothing launched. Each process has GPUs of its own, also if all see a GPU 0, unless an nsys export says
that they share one.

A trace of PyTorch's profiler also has operators. For each one that Python called and that made a launch call, a table
shows the median time on the host: in the framework (dispatch), in the library (the operator that makes the launch call,
and code such as cuBLAS), in the driver (launch calls), and between the operator before and this one (Python). The last
column, by which the rows are sorted, is the sum of all calls. The profiler makes each part longer. A file alone on the
command line has this table; --json has it for every file.

If several GPUs run the same collectives (all-reduce, all-gather, reduce-scatter), a table shows how long each GPU
waited for the others, apart from the transfer: give the traces of all processes, or one nsys export of all. Each group
of processes has a table, if PyTorch's profiler names the groups. The k-th collective of a stream of one GPU is the k-th
of that stream on every other. The wait begins when the kernel of a GPU begins, and ends when that of the last GPU
begins; the skew is the longest wait, and the transfer what follows. Clocks are taken as recorded, unless a collective
would end on one GPU before it begins on another: then they are set in the middle of what is possible. The last line
says how far the offset between two clocks can be off. Sentences below say what is in no table, and why: other
collectives, two traces of one rank, one file twice.

The queue of a stream holds the calls for it whose work on it has not begun; a graph launch is one call. It is sampled
when a call for the stream begins, and includes that call. Each context of a GPU has queues of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import DataError
from launchopt.files import as_utf8, temporary_for
from runner.ending import end
from runner.output_names import STDOUT, file_named
from runner.profiles.trace_input import STDIN, whole_file
from runner.reading import CommandParser, add_json, exit_code, put_json

if TYPE_CHECKING:
    from launchopt.analysis.collectives.gpus import TimedFile
    from launchopt.analysis.profiles.launch_pairs import Pairs
    from launchopt.analysis.profiles.launch_stats import LaunchStats
    from launchopt.traces.chrome_events import TimeUnit
    from launchopt.traces.events import Trace


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the arguments `argv` and return the exit code."""
    parser = _parser()
    options = parser.parsed(argv)
    if options.files.count(STDIN) > 1:
        parser.error("- is standard input, which can be read once")
    return exit_code(lambda: _print(options))


def _print(options: argparse.Namespace) -> int:
    from launchopt.analysis.collectives.jobs import collectives

    timed: list[TimedFile] = []
    found = statistics(options.files, options.output, options.time_unit, timed)
    together = collectives(timed)
    content = {
        "files": [{"file": str(file), **asdict(stats)} for file, stats in found],
        "collectives": [asdict(each) for each in together.tables],
        "collectives_notes": together.notes,
    }
    put_json(options.json, content)
    if options.json != STDOUT:
        from runner.profiles.trace_screen import print_collectives, print_statistics

        print_statistics(found)
        print_collectives(together)
    return 0


def statistics(
    files: Sequence[Path],
    output: Path | None = None,
    unit: TimeUnit | None = None,
    timed: list[TimedFile] | None = None,
) -> list[tuple[Path, LaunchStats]]:
    """Return the statistics of each file, and write their launches and kernels to `output`.

    timed: gets the GPUs of each file that have collectives.
    Raises DataError for a file that cannot be read or written. `output` is unchanged then.
    """
    from launchopt.analysis.profiles.collective_kernels import timed_file
    from launchopt.analysis.profiles.launch_pairs import pair
    from launchopt.analysis.profiles.launch_stats import launch_stats
    from runner.profiles.trace_screen import file_names

    found, names = [], dict(zip(files, file_names(files), strict=True))
    with _pairs_file(output) if output else nullcontext() as pairs_file:
        for path in files:
            with _status(f"reading {path}"):
                trace = _read(path, unit)
                pairs = pair(trace)
                found.append((path, launch_stats(trace, pairs)))
                if timed is not None:
                    timed.append(timed_file(names[path], _source(path), trace, pairs))
            if pairs_file is not None:
                pairs_file.add(path, trace, pairs)
    return found


def _source(path: Path) -> Hashable:
    """Return what two names of one file have in common."""
    if path == STDIN:
        return STDIN
    found = path.stat()
    return found.st_dev, found.st_ino


def _read(path: Path, unit: TimeUnit | None) -> Trace:
    from launchopt.traces.events import is_sqlite
    from launchopt.traces.kineto import read_kineto
    from launchopt.traces.nsys_sqlite import read_nsys

    with whole_file(path) as file:
        return read_nsys(file) if is_sqlite(file) else read_kineto(file, unit)


@contextmanager
def _status(text: str) -> Iterator[None]:
    """Show `text` on a terminal during this block: large files take a while."""
    if not sys.stderr.isatty():
        yield
        return
    from runner.screen.pager import console

    with console(stderr=True).status(text):
        yield


class _PairsFile:
    """The open Parquet file of launches and kernels."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        from launchopt.analysis.profiles.launch_rows import LAUNCH_KERNELS

        self.file = path.open("wb")  # pyarrow itself opens no path that is not UTF-8
        self.writer = pq.ParquetWriter(self.file, LAUNCH_KERNELS, compression="zstd")

    def add(self, path: Path, trace: Trace, pairs: Pairs) -> None:
        """Add the rows of one trace."""
        from launchopt.analysis.profiles.launch_rows import launch_rows

        self.writer.write_table(launch_rows(as_utf8(path), trace, pairs))


@contextmanager
def _pairs_file(path: Path) -> Iterator[_PairsFile]:
    """Open the file. It gets its name at the end of the block, unless an error is raised."""
    temporary = temporary_for(path)
    try:
        file = _PairsFile(temporary)
        with file.file, file.writer:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)


def _parser() -> CommandParser:
    parser = CommandParser("trace", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a trace; - is standard input")
    parser.add_argument(
        "--output", type=file_named(".parquet"), metavar="FILE.parquet", help="launches and kernels, a row a pair"
    )
    add_json(parser)
    parser.add_argument(
        "--time-unit",
        choices=("us", "ns"),
        help="unit of times in JSON; default: us, as the format says, or ns if us would be past the year 5000",
    )
    return parser


if __name__ == "__main__":
    end(main)
