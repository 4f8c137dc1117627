"""The commands of parts run as they do on the machine of a user."""

from __future__ import annotations

import sys

import pytest

from scripts.reference_machine import Place
from scripts.reference_running import Running


def test_a_command_keeps_bytecode_though_the_container_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    words = [sys.executable, "-c", "import sys; sys.exit(7 if sys.dont_write_bytecode else 3)"]
    assert Running().ran(words, 30, Place())[0] == 3
