"""This checkout's modules in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

from support.paths import ROOT


def environ_of(root: Path = ROOT) -> dict[str, str]:
    """Return this environment with `root` first on the path of modules, before the modules that were on it."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])}
