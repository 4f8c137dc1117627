"""What each version of a kernel brought: a file kept beside its last figures, as a table.

In: versions.json, `{"about": ..., "measures": {name: unit}, "versions": [{"kernel", "version", "change", "figures"}]}`,
figures by measure; what was not measured of a version is left out. The first sentence of a change is its line in the
table. Where there are any, also `"notes": [...]`, how figures were taken, `"runs"`, the version of each kernel that is
not history, `"goals": {name: most}`, and `"accounts": [{"what", "parts": {name: figure}, "unit"}]`, where the time of
one thing goes, in ns unless there is a unit. Out: Markdown, a table a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launchopt.errors import DataError
from launchopt.json_file import read_json

FILE = "versions.json"


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a kernel, what was changed to get there, and what was measured, in the units of `Versions`."""

    kernel: str
    version: int
    change: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Account:
    """What one thing is made of."""

    what: str
    parts: dict[str, float]
    unit: str


@dataclass(frozen=True, slots=True)
class Versions:
    """Those of some kernels on one machine."""

    about: str
    notes: tuple[str, ...]
    measures: dict[str, str]  # what was measured, and in which unit
    versions: tuple[Version, ...]
    goals: dict[str, float]  # of a measure
    runs: dict[str, int]  # of a kernel
    accounts: tuple[Account, ...]


def read_versions(path: Path) -> Versions:
    """DataError for a file that is none."""
    try:
        found = read_json(path)
        versions = tuple(_version(each) for each in found["versions"])
        measures = {str(name): str(unit) for name, unit in found["measures"].items()}
        goals = _figures(found.get("goals", {}))
        accounts = tuple(map(_account, found.get("accounts", [])))
        runs = {str(kernel): int(version) for kernel, version in found.get("runs", {}).items()}
        made = Versions(str(found["about"]), _notes(found.get("notes", [])), measures, versions, goals, runs, accounts)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise DataError(path, None, f"not a list of versions ({type(error).__name__}: {error})") from None
    if strange := {name for each in (goals, *(each.figures for each in versions)) for name in each} - measures.keys():
        raise DataError(path, None, f"figures of no measure: {', '.join(sorted(strange))}")
    if missing := runs.items() - {(each.kernel, each.version) for each in versions}:
        raise DataError(path, None, f"no such version: {', '.join(f'{kernel} {of}' for kernel, of in sorted(missing))}")
    return made


def _version(row: dict[str, Any]) -> Version:
    return Version(str(row["kernel"]), int(row["version"]), str(row["change"]), _figures(row["figures"]))


def _account(row: dict[str, Any]) -> Account:
    return Account(str(row["what"]), _figures(row["parts"]), str(row.get("unit", "ns")))


def _notes(found: object) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise TypeError("notes are no list")
    return tuple(map(str, found))


def _figures(found: dict[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in found.items()}


def versions_markdown(found: Versions) -> str:
    """A table a kernel, with the measures that any of its versions has; what runs is in bold."""
    return "\n".join(_lines(found))


def _lines(found: Versions) -> Iterator[str]:
    yield found.about
    for kernel in dict.fromkeys(each.kernel for each in found.versions):
        own = [each for each in found.versions if each.kernel == kernel]
        names = [name for name in found.measures if any(name in each.figures for each in own)]
        yield f"\n**{kernel}**\n"
        yield "| | " + " | ".join(["what changed", *(f"{name}, {found.measures[name]}" for name in names)]) + " |"
        yield "| ---: | --- |" + " ---: |" * len(names)
        for each in own:
            cells = [str(each.version), _first_sentence(each.change)[0], *_cells(each.figures, names)]
            runs = found.runs.get(kernel) == each.version
            yield "| " + " | ".join(f"**{cell}**" if runs and i != 1 else cell for i, cell in enumerate(cells)) + " |"
        if found.goals.keys() & set(names):
            yield "| " + " | ".join(["goal", "", *_cells(found.goals, names)]) + " |"
        if more := [(each.version, _first_sentence(each.change)[1]) for each in own if _first_sentence(each.change)[1]]:
            yield "\nMore on these:\n"
            yield from (f"- {version}: {text}" for version, text in more)
    if found.notes:
        yield "\nHow these figures were taken:\n"
        yield from (f"- {note}" for note in found.notes)
    for account in found.accounts:
        parts = (f"{name} {value:,.4g} {account.unit}" for name, value in account.parts.items())
        yield f"\n{account.what}: " + ", ".join(parts) + "."


def _first_sentence(change: str) -> tuple[str, str]:
    """And what comes behind it: a cell of a table is no place for both."""
    first, _, more = change.partition(". ")
    return first, more


def _cells(figures: dict[str, float], names: list[str]) -> list[str]:
    return [f"{figures[name]:.4g}" if name in figures else "—" for name in names]
