"""Modules that are not installed are named, in the order in which they were asked for."""

from __future__ import annotations

from launchopt.distribution import missing


def test_only_modules_that_are_not_installed_are_missing() -> None:
    assert missing("no_such_module", "numpy", "nor_this") == ["no_such_module", "nor_this"]
    assert missing("numpy") == missing() == []
