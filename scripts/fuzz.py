"""Feeds broken and hostile input to the readers of files and to the command line.

    python scripts/fuzz.py                          # ten minutes: override sets, config files, readers in turn
    python scripts/fuzz.py overrides --count 1000   # a thousand override sets
    python scripts/fuzz.py kineto nsys --minutes 5  # these readers alone
    python scripts/fuzz.py azure --engine atheris   # coverage-guided (pip install atheris)

Readers get mutants of the files in tests/corpus. A mutant must give a table, or an error of one short line. Override
sets and config files must give a plan, or a short error within two processor seconds that leaves nothing behind.
Nothing is run. The script prints counts, and each finding with its number, which reproduces it. Harmful files stay in
--keep.

Exit code 0: no findings. 1: some.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.config.override_sets import override_set, taken
from support.results.mutations import CORPUS, READERS, complaint, mutant, mutated_text

from runner.reading import CommandParser
from runner.values import positive, whole_number

CONF = Path(__file__).parents[1] / "conf"
LINES = ("overrides", "configs")
TURN = 20  # mutants of a reader in one round; a round has one command line, which takes longer

Finding = str | None


def main(argv: Sequence[str] | None = None) -> int:
    """Try inputs until the time or count is reached; return the exit code."""
    options = _parser().parsed(argv, needs_words=False)
    if options.engine == "atheris":
        return _with_atheris(options.what or list(READERS), options.minutes)
    what = options.what or [*LINES, *READERS]
    limit_s = time.monotonic() + options.minutes * 60 if options.count is None else None
    tried, findings, number = Counter[str](), Counter[str](), options.seed
    options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        while not _is_enough(limit_s, options.count, number - options.seed):
            for name in what:
                for each in range(TURN if name in READERS else 1):
                    finding = _try(name, number * TURN + each, Path(folder), options.keep)
                    tried[name] += 1
                    findings[name] += finding is not None
                    if finding is not None:
                        print(f"{name} {number * TURN + each}: {finding}\n", flush=True)
            number += 1
    for name in what:
        print(f"{name}: {tried[name]:,} tried, {findings[name]:,} did harm")
    return 1 if findings.total() else 0


def _is_enough(limit_s: float | None, count: int | None, rounds: int) -> bool:
    if count is not None:
        return rounds >= count
    return limit_s is not None and time.monotonic() >= limit_s


def _try(name: str, number: int, folder: Path, keep: Path) -> Finding:
    """Try one input of a kind. Its number alone determines it. Return a finding, or None."""
    generator = random.Random(f"{name} {number}")
    if name in READERS:
        seed = CORPUS / generator.choice(READERS[name].seeds)
        path = folder / seed.name
        path.write_bytes(mutant(seed, generator))
        finding = complaint(READERS[name], path)
        if finding is not None:
            shutil.copy(path, keep / f"{name}-{number}-{seed.name}")
        return finding
    cwd = folder / "cwd"
    cwd.mkdir()
    words = override_set(generator) if name == "overrides" else _config_words(generator, folder / "user")
    fault = taken(words, cwd).fault
    shutil.rmtree(cwd)
    return None if fault is None else f"{words}\n{fault}"


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
    parser.add_argument("--seed", type=whole_number(0), default=0, help="number of the first round")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "launchopt-fuzz"), help="for findings")
    parser.add_argument("--engine", choices=("mutate", "atheris"), default="mutate")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
