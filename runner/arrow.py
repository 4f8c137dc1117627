"""How pyarrow starts in a process of a run: without pandas.

The first array that pyarrow makes has it import pandas where it is installed, in the parent of a run and in its
consumer, which takes longer than a small run does. Nothing of ours makes a pandas object. Only for processes of this
program: where it was called, pyarrow takes no pandas object for an array either.
"""

from __future__ import annotations

import sys

import pyarrow as pa

PANDAS = "pandas"


class _NotFound:
    """Finder of modules that says of one that there is none."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == PANDAS:
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Have pyarrow find that there is none, unless it is there already. To be called before the first array."""
    if PANDAS in sys.modules:
        return
    sys.meta_path.insert(0, _NotFound)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NotFound)
