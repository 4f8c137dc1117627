"""--json is one option: alone it prints, with a name it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner import budget, reading

SETTINGS = ["launches_per_token=1200", "launch_us=5", "tokens_per_day=10e6"]


def test_alone_it_prints_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main([*SETTINGS, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content) == ["schema_version", "lines", "assumptions"]
    assert content["schema_version"] == reading.JSON_VERSION


def test_with_a_name_it_writes_the_same_beside_the_usual_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget.main([*SETTINGS, "--json"]) == 0
    printed = capsys.readouterr().out
    assert budget.main([*SETTINGS, "--json", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().out.startswith("|")
    assert (tmp_path / "a.json").read_text() == printed


def test_a_word_after_it_that_is_no_json_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        budget.main(["--json", "summary.parquet"])
    assert ended.value.code == 2
    assert "summary.parquet: the name must end in .json; without a name, put the option last" in capsys.readouterr().err
