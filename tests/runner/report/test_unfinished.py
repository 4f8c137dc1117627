"""A report names what did not end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.summary_rows import repeats, write

from runner.report import __main__ as report


def test_a_sweep_that_did_not_end_is_reported_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep"
    for job, about in enumerate(({"status": "ok"}, {"status": "interrupted", "repeats_done": 14})):
        folder = write(sweep / str(job), repeats(9, 9, run_id=str(job)))
        (folder / "manifest.json").write_text(json.dumps({"run_id": str(job), **about}))
    (sweep / "sweep.json").write_text(json.dumps({"counts": {"ok": 1, "interrupted": 1, "not run": 1}}))
    assert report.main([str(sweep)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        f"note: {sweep / '1'}: interrupted after 14 repeats",
        f"note: {sweep}: 1 job not run (resume=true runs them)",
    ]
