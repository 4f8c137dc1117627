"""Runs a PyTorch program, and writes its GEMMs as a list for `launchopt run workload=list`.

    launchopt record -- python serve.py --port 80                the program's GEMMs, in recorded.csv
    launchopt record --skip 3 --steps 5 -- python -m package     five steps behind the first three
    launchopt record -o mine.csv -- ./start.sh                   also what a script starts
    launchopt record --steps 5 --profile t.json.gz -- python serve.py    with times, for launchopt trace

The list has sizes, order, shared weights and groups, and neither names nor paths of the program. Worker processes are
recorded, too: if several processes run GEMMs, each has a file, recorded-1.csv and so on. A step is a call of a
torch.nn.Module that no other module called, until the next one. The program's interpreter needs PyTorch and no
launchopt. The command ends with the exit code of the program, or 128 and the number of the signal that ended it; with
2 if the program went well and nothing could be recorded. Ctrl-C ends the program, and what was recorded is written.

Compiled code and replays of CUDA graphs cannot be recorded. Start such a program eagerly: TORCH_COMPILE_DISABLE=1, and
the option of your engine, such as --enforce-eager.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launchopt.errors import ConfigError, DataError, one_line
from launchopt.files import reason, require_replaceable
from launchopt.scratch import scratch
from launchopt.traces import record_hook
from runner.ending import end
from runner.output_names import file_named
from runner.reading import CommandParser, exit_code, whole_number

SEPARATOR = "--"
DEFAULT = Path("recorded.csv")
LARGEST_MIB = 2048
HOOK = "sitecustomize"  # module that every Python imports as it starts
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FROM_KERNEL = 0x80  # SI_KERNEL <siginfo.h>: a terminal sent the signal, to the program as well


def main(argv: Sequence[str] | None = None) -> int:
    """Record the program and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    at = words.index(SEPARATOR) if SEPARATOR in words else len(words)
    parser, program = _parser(), words[at + 1 :]
    options = parser.parsed(words[:at], needs_words=not program)
    if not program or options.program:
        parser.error(f"put the program behind {SEPARATOR}, as in: launchopt record {SEPARATOR} python serve.py")
    if options.profile is not None and options.steps is None:
        parser.error("--profile: needs --steps: as many steps are profiled behind the recorded ones")
    limits = f"{options.skip}\n{options.steps or 0}\n{options.largest_mib << 20}\n{int(options.profile is not None)}"
    return exit_code(lambda: _record(program, options.output, options.profile, limits))


def _record(program: Sequence[str], output: Path, profile: Path | None, limits: str) -> int:
    """Run the program with the hook. limits: lines for the hook behind the folder."""
    _check(output, "-o")
    if profile is not None:
        _check(profile, "--profile")
    if shutil.which(program[0]) is None:
        raise ConfigError("program", program[0], "no such program, or it may not be started")
    with scratch() as folder:
        hook = folder / "hook"
        hook.mkdir()
        shutil.copyfile(record_hook.__file__, hook / f"{HOOK}.py")
        before = os.environ.get("PYTHONPATH")
        path = str(hook) if not before else f"{hook}{os.pathsep}{before}"
        code = _run(program, {**os.environ, "PYTHONPATH": path, record_hook.VARIABLE: f"{folder}\n{limits}"})
        from launchopt.traces.recorded import write_lists  # its libraries start threads, which would take signals

        try:
            for line in write_lists(folder, output, profile):
                print(f"launchopt record: {one_line(line)}", file=sys.stderr)
        except DataError as error:
            if not code:
                raise
            print(f"launchopt record: {one_line(error)}", file=sys.stderr)
    return code


def _check(output: Path, option: str) -> None:
    """Raise DataError if a file cannot be written, or there is one already. option: that names it."""
    try:
        require_replaceable(output)
        stem, dot, ends = output.name.partition(".")
        taken = re.compile(rf"{re.escape(stem)}(-\d+)?{re.escape(dot + ends)}")
        beside = output.absolute().parent.iterdir()
        if found := sorted(each.name for each in beside if taken.fullmatch(each.name)):
            raise DataError(output.with_name(found[0]), None, f"exists: remove it, or name another file with {option}")
        tempfile.TemporaryFile(dir=output.absolute().parent).close()  # not only once the program has ended
    except OSError as error:
        raise DataError(output, None, f"cannot be written ({reason(error)})") from None


def _run(program: Sequence[str], environ: dict[str, str]) -> int:
    """Run the program to its end, and return its exit code. Signals to this process reach the program."""
    waited = {*PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        process = os.posix_spawnp(
            program[0], list(program), environ, setsigmask=before, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            came = signal.sigwaitinfo(waited)
            if came.si_signo in PASSED_ON and came.si_code != FROM_KERNEL:
                os.kill(process, came.si_signo)
    except OSError as error:
        raise ConfigError("program", program[0], f"cannot be started ({reason(error)})") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _parser() -> CommandParser:
    parser = CommandParser("record", __doc__)
    number = whole_number
    parser.add_argument("program", nargs="*", metavar="-- PROGRAM", help="program to run, with its arguments")
    parser.add_argument(
        "-o",
        "--output",
        type=file_named(".csv"),
        default=DEFAULT,
        metavar="FILE.csv",
        help=f"list to write, which must not exist (default: {DEFAULT})",
    )
    parser.add_argument(
        "--skip", type=number(0), default=0, metavar="N", help="steps before the recording, in each process (default 0)"
    )
    parser.add_argument(
        "--steps",
        type=number(1),
        metavar="N",
        help="number of recorded steps, in each process (default: all)",
    )
    parser.add_argument(
        "--profile",
        type=file_named(".json.gz"),
        metavar="FILE.json.gz",
        help="also write a trace of PyTorch's profiler, of as many steps behind the recorded ones; needs --steps",
    )
    parser.add_argument(
        "--largest-mib",
        type=number(1, 1 << 20),
        default=LARGEST_MIB,
        metavar="N",
        help="stop the recording of a process when its trace, about 1 kB an operator, has so many MiB "
        f"(default {LARGEST_MIB}); the program goes on",
    )
    return parser


if __name__ == "__main__":
    end(main)
