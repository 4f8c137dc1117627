"""The table of a kernel's versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launchopt.analysis.campaigns.versions import Versions, read_versions, versions_markdown
from launchopt.errors import DataError

GOOD: dict[str, Any] = {
    "about": "On a machine.",
    "measures": {"round trip": "us", "stream": "ns", "never": "s"},
    "versions": [
        {"kernel": "one", "version": 1, "change": "first", "figures": {"round trip": 6.02}},
        {"kernel": "one", "version": 2, "change": "faster", "figures": {"round trip": 3.5, "stream": 70}},
        {"kernel": "two", "version": 1, "change": "other", "figures": {"stream": 119.25}},
    ],
}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "versions.json"
    path.write_text(json.dumps(content))
    return path


def test_a_table_a_kernel_with_what_was_measured_of_it(tmp_path: Path) -> None:
    found = read_versions(written(tmp_path, GOOD))
    assert isinstance(found, Versions)
    assert versions_markdown(found).splitlines() == [
        "On a machine.",
        "",
        "**one**",
        "",
        "| | what changed | round trip, us | stream, ns |",
        "| ---: | --- | ---: | ---: |",
        "| 1 | first | 6.02 | — |",
        "| 2 | faster | 3.5 | 70 |",
        "",
        "**two**",
        "",
        "| | what changed | stream, ns |",
        "| ---: | --- | ---: |",
        "| 1 | other | 119.2 |",
    ]


def test_what_runs_is_in_bold(tmp_path: Path) -> None:
    lines = versions_markdown(read_versions(written(tmp_path, GOOD | {"runs": {"one": 2}}))).splitlines()
    assert [line for line in lines if "**" in line] == ["**one**", "| **2** | faster | **3.5** | **70** |", "**two**"]


def test_goals_and_accounts(tmp_path: Path) -> None:
    accounts = [
        {"what": "A command", "parts": {"poll": 2090, "rest": 4.4}},
        {"what": "Clock", "unit": "MHz", "parts": {"idle": 1980}},
    ]
    more = {"goals": {"round trip": 2}, "accounts": accounts}
    lines = versions_markdown(read_versions(written(tmp_path, GOOD | more))).splitlines()
    assert [line for line in lines if line.startswith("| goal")] == ["| goal |  | 2 | — |"]
    assert lines[-4:] == ["", "A command: poll 2,090 ns, rest 4.4 ns.", "", "Clock: idle 1,980 MHz."]


def test_a_table_has_the_first_sentence_of_a_change(tmp_path: Path) -> None:
    """What else there is to say is below it, and before the next kernel."""
    first = GOOD["versions"][0] | {"change": "first. It took 1.5 us. No more"}
    content = GOOD | {"versions": [first, *GOOD["versions"][1:]]}
    lines = versions_markdown(read_versions(written(tmp_path, content))).splitlines()
    assert lines[6:13] == [
        "| 1 | first | 6.02 | — |",
        "| 2 | faster | 3.5 | 70 |",
        "",
        "More on these:",
        "",
        "- 1: It took 1.5 us. No more",
        "",
    ]


def test_how_figures_were_taken_is_below_the_tables(tmp_path: Path) -> None:
    found = read_versions(written(tmp_path, GOOD | {"notes": ["one: by hand", "two: asleep"]}))
    lines = versions_markdown(found).splitlines()
    assert lines[-5:] == ["", "How these figures were taken:", "", "- one: by hand", "- two: asleep"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "not a list of versions"),
        ({}, "not a list of versions"),
        (GOOD | {"versions": [{"kernel": "one"}]}, "not a list of versions"),
        (GOOD | {"measures": {"stream": "ns"}}, "figures of no measure: round trip"),
        (GOOD | {"goals": {"speed": 1}}, "figures of no measure: speed"),
        (GOOD | {"runs": {"two": 2}}, "no such version: two 2"),
        (GOOD | {"runs": {"two": "last"}}, "not a list of versions"),
        (GOOD | {"notes": "one"}, "notes are no list"),
        (GOOD | {"accounts": [{"what": "nothing"}]}, "not a list of versions"),
        (GOOD | {"versions": [GOOD["versions"][0] | {"figures": {"round trip": "fast"}}]}, "not a list of versions"),
    ],
)
def test_what_is_none_is_refused(content: object, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=problem):
        read_versions(written(tmp_path, content))


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    with pytest.raises(DataError, match="FileNotFoundError"):
        read_versions(path)
    path.write_text("{")
    with pytest.raises(DataError, match="JSONDecodeError"):
        read_versions(path)
