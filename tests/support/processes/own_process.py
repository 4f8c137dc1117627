"""This checkout's modules in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

from support.paths import ROOT


def environ_of(*roots: Path) -> dict[str, str]:
    """Return this environment with `roots` (default: this checkout) first on the path of modules."""
    first = [str(root) for root in roots or (ROOT,)]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])}
