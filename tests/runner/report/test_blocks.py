"""The tables of a README: brought up to date, checked, and refused where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results.summary_rows import everything, repeats, write

from runner.report import __main__ as report


def test_readme_is_brought_up_to_date_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "outputs" / "a", everything())
    write(tmp_path / "outputs" / "b", repeats(9, 9, 9))
    blocks = [f"<!-- report:outputs/{name} -->old<!-- /report:outputs/{name} -->" for name in "ab"]
    readme = tmp_path / "README.md"
    stale = f"before\n{blocks[0]}\nbetween\n{blocks[1]}\nafter\n"
    readme.write_text(stale)

    assert report.main(["--readme", str(readme), "--check"]) == 1
    assert readme.read_text() == stale
    assert "out of date" in capsys.readouterr().err

    assert report.main(["--readme", str(readme)]) == 0
    fresh = readme.read_text(encoding="utf-8")
    assert fresh.startswith("before\n<!-- report:outputs/a -->\n")
    assert fresh.endswith("\n<!-- /report:outputs/b -->\nafter\n")
    assert "old" not in fresh.replace("cold", "")
    assert "19.8x" in fresh
    assert report.main(["--readme", str(readme), "--check"]) == 0
    assert report.main(["--readme", str(readme)]) == 0
    assert readme.read_text(encoding="utf-8") == fresh


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no tables", "README.md: no <!-- report:FOLDER --> marker"),
        ("\n<!-- report:a -->", "README.md:2: marker <!-- report:a --> is not paired"),
        ("<!-- report:a -->\n<!-- /report:b -->", "README.md:1: marker <!-- report:a --> is not paired"),
        ("<!-- report:absent --><!-- /report:absent -->", "absent: no such folder"),
    ],
)
def test_readme_that_cannot_be_synced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    assert report.main(["--readme", str(readme)]) == 2
    assert problem in capsys.readouterr().err
    assert readme.read_text() == text
