"""The model of the tests of launchopt advise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.advices import MODEL


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "own" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(MODEL))
    return path
