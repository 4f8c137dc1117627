"""What a report warns of."""

from __future__ import annotations

from pathlib import Path

from support.results.recorded_runs import manifest, write_run

from launchopt.recording.results import write_manifest
from launchopt.report.source import read_source
from launchopt.report.warnings import Severity, warnings


def test_an_interrupted_run_and_one_under_way_did_not_end_well(tmp_path: Path) -> None:
    for status in ("interrupted", "running"):
        write_manifest(write_run(tmp_path / status, status), manifest(status, status=status))
    found = [one.text for one in warnings(read_source([tmp_path])) if one.severity is Severity.ERROR]
    assert found == ["2 of 2 runs did not end well: interrupted (interrupted), running (running)."]
