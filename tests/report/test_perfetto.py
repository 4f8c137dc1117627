"""Timelines as files: what Perfetto reads, from recordings of any length, whole or not at all."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.results.recorded_runs import command_rows, kernel_rows, launch_rows, write_run, write_sweep

from launchopt.errors import DataError
from launchopt.recording import results
from launchopt.report import perfetto
from launchopt.report.perfetto import write_timeline


def read(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    events = json.loads(text)["traceEvents"]
    assert all({"ph", "name", "pid", "tid"} <= event.keys() for event in events)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    return list(events)


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_the_file_holds_every_recorded_row(tmp_path: Path, name: str) -> None:
    done = write_timeline([write_run(tmp_path / "run")], tmp_path / name)
    recorded = len(launch_rows("run")) + len(command_rows("run")) + len(kernel_rows("run"))
    assert (done.shown, done.recorded, done.repeats) == (recorded, recorded, 10)
    events = read(tmp_path / name)
    assert sum(event["name"] == "gemv_kernel" for event in events) == len(kernel_rows("run")) - 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_batches_of_rows_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run")
    write_timeline([folder], tmp_path / "one.json")
    monkeypatch.setattr(perfetto, "_BATCH", 7)
    write_timeline([folder], tmp_path / "other.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()


def test_a_limit_keeps_the_first_launches_of_every_repeat(tmp_path: Path) -> None:
    done = write_timeline([write_run(tmp_path / "run")], tmp_path / "cut.json", limit=120)
    assert done.shown <= 120 < done.recorded
    launches = [e for e in read(tmp_path / "cut.json") if e["ph"] == "X" and "strategy" in e["args"]]
    assert {e["pid"] for e in launches} == set(range(1, 11))
    assert all(0 in {e["args"]["launch"] for e in launches if e["pid"] == pid} for pid in range(1, 11))


def test_commands_alone_make_a_timeline(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", kernels=False)
    (folder / "launches.parquet").unlink()
    done = write_timeline([folder], tmp_path / "timeline.json")
    assert done.shown == len(command_rows("run"))
    assert {event["ph"] for event in read(tmp_path / "timeline.json")} == {"M", "b", "e"}


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.raises(DataError, match=r"record with record\.launches=all"):
        write_timeline([write_sweep(tmp_path / "sweep")], out)
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b")
    with pytest.raises(DataError, match="2 recorded runs: name one"):
        write_timeline([tmp_path / "runs"], out)
    with pytest.raises(DataError, match="cannot be written"):
        write_timeline([tmp_path / "runs" / "a"], tmp_path / "missing" / "out.json")
    results.write_rows(tmp_path / "runs" / "a" / "launches.parquet", results.HISTOGRAMS, [], {})
    with pytest.raises(DataError, match="not a recording of this project: lacks launch") as caught:
        write_timeline([tmp_path / "runs" / "a"], out)
    assert caught.value.exit_code == 2
    (tmp_path / "runs" / "a" / "launches.parquet").write_bytes(b"broken")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        write_timeline([tmp_path / "runs" / "a"], out)
    assert not out.exists()
