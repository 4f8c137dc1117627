"""Feeds broken and hostile input to the readers of files and to the command line.

    python scripts/fuzz.py                          # ten minutes: override sets, config files, readers in turn
    python scripts/fuzz.py overrides --count 1000   # a thousand override sets
    python scripts/fuzz.py kineto nsys --minutes 5  # these readers alone
    python scripts/fuzz.py folders --count 2000 --json fuzz.json    # 2,000 folders of results; goes on where it stopped
    python scripts/fuzz.py azure --engine atheris   # coverage-guided (pip install atheris)

Readers get mutants of the files in tests/corpus. A mutant must give a table, or an error of one short line. Override
sets and config files must give a plan, or a short error within two processor seconds that leaves nothing behind.
Folders of results, some of whose files lie, are given to every reading command, in a process of their own: no
traceback, at most 60 s, 300 MiB more memory, and nothing written beside the folder. Nothing is run. The script prints
counts, and each finding with its number, which reproduces it. Harmful files stay in --keep. --json FILE holds the
counts after each round; a second start with the same FILE continues behind the last round.

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
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.config.override_sets import override_set, taken
from support.results.hostile_folders import Finding, commands, good, made, tried, warm_up
from support.results.mutations import CORPUS, READERS, complaint, mutant, mutated_text

from launchopt.files import read_json, save_json
from runner.reading import CommandParser
from runner.values import positive, whole_number

CONF = Path(__file__).parents[1] / "conf"
LINES = ("overrides", "configs", "folders")
KINDS = ("traceback", "hang", "memory", "outside", "message")
TURN = 20  # mutants of a reader in one round; a round has one command line, which takes longer


def main(argv: Sequence[str] | None = None) -> int:
    """Try inputs until the time or count is reached; return the exit code."""
    options = _parser().parsed(argv, needs_words=False)
    if options.engine == "atheris":
        return _with_atheris(options.what or list(READERS), options.minutes)
    what = options.what or [*LINES, *READERS]
    limit_s = time.monotonic() + options.minutes * 60 if options.count is None else None
    score = Score.read(options.json, options.seed)
    options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        while not _is_enough(limit_s, options.count, score.next - score.seed):
            for name in what:
                for each in range(TURN if name in READERS else 1):
                    number = score.next * TURN + each
                    score.add(name, number, _try(name, number, Path(folder), options.keep))
            score.next += 1
            score.write(options.json)
    for name in score.tried:
        print(f"{name}: {score.tried[name]:,} tried, {score.harmful(name):,} did harm")
    print(f"{', '.join(f'{kind}: {count}' for kind, count in score.counts().items())}")
    return 1 if score.findings else 0


@dataclass
class Score:
    """The inputs tried so far, and what they did."""

    seed: int  # number of the first round
    next: int  # number of the next round
    tried: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None, seed: int) -> Score:
        """Return the score in a file; a new one if there is none."""
        if path is None or not path.exists():
            return cls(seed, seed)
        about = read_json(path)
        return cls(about["seed"], about["next"], Counter(about["tried"]), about["findings"])

    def add(self, name: str, number: int, found: list[Finding]) -> None:
        """Count an input, and print what it did."""
        self.tried[name] += 1
        for kind, text in found:
            self.findings.append({"what": name, "number": number, "kind": kind, "text": text})
            print(f"{name} {number}: {kind}: {text}\n", flush=True)

    def harmful(self, name: str) -> int:
        """Return the number of inputs of a kind that did harm."""
        return len({each["number"] for each in self.findings if each["what"] == name})

    def counts(self) -> dict[str, int]:
        """Return the number of findings of each kind."""
        return {kind: sum(each["kind"] == kind for each in self.findings) for kind in KINDS}

    def write(self, path: Path | None) -> None:
        """Write the score as JSON, unless there is no file for it."""
        if path is not None:
            about = {"seed": self.seed, "next": self.next, "tried": self.tried, "counts": self.counts()}
            save_json(path, about | {"findings": self.findings})


def _is_enough(limit_s: float | None, count: int | None, rounds: int) -> bool:
    if count is not None:
        return rounds >= count
    return limit_s is not None and time.monotonic() >= limit_s


def _try(name: str, number: int, folder: Path, keep: Path) -> list[Finding]:
    """Try one input of a kind. Its number alone determines it. Return what it did."""
    generator = random.Random(f"{name} {number}")
    if name in READERS:
        seed = CORPUS / generator.choice(READERS[name].seeds)
        path = folder / seed.name
        path.write_bytes(mutant(seed, generator))
        text = complaint(READERS[name], path)
        if text is not None:
            shutil.copy(path, keep / f"{name}-{number}-{seed.name}")
        return [] if text is None else [Finding(_kind(text), text)]
    cwd = folder / "cwd"
    if name == "folders":
        return _try_folder(number, folder, keep, generator)
    cwd.mkdir()
    words = override_set(generator) if name == "overrides" else _config_words(generator, folder / "user")
    fault = taken(words, cwd).fault
    shutil.rmtree(cwd)
    return [] if fault is None else [Finding(_kind(fault), f"{words}\n{fault}")]


def _try_folder(number: int, folder: Path, keep: Path, generator: random.Random) -> list[Finding]:
    source = folder / "good"
    if not source.exists():
        good(source)
        warm_up()
    hostile = made(source, folder / "hostile", generator)
    found = tried(commands(hostile, source, generator), hostile)
    if found:
        shutil.rmtree(keep / f"folders-{number}", ignore_errors=True)
        hostile.rename(keep / f"folders-{number}")
    else:
        shutil.rmtree(hostile)
    return found


def _kind(text: str) -> str:
    """Return the kind of a complaint in words."""
    return "hang" if "processor seconds" in text else "traceback" if "Traceback" in text else "message"


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
    parser.add_argument("--seed", type=whole_number(0), default=0, help="number of the first round")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "launchopt-fuzz"), help="for findings")
    parser.add_argument("--engine", choices=("mutate", "atheris"), default="mutate")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
