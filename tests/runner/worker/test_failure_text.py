"""A child's error says which mode was being prepared."""

from __future__ import annotations

from launchopt.errors import RunError
from runner.worker.child import _text


def test_notes_of_an_error_follow_its_message() -> None:
    error = RunError("no kernel")
    error.add_note("while graph was prepared")
    assert _text(error, str(error)) == "no kernel; while graph was prepared"
    assert _text(RunError("no kernel"), "no kernel") == "no kernel"
