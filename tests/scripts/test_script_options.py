"""The command lines of scripts: a mistake is one line that names the nearest option, and nothing runs."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
from support.paths import ROOT

SCRIPTS = {
    "advised": ("--reqests=1", "--requests"),
    "dataset_example": ("--hlep", "--help"),
    "fuzz": ("--minuts=1", "--minutes"),
    "device_use": ("--hlep", "--help"),
    "goal_pages": ("--hlep", "--help"),
    "kill_campaign": ("--kils=1", "--kills"),
    "limits": ("--jsn=x.json", "--json"),
    "peer_torch": ("--modles=tiny", "--models"),
    "readme_figures": ("--hlep", "--help"),
    "reference_kept": ("--hlep", "--help"),
    "reference": ("--lsit", "--list"),
    "reproduced": ("--hlep", "--help"),
    "revisions": ("--hlep", "--help"),
    "side_by_side": ("--gpsu=2", "--gpus"),
    "stale": ("--chekc", "--check"),
    "soak": ("--recrods=1e6", "--records"),
    "cpp_loop.measure": ("--otput=x", "--output"),
}


def test_every_script_with_options_is_tried() -> None:
    found = {path.stem for path in (ROOT / "scripts").glob("*.py") if "def main(" in path.read_text()}
    assert found == {name for name in SCRIPTS if "." not in name}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unknown_option_is_refused_and_the_nearest_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"scripts/{name}.py"])
    main = importlib.import_module(f"scripts.{name}").main
    wrong, right = SCRIPTS[name]
    with pytest.raises(SystemExit) as harmless:
        main(["--help"])
    assert harmless.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main([wrong])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"did you mean {right}?" in said
    assert f"usage: python scripts/{name}.py" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_exit_code_of_a_wrong_option_stands_with_the_others(name: str) -> None:
    _, _, codes = str(importlib.import_module(f"scripts.{name}").__doc__).partition("Exit code")
    assert not codes or re.search(r"\b2\b", codes)


@pytest.mark.parametrize("words", [["--minutes=nan"], ["--count=0"], ["overides"]])
def test_a_value_out_of_range_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("scripts.fuzz").main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_a_soak_of_a_part_of_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("scripts.soak").main(["--records=0.5"])
    assert ended.value.code == 2
    assert "--records" in capsys.readouterr().err
