"""The files of launchopt/kernels: entry points, headers, and the headers that each file includes."""

from __future__ import annotations

import re
from pathlib import Path

from launchopt import kernels
from launchopt.kernels import headers

FOLDER = Path(kernels.__file__).parent
FILES = sorted(each.relative_to(FOLDER).as_posix() for each in FOLDER.rglob("*.cu*"))
SOURCES = [name for name in FILES if name.endswith(".cu")]
HEADERS = [*(name for name in FILES if name.endswith(".cuh")), *headers.HEADERS]
INCLUDE = re.compile(r'^#include "(.*)"\n', re.MULTILINE)


def text_of(name: str) -> str:
    return headers.HEADERS.get(name) or (FOLDER / name).read_text(encoding="utf-8")


def included(name: str) -> set[str]:
    """Return the headers that a file includes, directly or indirectly."""
    own = set(INCLUDE.findall(text_of(name)))
    return own | {each for header in own for each in included(header)}
