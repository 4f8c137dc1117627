"""Commands at the same time: in rounds of as many GPUs as there are, each with GPUs and cores of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import reference_machine
from scripts.side_by_side import Asked, main, parsed, placed, rounds

SAVE = '1 python -c \'import os, sys; open(sys.argv[1], "w").write(os.environ["CUDA_VISIBLE_DEVICES"])\' {}'


def test_commands_are_packed_in_their_order() -> None:
    asked = [Asked(count, [str(at)]) for at, count in enumerate((1, 1, 2, 2, 2, 4, 1))]
    assert [[each.gpus for each in together] for together in rounds(asked, 4)] == [[1, 1, 2], [2, 2], [4], [1]]


def test_cores_are_shared_by_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.reference_machine.usable", lambda: [*range(8)])
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    one, two = placed([Asked(1, []), Asked(2, [])], 4)
    assert (one.gpu, [*one.cores], one.at_once) == ("4", [0, 1], 2)
    assert (two.gpu, [*two.cores]) == ("5,6", [2, 3, 4, 5])


def test_each_command_sees_its_gpus_and_the_first_failure_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_machine, "_gpus_there", lambda: 2)
    monkeypatch.setattr(reference_machine, "usable", lambda: [*os.sched_getaffinity(0)] * 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first, second, third = (tmp_path / name for name in "abc")
    fails = "2 python -c 'raise SystemExit(3)'"
    assert main(["--gpus", "2", SAVE.format(first), SAVE.format(second), fails, SAVE.format(third)]) == 3
    assert [path.read_text() for path in (first, second)] == ["0", "1"]
    assert not third.exists()


@pytest.mark.parametrize(("visible", "cores"), [("0", 8), ("0,1", 1)])
def test_more_gpus_than_the_machine_has_gpus_or_cores_are_refused(
    visible: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_machine, "usable", lambda: [*range(cores)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    first, second = (SAVE.format(tmp_path / name) for name in "ab")
    assert main(["--gpus", "2", first, second]) == 2
    said = capsys.readouterr().err
    assert said.startswith("--gpus=2: must be from 1 to 1, the ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["python -m runner", "0 python", "2"])
def test_a_word_without_a_number_or_a_command_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus", "2", word]) == 2
    assert "must be a number of GPUs and a command" in capsys.readouterr().err
    assert main(["--gpus", "2", "4 true"]) == 2
    assert parsed("2 true").gpus == 2
