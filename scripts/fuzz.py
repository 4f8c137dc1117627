"""Feeds broken and hostile input to the readers of files and to the command line.

    python scripts/fuzz.py                          # ten minutes: override sets, config files, readers in turn
    python scripts/fuzz.py overrides --count 1000   # a thousand override sets
    python scripts/fuzz.py kineto nsys --minutes 5  # these readers alone
    python scripts/fuzz.py folders overrides --count 1000 --workers 8 --json fuzz.json    # a campaign
    python scripts/fuzz.py azure --engine atheris   # coverage-guided (pip install atheris)

Readers get mutants of the files in tests/corpus. A mutant must give a table, or an error of one short line. Override
sets and config files must give a plan, or a short error within two processor seconds that leaves nothing behind.
Folders of results, some of whose files lie, are given to every command that reads results or a user's files, in a
process of their own: no traceback, no raw control character, a true exit code, at most 60 s, 300 MiB more memory, and
nothing written beside the folder. Nothing is run. The script prints counts, and each finding with its number, which
reproduces it. Harmful files stay in --keep.

--json FILE holds the counts after each round, with the date and the revision. The same command continues behind the
last round. Ctrl-C ends the rounds under way, and keeps those before them. --workers N tries N rounds at a time; the
inputs are the same. --seed N begins with another round: parts of one campaign with --count 1000 are --seed 0,
--seed 1000, and so on.

Exit code 0: no findings. 1: some. 2: an option is wrong, or a file or folder cannot be used. 130: Ctrl-C, and no
findings so far.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import count, islice
from multiprocessing import active_children, get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.config.override_sets import override_set, taken
from support.results.hostile_commands import Finding, commands, tried, warm_up
from support.results.hostile_folders import good, made
from support.results.mutations import CORPUS, READERS, complaint, mutant, mutated_text

from launchopt.errors import DataError, LaunchoptError
from launchopt.files import reason
from launchopt.messages import print_error
from runner.reading import CommandParser, positive, whole_number
from runner.worker.lifeline import end_with
from scripts.fuzz_score import Score, Trial

CONF = Path(__file__).parents[1] / "conf"
LINES = ("overrides", "configs", "folders")
TURN = 20  # mutants of a reader in one round; a round has one command line, which takes longer


def main(argv: Sequence[str] | None = None) -> int:
    """Try inputs until the time or count is reached; return the exit code."""
    options = _parser().parsed(argv, needs_words=False)
    if options.engine == "atheris":
        return _with_atheris(options.what or list(READERS), options.minutes)
    try:
        return _campaign([*dict.fromkeys(options.what or [*LINES, *READERS])], options)
    except LaunchoptError as error:
        print_error(error)
        return error.exit_code


def _campaign(what: Sequence[str], options: argparse.Namespace) -> int:
    """Try rounds, print the counts, and return the exit code; DataError for files and folders that cannot be used."""
    limit_s = time.monotonic() + options.minutes * 60 if options.count is None else None
    score = Score.read(options.json, options.seed, what)
    try:
        options.keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(options.keep, None, f"cannot be made ({reason(error)})") from None
    numbers = count(score.next) if options.count is None else range(score.next, score.seed + options.count)
    is_interrupted = True
    with (
        contextlib.suppress(KeyboardInterrupt),  # keeps the finished rounds
        tempfile.TemporaryDirectory(prefix="rounds-", dir=options.keep, ignore_cleanup_errors=True) as folder,
        contextlib.closing(_rounds(what, iter(numbers), limit_s, Path(folder), options.workers)) as rounds,
    ):
        for done in rounds:
            for each in done:
                score.add(each)
            score.next += 1
            score.write(options.json)
        is_interrupted = False
    for name in score.tried:
        print(f"{name}: {score.tried[name]:,} tried, {score.harmful(name):,} did harm")
    print(f"{', '.join(f'{kind}: {times}' for kind, times in score.counts().items())}")
    if score.findings:
        return 1
    return 128 + signal.SIGINT if is_interrupted else 0


def _rounds(
    what: Sequence[str], numbers: Iterator[int], limit_s: float | None, folder: Path, workers: int
) -> Generator[list[Trial]]:
    """Yield the trials of each round, in the order of the numbers; `workers` rounds are tried at a time."""

    def is_time_left() -> bool:
        return limit_s is None or time.monotonic() < limit_s

    if workers == 1:
        yield from (_round(what, number, folder) for number in numbers if is_time_left())
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _become_worker, (os.getpid(),)) as pool:
        try:
            waiting = deque(pool.submit(_round, what, number, folder) for number in islice(numbers, 2 * workers))
            while waiting:
                yield waiting.popleft().result()
                if is_time_left() and (number := next(numbers, None)) is not None:
                    waiting.append(pool.submit(_round, what, number, folder))
        except BaseException:  # Ctrl-C here or in the caller: a round under way can hang
            for worker in active_children():
                worker.kill()
            raise


def _become_worker(parent: int) -> None:
    """End with the process `parent`, which started this one. Ctrl-C is for it: it ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)


def _round(what: Sequence[str], number: int, folder: Path) -> list[Trial]:
    """Try one input of each kind, and TURN of a reader, in a folder of this process's own."""
    own = folder / str(os.getpid())
    own.mkdir(exist_ok=True)
    return [
        _try(name, number * TURN + each, own, folder.parent)
        for name in what
        for each in range(TURN if name in READERS else 1)
    ]


def _try(name: str, number: int, folder: Path, keep: Path) -> Trial:
    """Try one input of a kind. Its number alone determines it."""
    generator = random.Random(f"{name} {number}")
    if name in READERS:
        return Trial(name, number, [], _try_reader(name, number, folder, keep, generator))
    if name == "folders":
        return _try_folder(number, folder, keep, generator)
    cwd = folder / "cwd"
    cwd.mkdir()
    words = override_set(generator) if name == "overrides" else _config_words(generator, folder / "user")
    fault = taken(words, cwd).fault
    shutil.rmtree(cwd)
    return Trial(name, number, ["run"], [] if fault is None else [Finding(_kind(fault), f"{words}\n{fault}")])


def _try_reader(name: str, number: int, folder: Path, keep: Path, generator: random.Random) -> list[Finding]:
    seed = CORPUS / generator.choice(READERS[name].seeds)
    path = folder / seed.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(mutant(seed, generator))
    text = complaint(READERS[name], path)
    if text is not None:
        shutil.copy(path, keep / f"{name}-{number}-{seed.name}")
    return [] if text is None else [Finding(_kind(text), text)]


def _try_folder(number: int, folder: Path, keep: Path, generator: random.Random) -> Trial:
    source = folder / "good"
    if not source.exists():
        good(source)
        warm_up()
    hostile = made(source, folder / "hostile", generator)
    words = commands(hostile, source, generator)
    found = tried(words, hostile)
    if found:
        shutil.rmtree(keep / f"folders-{number}", ignore_errors=True)
        hostile.rename(keep / f"folders-{number}")
    else:
        shutil.rmtree(hostile)
    return Trial("folders", number, [each[0] for each in words], found)


def _kind(text: str) -> str:
    """Return the kind of a complaint in words."""
    marks = {"processor seconds": "hang", "Traceback": "traceback", "raw control": "escape", "exit ": "code"}
    return next((kind for mark, kind in marks.items() if mark in text), "message")


def _config_words(generator: random.Random, user: Path) -> list[str]:
    """Return the words that select a mutant of one of our config files in a user's folder."""
    # Not experiments: they are sweeps of many jobs, with a plan for each.
    path = generator.choice([path for path in sorted(CONF.glob("*/*.yaml")) if path.parent.name != "experiment"])
    shutil.rmtree(user, ignore_errors=True)
    (user / path.parent.name).mkdir(parents=True)
    (user / path.parent.name / "mine.yaml").write_bytes(mutated_text(path.read_bytes(), generator))
    return [f"--config-dir={user}", "device=cpu", f"{path.parent.name}=mine"]


def _with_atheris(what: Sequence[str], minutes: float) -> int:
    """Fuzz one reader, guided by coverage. libFuzzer ends the process at a finding."""
    if find_spec("atheris") is None:
        print("error: --engine atheris: is not installed: pip install atheris", file=sys.stderr)
        return 2
    if len(what) != 1 or what[0] not in READERS:
        print("error: --engine atheris: takes one reader at a time", file=sys.stderr)
        return 2
    from importlib import import_module

    atheris, reader = import_module("atheris"), READERS[what[0]]
    folder = Path(tempfile.mkdtemp())
    path = folder / reader.seeds[0]

    def one(content: bytes) -> None:
        path.write_bytes(content)
        if (finding := complaint(reader, path)) is not None:
            raise AssertionError(finding)

    target: Callable[[bytes], None] = one
    seeds = folder / "seeds"
    seeds.mkdir()
    for seed in reader.seeds:
        shutil.copy(CORPUS / seed, seeds)
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={round(minutes * 60)}", str(seeds)], target)
    atheris.Fuzz()
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("fuzz", __doc__)
    known = [*LINES, *READERS]
    parser.add_argument("what", nargs="*", choices=[*known, []], metavar="WHAT", help=f"of {', '.join(known)}")
    parser.add_argument("--minutes", type=positive, default=10.0, help="of all together (default: 10)")
    parser.add_argument(
        "--count",
        type=whole_number(1),
        help=f"number of rounds instead of a time; a round is a command line, or {TURN} files of a reader",
    )
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="counts and findings; an existing file goes on")
    parser.add_argument("--workers", type=whole_number(1), default=1, metavar="N", help="rounds at a time (default 1)")
    parser.add_argument("--seed", type=whole_number(0), default=0, help="number of the first round")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "launchopt-fuzz"), help="for findings")
    parser.add_argument("--engine", choices=("mutate", "atheris"), default="mutate")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
