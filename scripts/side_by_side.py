"""Runs commands at the same time, each on GPUs and cores of its own.

    python scripts/side_by_side.py --gpus 4 "1 python -m runner ..." "2 python -m runner ..." "4 python -m runner ..."

Each word is the number of GPUs of a command, and the command. Commands go in their order into rounds of at most --gpus
GPUs. A round begins when the one before has ended. A command sees its GPUs only (CUDA_VISIBLE_DEVICES), and has cores
in proportion to them. In: CUDA_VISIBLE_DEVICES, if it is set. Standard error is that of the commands. Exit code: 2 if
a word is wrong, or the machine has fewer GPUs or cores than --gpus; else the first one that is not 0; no round begins
behind it. Ctrl-C interrupts all commands, and waits until they have ended.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.errors import ConfigError
from runner.reading import CommandParser, whole_number
from scripts.reference_machine import Place, places, shortage


class Asked(NamedTuple):
    """A command, and the number of GPUs that it needs."""

    gpus: int
    words: list[str]


def rounds(asked: Sequence[Asked], gpus: int) -> list[list[Asked]]:
    """Return commands in their order, in groups that need at most `gpus` GPUs together."""
    found: list[list[Asked]] = []
    left = 0
    for each in asked:
        if each.gpus > gpus:
            raise ConfigError("--gpus", gpus, f"a command needs {each.gpus}")
        if each.gpus > left:
            found.append([])
            left = gpus
        found[-1].append(each)
        left -= each.gpus
    return found


def placed(together: Sequence[Asked], gpus: int) -> list[Place]:
    """Return the place of each command of a round: the cores of a GPU are its equal share of all."""
    singles, at, found = places(gpus), 0, []
    for each in together:
        own = singles[at : at + each.gpus]
        cores = [core for single in own for core in single.cores]
        found.append(Place(",".join(str(single.gpu) for single in own), cores, len(together)))
        at += each.gpus
    return found


def ran(together: Sequence[Asked], gpus: int) -> int:
    """Run a round; return the first exit code that is not 0."""
    started = [
        subprocess.Popen(place.words(each.words), env=os.environ | place.environment())
        for each, place in zip(together, placed(together, gpus), strict=True)
    ]
    try:
        codes = [each.wait() for each in started]
    except KeyboardInterrupt:
        for each in started:
            if each.poll() is None:
                each.send_signal(signal.SIGINT)
        codes = [each.wait() for each in started]
        return next(filter(None, codes), 128 + signal.SIGINT)
    return next(filter(None, codes), 0)


def parsed(text: str) -> Asked:
    """Return the command of a word, with this interpreter; ConfigError without a number of GPUs."""
    count, *words = shlex.split(text) or [""]
    if not count.isdecimal() or not int(count) or not words:
        raise ConfigError("COMMAND", text, 'must be a number of GPUs and a command, such as "2 python -m runner"')
    return Asked(int(count), [sys.executable, *words[1:]] if words[0] == "python" else words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the commands; `argv` without the program's name. Returns the exit code."""
    options = parser().parsed(argv)
    try:
        found = rounds([*map(parsed, options.commands)], options.gpus)
        if why := shortage(options.gpus, runs_gpu=True):
            raise ConfigError("--gpus", options.gpus, why)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for together in found:
        if code := ran(together, options.gpus):
            return code
    return 0


def parser() -> CommandParser:
    """Return the parser of the options."""
    made = CommandParser("side_by_side", __doc__)
    made.add_argument("commands", nargs="+", metavar="COMMAND", help="number of GPUs, and a command")
    made.add_argument("--gpus", type=whole_number(1), required=True, metavar="N", help="GPUs of this machine")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
