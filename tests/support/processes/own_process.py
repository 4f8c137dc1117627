"""This checkout's modules in a process of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from support.paths import ROOT

PROGRESS = re.compile(r"^\[[\d:]+\] .*\n", re.MULTILINE)  # what a run says every 30 s


def without_progress(stderr: str) -> str:
    """Return what a run wrote to standard error, less its progress: a busy machine takes long over any run."""
    return PROGRESS.sub("", stderr)


def alone(words: Iterable[str]) -> list[str]:
    """Return the words of a run with against=[], unless they are a sweep or say what runs beside the mode."""
    found = list(words)
    names = {word.partition("=")[0] for word in found}
    return found if names & {"-m", "--multirun", "against", "experiment", "table"} else [*found, "against=[]"]


def environ_of(*roots: Path) -> dict[str, str]:
    """Return this environment with `roots` (default: this checkout) first on the path of modules."""
    first = [str(root) for root in roots or (ROOT,)]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])}
