"""What a test reads from the CUDA text: headers, structs word by word, enums and constants."""

from __future__ import annotations

import re
from pathlib import Path

from launchopt import kernels

FOLDER = Path(kernels.__file__).parent
FILES = sorted(each.relative_to(FOLDER).as_posix() for each in FOLDER.rglob("*.cu*"))
SOURCES = [name for name in FILES if name.endswith(".cu")]
HEADERS = [name for name in FILES if name.endswith(".cuh")]
INCLUDE = re.compile(r'^#include "(.*)"\n', re.MULTILINE)


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def included(name: str) -> set[str]:
    """Headers that a file includes, and those that these do."""
    own = set(INCLUDE.findall(text_of(name)))
    return own | {each for header in own for each in included(header)}


def without_comments(text: str) -> str:
    return re.sub(r"//.*", "", text)


def constant(text: str, name: str) -> int:
    """Of an enum, where a number is given."""
    found = re.findall(rf"[{{,]\s*{name} = (-?\d+)(?: << (\d+))?[,\s}}]", without_comments(text))
    assert len(found) == 1, f"{name}: {found}"
    value, shift = found[0]
    return int(value) << int(shift or 0)


def numbered(text: str, first: str) -> dict[str, int]:
    """The enum that begins with a name, by C's rules."""
    (body,) = re.findall(rf"enum \{{\s+({first}\b[^}}]*?)\s+\}};", without_comments(text))
    found: dict[str, int] = {}
    for each in body.split(","):
        name, _, value = (part.strip() for part in each.partition("="))
        found[name] = int(value, 0) if value else 1 + max(found.values(), default=-1)
    return found


def fields(text: str, struct: str) -> list[tuple[str, str]]:
    """Type and name of each word of a struct; of an array those of its elements, numbered."""
    (body,) = re.findall(rf"struct (?:alignas\(\d+\) )?{struct} \{{(.*?)\n\}};", text, re.DOTALL)
    found = []
    for declared in filter(None, (each.strip() for each in without_comments(body).split(";"))):
        kind, names = re.match(r"((?:const )?\w+\b)(.*)", declared, re.DOTALL).groups()
        for each in names.split(","):
            star, name, count = re.fullmatch(r"\s*(\**)\s*(\w+)(?:\[(\w+)\])?\s*", each).groups()
            places = [""] if count is None else range(constant(text, count))
            found += [(kind + star, f"{name}{place}") for place in places]
    return found


def names(text: str, struct: str) -> list[str]:
    return [name for _, name in fields(text, struct)]
