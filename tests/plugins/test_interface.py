"""The names that a plugin may use: docs/plugins.md lists them, and their members do not change unnoticed."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from support.paths import ROOT, TESTS

from launchopt import interface

GOLDEN = TESTS / "golden/plugin_interface.txt"
PAGE = (ROOT / "docs/plugins.md").read_text(encoding="utf-8").partition("### The names that a plugin may use")[2]
EXAMPLE = ROOT / "docs/examples/launchopt-example/launchopt_example"


def listed() -> list[str]:
    table = re.findall(r"^\| \w+ \| (`.*) \|$", PAGE, re.MULTILINE)
    return [name for line in table for name in re.findall(r"`(\w+)`", line)]


def of_device() -> tuple[str, ...]:
    """The methods of Device that the page names."""
    (sentence,) = re.findall(r"^Of `Device`, a plugin may use (.*?)\.", PAGE, re.MULTILINE)
    return tuple(re.findall(r"`(\w+)`", sentence))


def members(name: str) -> Iterator[str]:
    """Lines on a name: its parameters, the fields, attributes and methods of a class, the members of an enum."""
    thing = getattr(interface, name)
    if not isinstance(thing, type):
        yield f"{name}({', '.join(inspect.signature(thing).parameters)})" if inspect.isfunction(thing) else name
        return
    if not is_dataclass(thing) and inspect.isfunction(vars(thing).get("__init__")):
        yield f"{name}({', '.join(list(inspect.signature(thing.__init__).parameters)[1:])})"
    annotated = {each for kind in thing.__mro__ for each in vars(kind).get("__annotations__", ())}
    for member in sorted({*dir(thing), *annotated}):
        found = inspect.getattr_static(thing, member, None)
        function = getattr(found, "__func__", found)
        if inspect.isfunction(function):
            yield f"{name}.{member}({', '.join(inspect.signature(function).parameters)})"
        else:
            yield f"{name}.{member}"


def test_the_page_lists_the_names() -> None:
    assert sorted(listed()) == sorted(interface.__all__)


def test_what_plugins_rely_on_is_there_with_the_same_parameters() -> None:
    there = {line for name in interface.__all__ for line in members(name)}
    kept = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert {re.split(r"[.(]", line)[0] for line in kept} == set(interface.__all__)
    assert {line.partition("(")[0].removeprefix("Device.") for line in kept if line.startswith("Device.")} == {
        *of_device()
    }
    assert [line for line in kept if line not in there] == []


@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("*.py")), ids=lambda path: path.stem)
def test_the_example_uses_no_other_names(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("launchopt"):
            assert node.module == "launchopt.interface"
        if isinstance(node, ast.Import):
            assert not any(each.name.startswith("launchopt") for each in node.names)
