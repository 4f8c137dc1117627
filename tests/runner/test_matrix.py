"""The matrix of modes, workloads, devices and dtypes: every cell says something, and what it says is so."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.ended_runs import Keeper
from support.thorough import is_thorough

from launchopt.errors import DataError
from launchopt.modes import MODES, mode_class
from launchopt.recording import results
from launchopt.workloads import workloads
from launchopt.workloads.base import Steps
from launchopt.workloads.decode import Decode
from launchopt.workloads.gemv import Gemv
from launchopt.workloads.list import GemmList
from launchopt.workloads.moe import Moe
from launchopt.workloads.prefill import Prefill
from launchopt.workloads.trace import Trace
from runner import matrix
from runner.config.loading import hydra_of
from runner.matrix import DTYPES, KINDS, Matrix, build_matrix, matrix_markdown, sync_matrix

HEAVY = ("cupy", "nvmath", "cuda", "torch", "triton")
# As little as has company to batch with.
SMALL = {
    Gemv: "workload.commands=48 workload.replicas=8",
    Prefill: "workload.prompts=2 workload.tokens=8",
    Decode: "workload.requests=3 workload.tokens=2",
    Steps: "workload.requests=3 workload.tokens=2",
    Trace: "workload.repeat=3",
    GemmList: "workload.repeat=3",
    Moe: "workload.replicas=2",
}
COMMON = "device=cpu workload.cache=hot mode=baseline against=[all] batching.max_batch=4 record.launches=none"


@pytest.fixture(scope="module")
def answered() -> Matrix:
    return build_matrix()


def test_every_cell_is_a_yes_or_a_reason(answered: Matrix) -> None:
    assert answered.answers.keys() == set(product(MODES, answered.workloads, KINDS, DTYPES))
    presets = {path.stem for path in (ROOT / "conf/workload").glob("*.yaml")}
    assert set(answered.workloads) == presets | {*workloads()} - {"gemv"}
    for cell, why in answered.answers.items():
        assert why is None or (why.strip() and "\n" not in why), cell


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_runs_something_and_baseline_everything(mode: str, answered: Matrix) -> None:
    runs = [why is None for (name, *_), why in answered.answers.items() if name == mode]
    assert any(runs) is not mode_class(mode).quantises_inputs, "the matrix has no quantised weights"
    assert mode != "baseline" or all(runs)


def test_asking_loads_neither_cuda_nor_torch() -> None:
    script = (
        "import sys; from runner.matrix import build_matrix; build_matrix();"
        f"print(*sorted({{name.partition('.')[0] for name in sys.modules}} & set({HEAVY})))"
    )
    call = [sys.executable, "-c", script]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.split(), done.stderr, done.returncode) == ([], "", 0)


def small(workload: str, folder: Path) -> str:
    """The overrides that make a run of a workload small, by the settings it has."""
    with hydra_of():
        settings = type(matrix._config(workload, folder).workload)
    few = next(text for kind, text in SMALL.items() if issubclass(settings, kind))
    return few if settings is Gemv else " ".join([*matrix.smallest(settings, folder), few])


def dtypes_of(number: int) -> list[str]:
    """The dtypes that the workload with this number is tried in."""
    return list(DTYPES) if is_thorough() else [DTYPES[number % len(DTYPES)]]


def test_every_yes_on_the_cpu_runs_and_is_verified(answered: Matrix, tmp_path: Path) -> None:
    """Each workload runs in all modes that can run it, in one dtype; with --thorough in each. One process does it."""
    tried = {workload: tuple(dtypes_of(number)) for number, workload in enumerate(answered.workloads)}
    assert {dtype for dtypes in tried.values() for dtype in dtypes} == set(DTYPES)
    keeper = Keeper(tmp_path / "kept.stderr")
    try:
        for workload in answered.workloads:
            few = small(workload, tmp_path)
            for dtype in tried[workload]:
                folder = tmp_path / f"{workload}-{dtype}"
                folder.mkdir()
                ran = keeper.run(f"{COMMON} workload={workload} workload.dtype={dtype} {few}", folder)
                assert (ran.exit_code, ran.stderr) == (0, "")
    finally:
        keeper.close()
    rows = results.read_summaries([tmp_path])
    cells = {(row["mode"], row["workload"], row["device"], row["dtype"]) for row in rows}
    here = {mode for mode in MODES if mode_class(mode).lacks() is None}
    assert cells == {
        (mode, workload, kind, dtype)
        for (mode, workload, kind, dtype), why in answered.answers.items()
        if why is None and kind == "cpu" and mode in here and dtype in tried[workload]
    }
    for row in rows:
        assert (row["status"], row["verified"]) == ("ok", True), (row["mode"], row["workload"], row["dtype"])
    for work in {(row["workload"], row["dtype"]) for row in rows}:
        alike = [row for row in rows if (row["workload"], row["dtype"]) == work]
        assert len({(row["commands"], row["bytes_moved"], row["tokens"]) for row in alike}) == 1, work


def made_up(**different: str | None) -> Matrix:
    """Two workloads and the modes there are: yes everywhere, but for what `workload_kind_dtype=reason` says."""
    answers = dict.fromkeys(product(MODES, ("one", "two"), KINDS, DTYPES))
    for name, why in different.items():
        workload, kind, dtype = name.split("_")
        answers[MODES[0], workload, kind, dtype] = why
    return Matrix(("one", "two"), answers, {})


def test_cells_say_what_the_dtypes_have_in_common() -> None:
    assert f"| {MODES[0]} | cpu, cuda | yes | yes |" in matrix_markdown(made_up())
    alike = {f"one_cpu_{dtype}": "no | chance" for dtype in DTYPES}
    text = matrix_markdown(made_up(**alike, two_cpu_bf16="wide", two_cuda_fp32="no | chance"))
    assert f"| {MODES[0]} | cpu | a | fp32, fp16: yes; bf16: b |" in text
    assert f"| {MODES[0]} | cuda | yes | fp32: a; fp16, bf16: yes |" in text
    assert text.endswith("\n\n- a: no \\| chance\n- b: wide\n")


def test_there_are_letters_for_any_number_of_reasons() -> None:
    marks = [matrix._letters(at) for at in range(1000)]
    assert (marks[0], marks[25], marks[26], marks[27], marks[702]) == ("a", "z", "aa", "ab", "aaa")
    assert len(set(marks)) == len(marks)


def test_a_readme_is_brought_up_to_date_and_checked(
    answered: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "build_matrix", lambda: answered)
    readme = tmp_path / "README.md"
    results.write_rows(tmp_path / "summary.parquet", results.SUMMARY, [], {})
    readme.write_text("a\n<!-- matrix -->\nold\n<!-- /matrix -->\nb\n")
    stale = readme.read_text()
    fresh = sync_matrix(stale, readme)
    assert fresh.startswith("a\n<!-- matrix -->\n`yes`")
    assert fresh.endswith("\n<!-- /matrix -->\nb\n")
    assert "old" not in fresh
    assert sync_matrix(fresh, readme) == fresh
    assert sync_matrix("no mark", readme) == "no mark"


@pytest.mark.parametrize("text", ["\n<!-- matrix -->", "\n<!-- /matrix -->", "<!-- /matrix -->\n<!-- matrix -->"])
def test_a_mark_alone_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"README\.md:2: .* do not pair up"):
        sync_matrix(text, tmp_path / "README.md")


def test_it_is_printed(answered: Matrix, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/test_readme.py compares it with the README."""
    monkeypatch.setattr(matrix, "build_matrix", lambda: answered)
    assert matrix.main([]) == 0
    assert capsys.readouterr().out == matrix_markdown(answered)
