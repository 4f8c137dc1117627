"""scripts/soak.py: it passes if nothing is lost, and fails if something is."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of

from launchopt.queue.ring import Ring
from launchopt.recording.environment import environment

SCRIPT = ROOT / "scripts/soak.py"


@pytest.fixture(scope="module")
def soak() -> Any:
    return importlib.import_module("scripts.soak")


def test_a_million_commands_are_all_there(tmp_path: Path) -> None:
    kept = tmp_path / "soak.json"
    command = [sys.executable, str(SCRIPT), "--records", "1e6", "--json", str(kept)]
    done = subprocess.run(command, env=environ_of(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("none of 1,000,000 commands lost, ")
    figures = json.loads(kept.read_text())
    assert (figures["records"], figures["lost"]) == (1_000_000, 0)
    assert figures["records_per_s"] == pytest.approx(figures["records"] / figures["seconds"])
    assert f", {figures['batches']:,} batches" in done.stdout
    assert set(figures["memory"]) == {"consumer", "producer"}
    memory = figures["memory"]["consumer"]  # the producer may have ended before the end of the only lap
    assert 0 < memory["first_bytes"] == memory["last_bytes"] == memory["peak_bytes"]
    revision = {key: figures["environment"].get(key) for key in ("git_revision", "git_dirty")}
    assert revision == {key: environment().get(key) for key in revision}
    assert [path.name for path in tmp_path.iterdir()] == ["soak.json"]


def test_a_missing_folder_is_an_error_at_the_start(
    soak: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        soak.main(["--records", "1e15", "--json", str(tmp_path / "none/soak.json")])
    assert ended.value.code == 2
    assert f"{tmp_path / 'none'} is no folder" in capsys.readouterr().err


def test_a_failed_write_is_an_error(soak: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--records", "1000", "--json", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: {tmp_path}: cannot be written (Is a directory)\n"
    assert captured.out.endswith(" batches\n")


def test_memory_has_first_last_and_peak(soak: Any) -> None:
    memory = soak.Memory()
    for held_bytes in (5, 9, 7):
        memory.add_lap(held_bytes)
    assert (memory.first_bytes, memory.last_bytes, memory.peak_bytes) == (5, 7, 9)


def test_the_producer_does_not_outlive_a_killed_soak() -> None:
    command = [sys.executable, str(SCRIPT), "--records", "1e12"]
    with psutil.Popen(command, env=environ_of(), stdout=subprocess.PIPE, text=True) as running:
        children = []
        try:
            assert "commands" in running.stdout.readline(), "the first lap"
            children = running.children()
            running.kill()
            _, alive = psutil.wait_procs(children, timeout=60)
            assert len(children) >= 2, "producer, and Python's tracker of shared memory"
            assert [child.pid for child in alive] == []
        finally:
            for process in (running, *children):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.mark.parametrize("records", ["0", "1.5", "nan", "x"])
def test_an_invalid_number_is_refused(records: str, soak: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        soak.main(["--records", records])
    assert ended.value.code == 2
    assert "--records" in capsys.readouterr().err


COMMANDS = 1000


def run(soak: Any, change: Any) -> None:
    """Run a lap in this process, over commands that `change` modifies on their way."""
    records = change(soak.numbered(0, 0, COMMANDS))
    with Ring.create(soak.CAPACITY) as ring:
        assert ring.push(records) == len(records)
        ring.close()
        soak.Soak(ring).lap(0, COMMANDS)


def test_a_lap_as_it_should_be(soak: Any) -> None:
    run(soak, lambda records: records)


def swapped(records: Any) -> Any:
    records[[3, 4]] = records[[4, 3]]
    return records


def changed(records: Any) -> Any:
    records["slot_b"][500] += 1
    return records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records[:-1], "the ring was closed after 999 commands"),
        (lambda records: np.delete(records, 7), "instead of "),
        (lambda records: np.insert(records, 7, records[7]), "instead of "),
        (swapped, "instead of "),
        (changed, "instead of "),
    ],
    ids=["last lost", "one lost", "one twice", "out of turn", "changed"],
)
def test_a_lost_or_changed_command_is_named(change: Any, message: str, soak: Any) -> None:
    with pytest.raises(soak.LostError, match=f"^lap 0: {message}"):
        run(soak, change)


def test_a_batcher_that_loses_a_command_is_found(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    note = soak.Soak._note

    def forgetful(self: Any, batch: Any, recorder: Any) -> None:
        if self.batches == 3:
            self.batches += 1
        else:
            note(self, batch, recorder)

    monkeypatch.setattr(soak.Soak, "_note", forgetful)
    with pytest.raises(soak.LostError, match="lap 0: 64 of 1000 commands never ran"):
        run(soak, lambda records: records)
