"""A part of the reference results: the commands that measure it, on which device, and how long that takes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from typing import NamedTuple

CHECK_S = 0.5  # to check an audit run, or a repeat of independent commands: how many were compared is a column
OVERRIDE = re.compile(r"[a-z_.]+=\{")  # of Hydra, which wants special characters of a path in quotes


class Part(NamedTuple):
    """Commands, the folder of their results, the device that they need, and the most minutes that they take in all."""

    folder: str
    device: str  # cuda or cpu
    minutes: float
    commands: tuple[str, ...]  # words as in a shell
    needs: str = ""  # a key of TRACES
    program: str = ""  # another program that a command needs
    seconds: int = 0  # about how long it takes
    gpus: int = 1  # that it needs

    @property
    def needed_s(self) -> float:
        """Seconds without which it is not worth starting."""
        return self.seconds or 60 * self.minutes


def run_words(words: str, place: str = "{folder}", device: str = "cuda") -> str:
    """Return the command of a run or a sweep with its results in `place`."""
    checks = "" if "verify_budget_s" in words else f" verify_budget_s={CHECK_S:g}"
    return f"python -m runner {words}{checks} device={device} hydra.run.dir={place} hydra.sweep.dir={place}"


def words_of(command: str, places: Mapping[str, str]) -> list[str]:
    """Return the words of a command with this interpreter, and with the places in it."""
    words = []
    for word in shlex.split(command):
        placed = word.format_map(places)
        words.append(quoted(*placed.split("=", 1)) if OVERRIDE.match(word) else placed)
    return [sys.executable, *words[1:]] if words[0] == "python" else words


def quoted(key: str, path: str) -> str:
    """Return a setting of a run whose value is a path with any characters."""
    escaped = path.replace("'", "\\'")
    return f"{key}='{escaped}'"
