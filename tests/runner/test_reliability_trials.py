"""launchopt reliability: hostile input and limits, from the files of scripts/fuzz.py and limits.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.results.hostile_folders import HOST
from support.results.mutations import raw_controls

from launchopt.analysis.tables.trials import FUZZ
from launchopt.analysis.tables.trials import LIMITS as LIMITS_SHAPE
from launchopt.errors import DataError
from launchopt.reading.shapes import ANY
from runner.reliability import campaign_markdown
from scripts import fuzz_score
from scripts import limits as limits_script
from scripts.fuzz_score import Finding, Score, Trial

LIMITS = ("open files", "processes")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What scripts/limits.py writes of two limits that end a command at once."""
    path = tmp_path_factory.mktemp("limits") / "limits.json"
    chosen = [limit for limit in limits_script.LIMITS if limit.name in LIMITS and limit.value != "64"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits_script, "LIMITS", chosen)
        assert limits_script.main([*LIMITS, "--json", str(path)]) == 0
    about: dict[str, Any] = json.loads(path.read_text())
    return about


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: dict[str, Any]) -> Path:
    """The committed campaign with both files."""
    for each in (ROOT / "outputs/reference/reliability").iterdir():
        shutil.copy(each, tmp_path)
    monkeypatch.setattr(fuzz_score, "environment", lambda: HOST)
    score = Score.read(None, 0, ["folders", "overrides"])
    for number in range(1200):
        score.add(Trial("folders", number, ["report", "ncu"], [Finding("escape", "\x1b")] if number == 7 else []))
    score.add(Trial("overrides", 0, ["run"], []))
    score.write(tmp_path / "fuzz.json")
    (tmp_path / "limits.json").write_text(json.dumps(limited))
    return tmp_path


def section(folder: Path, name: str) -> str:
    return campaign_markdown(folder).split(f"### {name}\n")[1].split("\n### ")[0]


def test_hostile_input_is_counted(folder: Path) -> None:
    text = section(folder, "Hostile input")
    counts = "0 traceback, 0 hang, 0 memory, 0 outside, 1 escape, 0 code, 0 message"
    assert text.startswith(f"\n**1,201 hostile inputs: {counts}.** ")
    assert "| folders | 1,200 | 1 | escape (1) |\n| overrides | 1 | 0 | — |\n" in text
    assert "Commands started: ncu 1,200, report 1,200, run 1.\n\nFindings: folders 7: escape.\n" in text
    assert "| revision | aaaaaaaaaaaa, as committed |" in text


def test_names_in_the_file_are_escaped(folder: Path) -> None:
    bad = "\x1b[2J<b>\u202e"
    about = json.loads((folder / "fuzz.json").read_text())
    about |= {each: {bad: 1} for each in ("tried", "started", "counts")}
    about["findings"] = [{"what": bad, "number": 1, "kind": bad}]
    (folder / "fuzz.json").write_text(json.dumps(about | {"started_utc": bad, "processor": bad}))
    text = section(folder, "Hostile input")
    assert raw_controls(text) == ""
    assert "<b>" not in text
    assert text.count("\\x1b[2J") >= 7


def test_what_is_not_known_of_a_machine_is_a_dash(folder: Path) -> None:
    about = json.loads((folder / "fuzz.json").read_text())
    (folder / "fuzz.json").write_text(json.dumps(about | {"environment": dict.fromkeys(about["environment"])}))
    text = section(folder, "Hostile input")
    assert "| host | —, Python — |" in text
    assert "| revision | —, unknown whether it was changed |" in text


def test_limits_end_commands_in_a_line(folder: Path, limited: dict[str, Any]) -> None:
    text = section(folder, "Limits of the system")
    tried = [row for row in limited["rows"] if not row["not_tried"]]
    assert len(limited["rows"]) == 6
    assert text.startswith(f"\n**{len(tried)} commands below a limit: 0 tracebacks, 0 hung, 0 ended by a signal")
    assert {row["exit_code"] for row in tried} == {2}
    line = "error: ulimit -n: at most 16 open files are allowed, and launchopt needs 64"
    assert text.count(f" | {line} |\n") == 3


def test_a_fault_below_a_limit_is_counted_and_shown(folder: Path, limited: dict[str, Any]) -> None:
    row = {**limited["rows"][0], "not_tried": ""}
    rows = [row | {"exit_code": None}, row | {"exit_code": -11}, row | {"exit_code": 1, "traceback": True}]
    rows.append(row | {"exit_code": None, "not_tried": "no rights"})
    (folder / "limits.json").write_text(json.dumps(limited | {"rows": rows}))
    text = section(folder, "Limits of the system")
    assert "**3 commands below a limit: 1 tracebacks, 1 hung, 1 ended by a signal; 1 not tried.**" in text
    assert "| open files | 16 | run | none: hung | no |" in text
    assert "| open files | 16 | run | 1 | yes |" in text
    assert "| open files | 16 | run | — | — | — | not tried: no rights |" in text


@pytest.mark.parametrize("name", ["fuzz", "limits"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: {**about, "started_utc": 3}, "writes: started_utc"),
        (lambda about: {**about, "environment": None}, "writes: environment"),
        (lambda about: [], "writes: all of it"),
        (lambda about: {each: about[each] for each in about if each not in ("rows", "tried")}, "writes: "),
        (lambda about: {**about, "rows": [{}], "findings": [{}]}, "writes: "),
    ],
)
def test_a_file_of_another_form_is_refused(
    name: str, change: Callable[[Any], object], message: str, folder: Path
) -> None:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=f"not what scripts/{name}.py {message}"):
        campaign_markdown(folder)
    path.write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        campaign_markdown(folder)


def without(value: Any, shape: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of `value` that lack one key that a shape names."""
    if isinstance(shape, list):
        yield from ((key, [less, *value[1:]]) for key, less in without(value[0], shape[0]))
    elif isinstance(shape, dict):
        for key in shape.keys() - {ANY}:
            yield key, {name: each for name, each in value.items() if name != key}
            yield from ((inner, {**value, key: less}) for inner, less in without(value[key], shape[key]))


@pytest.mark.parametrize(("name", "shape"), [("fuzz", FUZZ), ("limits", LIMITS_SHAPE)])
def test_a_file_without_one_of_its_values_is_refused(name: str, shape: Any, folder: Path) -> None:
    path = folder / f"{name}.json"
    cut = list(without(json.loads(path.read_text()), shape))
    assert len(cut) >= 12
    for key, less in cut:
        path.write_text(json.dumps(less))
        with pytest.raises(DataError, match=f"not what scripts/{name}.py writes: .*{key}"):
            campaign_markdown(folder)
