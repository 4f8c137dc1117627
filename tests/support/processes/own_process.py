"""This checkout's modules in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

from support.paths import ROOT


def environ_of(root: Path = ROOT) -> dict[str, str]:
    """This environment with `root` first on the path of modules; what was on it stays, dependencies may be there."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])}
