"""scripts/soak.py: it passes when nothing is lost, and would not if something were."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import environ_of

from launchopt.ring import Ring

SCRIPT = Path(__file__).parents[2] / "scripts/soak.py"


@pytest.fixture(scope="module")
def soak() -> Any:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_million_commands_are_all_there() -> None:
    command = [sys.executable, str(SCRIPT), "--records", "1e6"]
    done = subprocess.run(command, env=environ_of(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("none of 1,000,000 commands lost, ")


@pytest.mark.parametrize("records", ["0", "1.5", "nan", "x"])
def test_a_number_that_is_none_is_refused(records: str, soak: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        soak.main(["--records", records])
    assert ended.value.code == 2
    assert "--records" in capsys.readouterr().err


COMMANDS = 1000


def run(soak: Any, change: Any) -> None:
    """A lap in this process, of commands that were changed on their way."""
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
    ("change", "said"),
    [
        (lambda records: records[:-1], "the ring was closed after 999 commands"),
        (lambda records: np.delete(records, 7), "instead of "),
        (lambda records: np.insert(records, 7, records[7]), "instead of "),
        (swapped, "instead of "),
        (changed, "instead of "),
    ],
    ids=["last lost", "one lost", "one twice", "out of turn", "changed"],
)
def test_what_is_lost_or_changed_is_named(change: Any, said: str, soak: Any) -> None:
    with pytest.raises(soak.LostError, match=f"^lap 0: {said}"):
        run(soak, change)


def test_a_batcher_that_keeps_one_is_found(soak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    note = soak.Soak._note

    def forgetful(self: Any, batch: Any, recorder: Any) -> None:
        if self.batches == 3:
            self.batches += 1
        else:
            note(self, batch, recorder)

    monkeypatch.setattr(soak.Soak, "_note", forgetful)
    with pytest.raises(soak.LostError, match="lap 0: 64 of 1000 commands never ran"):
        run(soak, lambda records: records)
