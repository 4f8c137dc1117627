"""launchopt's CUDA modules, imported with stand-ins for CuPy, nvmath and cuda-bindings.

A module of launchopt is *bound* if it imports such a library at its top, or imports a bound module there. Tests use
copies of the bound modules, bound to the stand-ins. Modules that were imported with the real libraries stay untouched.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import launchopt
from support.cuda.fake_nvmath import library_modules
from support.paths import ROOT

NAMES = ("cupy", "nvmath", "cuda")
IMPORT = re.compile(r"^(?:import ([\w.]+)|from ([\w.]+) import (.+))", re.MULTILINE)

_copies: dict[str, ModuleType] = {}
_depth = [0]


@cache
def bound_modules() -> frozenset[str]:
    """Return the names of launchopt's bound modules, read from their sources."""
    imports = {}
    for path in (ROOT / "launchopt").rglob("*.py"):
        found = set[str]()
        for plain, package, names in IMPORT.findall(path.read_text(encoding="utf-8")):
            leaves = re.findall(r"(\w+)(?: as \w+)?", names)
            found |= {plain or package, *(f"{package}.{leaf}" for leaf in leaves)}
        imports[".".join(path.relative_to(ROOT).with_suffix("").parts)] = found
    bound = {name for name, found in imports.items() if any(each.split(".")[0] in NAMES for each in found)}
    while more := {name for name, found in imports.items() if found & bound} - bound:
        bound |= more
    return frozenset(bound)


@contextmanager
def stand_ins() -> Iterator[None]:
    """Inside, the libraries are stand-ins, and bound modules are copies that use them."""
    if _depth[0]:
        yield
        return
    before = {name: module for name, module in sys.modules.items() if _is_replaced(name)}
    for name in before:
        _remove(name)
    sys.modules.update(library_modules())
    for name, module in _copies.items():
        _put(name, module)
    _depth[0] += 1
    try:
        yield
    finally:
        _depth[0] -= 1
        for name in [name for name in sys.modules if _is_replaced(name)]:
            if name in bound_modules():
                _copies[name] = sys.modules[name]
            _remove(name)
        for name, module in before.items():
            _put(name, module)


def imported(name: str) -> ModuleType:
    """Return the copy of a bound module."""
    with stand_ins():
        return importlib.import_module(name)


def copies() -> list[ModuleType]:
    """Return the bound modules that were imported so far; call it inside `stand_ins`."""
    return [module for name, module in sys.modules.items() if name in bound_modules()]


def _is_replaced(name: str) -> bool:
    return name.split(".")[0] in NAMES or name in bound_modules()


def _put(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    package, _, leaf = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], leaf, module)


def _remove(name: str) -> None:
    del sys.modules[name]
    package, _, leaf = name.rpartition(".")
    if package.startswith(launchopt.__name__):
        vars(sys.modules[package]).pop(leaf, None)
