"""scripts/reference.py: parts are measured once, by a clean revision; a part that failed is named and tried again."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS

from launchopt.devices.cpu.info import cpu_info
from runner.bench.__main__ import SUITES
from runner.provenance.origins import origin
from scripts import reference_states
from scripts.reference_check import mistake
from scripts.reference_goals import GOAL_PARTS, WATERFALL_PARTS
from scripts.reference_machine import machine, places
from scripts.reference_part import Part, run_words
from scripts.reference_parts import CPU_BENCHES, GPU_BENCHES, PAIR_BENCHES, PARTS
from scripts.reference_running import Running

REVISION = "f" * 40
SMALL = "workload=gemv_micro workload.m=16 workload.k=64 workload.cache=hot"
FEW = f"{SMALL} workload.commands=500 mode=baseline against=[] repeats=1"


def of(folder: str, words: str, minutes: float = 2, device: str = "cpu") -> Part:
    return Part(folder, device, minutes, (run_words(words, device=device),))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", REVISION)
    return importlib.import_module("scripts.reference")


def test_parts_are_measured_once_and_failures_are_said(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (
        of("cpu/small", FEW),
        of("cpu/wrong", f"{SMALL} mode=bacthed"),
        of("cpu/late", f"{SMALL} workload.commands=100000 repeats=50", minutes=0.001),
        of("gpu/other", FEW, device="cuda"),
        of("cpu/traced", "arrival.path={trace}")._replace(needs="some.csv"),
        of("cpu/programmed", FEW)._replace(program="no-such-program"),
    )
    monkeypatch.setitem(reference.TRACES, "some.csv", "its source")
    assert reference.main(["--output", str(tmp_path)], parts) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "cpu/small: done after" in lines[1]
    assert f" on {cpu_info().name}" in lines[1]
    assert "cpu/wrong: failed after" in lines[3]
    assert "mode=bacthed" in lines[3]
    assert f"longer than 0.001 minutes: {parts[2].commands[0]}" in lines[5]
    assert lines[6] == "gpu/other: skipped, needs a GPU"
    assert lines[7].startswith("cpu/traced: skipped, needs some.csv below --traces ")
    assert lines[7].endswith("(its source)")
    assert lines[8] == "cpu/programmed: skipped, needs no-such-program on the PATH"

    manifest = json.loads((tmp_path / "cpu/small/manifest.json").read_text())
    assert manifest["part"]["commands"] == [*parts[0].commands]
    assert manifest["part"]["before"]["processor"]
    assert origin(tmp_path / "cpu/small/manifest.json").revision == REVISION

    assert reference.main(["--list", "--output", str(tmp_path)], parts) == 0
    states = [line[:12].strip() for line in capsys.readouterr().out.splitlines()]
    assert states == ["done", "failed", "out of time", *["not tried"] * 3]

    assert reference.main(["--only", "cpu/small", "--output", str(tmp_path)], parts) == 0
    assert capsys.readouterr().out == "cpu/small: done before\n"


def test_a_part_of_another_revision_or_command_is_not_done(reference: Any, tmp_path: Path) -> None:
    part = of("cpu/small", SMALL)
    folder = tmp_path / "cpu/small"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    saved = {"state": "done", "commands": [*part.commands], "revision": REVISION}

    def state(part: Part = part, revision: str = REVISION, **more: object) -> str:
        (tmp_path / reference_states.FILE).write_text(json.dumps({part.folder: saved | more}))
        return str(reference.state_of(part, tmp_path, revision)["state"])

    assert state() == "done"
    assert state(revision="e" * 40) == "not tried"
    assert state(of("cpu/small", FEW)) == "not tried"
    assert state(dirty=True) == "not tried"
    (folder / "manifest.json").unlink()
    assert state() == "not tried"


def test_no_part_begins_that_does_not_fit_the_time_left(
    reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (of("cpu/long", FEW)._replace(seconds=600), of("cpu/likely", f"{SMALL} mode=bacthed")._replace(seconds=9))
    assert reference.main(["--output", str(tmp_path), "--minutes", "5"], parts) == 1
    left, *tried = capsys.readouterr().out.splitlines()
    assert left.startswith("cpu/long: left, takes about 600 s, and ")
    assert "cpu/likely: failed after" in tried[1]
    assert reference.main(["--list", "--output", str(tmp_path)], parts) == 0
    assert "600 s" in capsys.readouterr().out


def test_on_several_gpus_each_part_runs_once_on_a_gpu_and_cores_of_its_own(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.reference_machine.usable", lambda: [*range(8)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    parts, ran, both = [of(f"cpu/{at}", FEW) for at in range(6)], [], threading.Barrier(2, timeout=60)

    def ran_command(running: Running, words: list[str], limit_s: float, place: Any) -> tuple[int, str]:
        both.wait()
        ran.append((place.words(words)[:3], place.environment()))
        return 1, "stopped"

    monkeypatch.setattr(Running, "ran", ran_command)
    assert reference.main(["--output", str(tmp_path), "--gpus", "2"], parts) == 1
    of_gpu = [
        (["taskset", "-c", cores], {"CUDA_VISIBLE_DEVICES": gpu}) for gpu, cores in (("0", "0,1,2,3"), ("1", "4,5,6,7"))
    ]
    assert [ran.count(each) for each in of_gpu] == [3, 3]
    assert {*reference_states.read_states(tmp_path)} == {part.folder for part in parts}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert [place.gpu for place in places(2)] == ["2", "3"]
    about = machine("cpu", places(2)[1])
    assert (about["at_once"], about["cores"]) == (2, [4, 5, 6, 7])


def test_on_several_gpus_the_longest_parts_begin_first(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.reference_machine.usable", lambda: [*range(8)])
    parts = [of(f"cpu/{seconds}", FEW)._replace(seconds=seconds) for seconds in (20, 50, 10, 40)]
    ran = list[float]()

    def measured(parts: Iterable[Part], session: Any) -> int:
        ran.extend(part.seconds for part in parts)
        return 0

    monkeypatch.setattr(reference, "measure", measured)
    assert reference.main(["--output", str(tmp_path), "--gpus", "2"], parts) == 0
    assert ran == [50, 40, 20, 10]


def test_a_part_of_two_gpus_has_them_and_twice_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.reference_machine.usable", lambda: [*range(8)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: name)
    found = [(place.gpu, [*place.cores], place.at_once) for place in places(4, 2)]
    assert found == [("0,1", [0, 1, 2, 3], 2), ("2,3", [4, 5, 6, 7], 2)]
    assert places(1, 2) == []


def test_without_enough_gpus_a_part_is_skipped(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "machine", lambda device, place: {"gpus": [{"name": "a GPU"}]})
    assert reference.main(["--output", str(tmp_path)], (of("cpu/two", FEW)._replace(gpus=2),)) == 0
    assert capsys.readouterr().out == "cpu/two: skipped, needs 2 GPUs, and there is 1\n"


def test_uncommitted_changes_are_refused_or_marked(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"git_revision": REVISION, "git_dirty": True}
    monkeypatch.setattr(reference, "environment", lambda: about)
    parts, words = (of("cpu/small", FEW),), ["--output", str(tmp_path / "new")]
    assert reference.main(words, parts) == 2
    assert "has uncommitted changes" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert reference.main([*words, "--dirty"], parts) == 0
    assert json.loads((tmp_path / "new/cpu/small/manifest.json").read_text())["part"]["dirty"] is True
    about["git_dirty"] = False
    assert reference.main(["--list", *words], parts) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("not tried")


def test_only_takes_groups_and_names_the_nearest(
    reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [part.folder for part in reference.chosen(PARTS, ["gpu/ahead", "cpu/quick"])]
    assert folders == ["gpu/ahead/decode_1", "gpu/ahead/decode_16", "cpu/quick"]
    assert reference.main(["--only", "cpu/qick", "--output", str(tmp_path)]) == 2
    assert "did you mean cpu/quick?" in capsys.readouterr().err


def test_every_command_composes(reference: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 0
    assert capsys.readouterr().out.count(": ok\n") == len(PARTS)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (run_words("mode=bacthed"), "bacthed"),
        (run_words("workload.commands=-1"), "workload.commands"),
        (run_words("table=nothing"), "nothing"),
        ("python -m runner bench --devcie cpu", "--devcie"),
        ("python -m runner doctor --processes few", "few"),
        ("python -m scripts.nothing", "no such program"),
        ("env NSYS_OUT=x bash scripts/nothing.sh mode=batched", "no such script"),
        ("env NSYS_OUT=x bash scripts/nsys_profile.sh mode=bacthed", "bacthed"),
    ],
)
def test_check_names_a_mistake(reference: Any, capsys: pytest.CaptureFixture[str], command: str, why: str) -> None:
    assert reference.main(["--check"], (Part("cpu/wrong", "cpu", 1, (command,)),)) == 1
    assert why in capsys.readouterr().out


def test_every_part_has_a_folder_of_its_own_and_fits_ten_minutes() -> None:
    folders = [part.folder for part in PARTS]
    assert len(set(folders)) == len(folders)
    assert all(part.minutes <= 10 for part in PARTS)


def test_an_estimate_fits_the_limit_and_parts_of_a_model_are_all_there() -> None:
    assert all(part.seconds <= 60 * part.minutes for part in PARTS)
    assert len(GOAL_PARTS) == 7
    assert len(WATERFALL_PARTS) == 16
    assert all("device=cuda" in " ".join(part.commands) for part in (*GOAL_PARTS, *WATERFALL_PARTS))


def test_runs_that_are_compared_have_three_processes() -> None:
    for part in PARTS:
        jobs = [command for command in part.commands if " hydra.run.dir=" in command and "runner -m " not in command]
        runs = [command for command in jobs if "{folder}/traced" not in command]  # a twin tells only where time goes
        if len(runs) > 1 or part.folder in ("gpu/resident/llama_1", "gpu/resident/llama_16") or "azure" in part.folder:
            assert all(" processes=3" in command for command in runs), part.folder


def test_a_path_with_special_characters_is_quoted_for_a_run(reference: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "o'u, t=1")
    words = reference.words_of(run_words("mode=batched", device="cpu"), {"folder": folder})
    assert mistake(words) == ""
    assert words[-1] == "hydra.sweep.dir='{}'".format(folder.replace("'", "\\'"))
    assert reference.words_of("python -m runner bench --output {folder}", {"folder": folder})[-1] == folder


def test_a_replay_runs_on_the_cpu(reference: Any, tmp_path: Path) -> None:
    part = next(part for part in PARTS if part.folder == "gpu/azure_llama_3_8b/speed_10_none")
    tiny = "device=cpu model=tiny workload.cache=hot arrival.speed=1000 arrival.requests=null processes=1"
    commands = (f"{part.commands[0].replace('device=cuda', '')} {tiny}",)
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / part.needs).write_text((TESTS / "corpus/azure.csv").read_text())
    words = ["--output", str(tmp_path / "new"), "--traces", str(traces)]
    assert reference.main(words, (part._replace(device="cpu", commands=commands),)) == 0


def test_benchmarks_of_parts_exist() -> None:
    assert {*GPU_BENCHES, *PAIR_BENCHES, *CPU_BENCHES} == {*SUITES}


def test_the_error_of_a_part_is_told_and_not_the_empty_reports_behind_it(
    reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = r"ValueError: too far\nError in sys.excepthook:\n\nOriginal exception was:\n\n"
    wrong = f"python -c 'import sys; sys.exit(sys.stderr.write(\"{text}\"))'"
    folder = tmp_path / "not" / "made yet"
    assert reference.main(["--output", str(folder)], (of("cpu/wrong", FEW)._replace(commands=(wrong,)),)) == 1
    assert "ValueError: too far" in capsys.readouterr().out.splitlines()[1]
