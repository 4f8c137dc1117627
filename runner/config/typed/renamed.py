"""Old names of words that users type. An old name works for one release, with one line on standard error.

    strategies = current_words(["experiment=remedies"])     ["experiment=strategies"]

`launchopt.recording.columns` has the old names of columns and models, which files keep for good.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from launchopt.errors import one_line

DROPPED_IN = "0.3.0"
OPTIONS = {"--remedies": "--strategies"}
VALUES = {  # by key: patterns of old names, and the new names
    "experiment": {r"\bremedies\b": "strategies", r"\bpredecessor_tables\b": "gpu_kernel_batcher"},
    "table": {r"\bremedies_": "strategies_"},
    "model": {r"(?<![\w/.-])predecessor(?![\w/.-])": "small_1024"},  # no folder of this name in a path
}


def current_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with today's names. Print a notice for each word that had an old one."""
    return [_noticed(word, current_word(word)) for word in words]


def current_word(word: str) -> str:
    """Return an option or an override with today's names."""
    key, equals, value = word.partition("=")
    for pattern, name in VALUES.get(key.lstrip("+"), {}).items() if equals else ():
        value = re.sub(pattern, name, value)
    return f"{key}={value}" if equals else OPTIONS.get(word, word)


def current_metric(name: str | None) -> str | None:
    """Return today's name of a column that --metric names, after a notice if it is an old one."""
    from launchopt.recording.columns import RENAMED  # loads pyarrow, which the words of a run do not need

    if name not in RENAMED:
        return name
    _noticed(f"--metric {name}", f"--metric {RENAMED[name]}")
    return RENAMED[name]


def _noticed(old: str, new: str) -> str:
    if new != old:
        print(
            f"notice: {one_line(old)} is now {one_line(new)}; version {DROPPED_IN} drops the old name", file=sys.stderr
        )
    return new
