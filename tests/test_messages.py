"""Lines for the user: one line, printable, and cut with the rest in a file that the line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchopt import messages
from launchopt.errors import ConfigError, DataError
from launchopt.messages import MOST_CHARACTERS, MOST_FILES, print_error, say, shortened


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(messages.OWN, str(tmp_path))
    return tmp_path / "launchopt" / "messages"


def file_of(line: str) -> Path:
    return Path(line.rpartition("(all of it: ")[2].rstrip(")\n"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ([["graph", None], "engine"], "[[graph,null],engine]"),
        ({"a": [1, False]}, "{a:[1,false]}"),
        (0.5, "0.5"),
        ("None", "None"),
    ],
)
def test_an_error_shows_a_value_as_the_user_types_it(value: object, text: str) -> None:
    assert str(ConfigError("waterfall", value, "not a list")) == f"waterfall={text}: not a list"


def test_a_message_of_usual_length_is_whole_and_leaves_no_file(cache: Path) -> None:
    assert shortened("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    assert not cache.exists()


def test_a_long_message_is_cut_and_the_line_names_the_file_with_all_of_it(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "no \x1b[2J " + "y" * 5000 + "\nend"
    print_error(DataError("trace.json", 3, problem))
    line = capsys.readouterr().err
    assert line.startswith("error: trace.json:3: no \\x1b[2J yyy")
    assert len(line) <= MOST_CHARACTERS + 1
    assert line.count("\n") == 1
    assert file_of(line).parent == cache
    assert file_of(line).read_text() == f"error: trace.json:3: no \\x1b[2J {'y' * 5000} end\n"


def test_a_long_message_that_is_cut_keeps_what_to_type_instead(cache: Path) -> None:
    meant = "; did you mean table=waterfall_tiny?"
    line = shortened("error: table=waterfall: no such table; allowed: " + "decode, " * 100 + meant)
    assert line.endswith(f".txt){meant}")
    assert len(line) == MOST_CHARACTERS
    assert len(shortened("x" * 500 + "; did you mean " + "y" * 500)) == MOST_CHARACTERS


def test_the_newest_files_are_kept(cache: Path) -> None:
    lines = [shortened(f"{number} " + "x" * 500) for number in range(MOST_FILES + 5)]
    assert len(list(cache.iterdir())) == MOST_FILES
    assert file_of(lines[-1]).exists()


def test_without_a_cache_a_private_temporary_file_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(messages.OWN, str(tmp_path / "file"))
    monkeypatch.setattr(messages.tempfile, "tempdir", str(tmp_path))
    kept = file_of(shortened("z" * 500))
    assert kept.read_text() == "z" * 500 + "\n"
    assert kept.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(messages.tempfile, "tempdir", str(tmp_path / "file"))
    assert shortened("z" * 500) == "z" * (MOST_CHARACTERS - 3) + "..."


def test_a_name_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(Path("a\x1b[2J\nb\u202ec"))
    assert capsys.readouterr().out == "a\\x1b[2J b\\u202ec\n"
