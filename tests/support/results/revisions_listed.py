"""A list of revisions with one in it, and results of that revision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launchopt.recording.manifest import SCHEMA_VERSION
from runner.provenance.origins import REVISIONS

REVISION = "a1" * 20
LISTED = {REVISION: {"commit": 7, "date": "2026-01-02", "code_sha1": "c0de"}}
CLEAN = {"git_revision": REVISION, "git_dirty": False}
MACHINE = {"device": {"name": "NVIDIA H200"}}


def put(folder: Path, environment: dict[str, Any], **more: Any) -> Path:
    """A manifest in a folder below one with a list of revisions."""
    (folder.parent / REVISIONS).write_text(json.dumps(LISTED))
    folder.mkdir(exist_ok=True)
    content = {"schema_version": SCHEMA_VERSION, "started_utc": "2026-01-03T04:05:06+00:00", **MACHINE, **more}
    (folder / "manifest.json").write_text(json.dumps(content | {"environment": environment}))
    return folder
