"""The compiled loops that `launchopt advise` makes before its trials."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from launchopt.errors import Interrupted, RunError
from runner.advise import compiling
from runner.advise.compiling import compile_loops
from runner.advise.question import Question

STEPS, COMMANDS = Question({"device": "cpu"}, 4, None), Question({"device": "cpu"}, 0, None)

ON_GPU = Question({"device": "cuda", "workload": "layer", "model": "qwen3_0_6b", "workload.tokens": 16}, 1, None)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The words of each run; all runs end well."""
    found: list[Sequence[str]] = []

    def call(words: Sequence[str], *, is_quiet: bool) -> None:
        found.append(words)
        folder = next(word.partition("=")[2] for word in words if word.startswith("hydra.run.dir="))
        Path(folder).mkdir(parents=True)

    monkeypatch.setattr(compiling, "call", call)
    monkeypatch.setattr(compiling, "compiled_folder", lambda: str(tmp_path / "compiled"))
    monkeypatch.setattr("runner.advise.compiling.os.cpu_count", lambda: 2)
    return found


def test_each_form_of_work_is_compiled_once_and_leaves_no_results(calls: list[Sequence[str]], tmp_path: Path) -> None:
    for question in (STEPS, COMMANDS, STEPS):
        compile_loops(question, "cpu", tmp_path / "advice")
    assert len(calls) == 2
    assert not (tmp_path / "advice").exists()
    compile_loops(STEPS, "cuda", tmp_path / "advice")
    assert len(calls) == 3


def test_on_a_gpu_the_kernels_of_the_model_are_compiled_too(calls: list[Sequence[str]], tmp_path: Path) -> None:
    compile_loops(ON_GPU, "cuda", tmp_path / "advice")
    assert {"model=qwen3_0_6b", "workload.tokens=2", "workload.layers=1", "mode=engine"} <= set(calls[0])


def test_kernels_of_other_stacks_are_compiled_beside_it_and_nothing_runs_on(tmp_path: Path) -> None:
    began, before = time.monotonic(), psutil.Process().children(recursive=True)
    with compiling._beside([["mode=help"], ["workload=gemv_micro", f"hydra.run.dir={tmp_path}/long"]], began + 4.0):
        pass
    assert time.monotonic() - began < 60.0
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_few_cores_compile_one_stack(
    calls: list[Sequence[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[int] = []

    @contextlib.contextmanager
    def counted(others: Sequence[Sequence[str]], until_s: float) -> Iterator[None]:
        beside.append(len(others))
        yield

    monkeypatch.setattr(compiling, "_beside", counted)
    for cores in (8, 16):
        monkeypatch.setattr("runner.advise.compiling.os.cpu_count", lambda cores=cores: cores)
        compile_loops(ON_GPU, "cuda", tmp_path / "advice")
        for mark in (tmp_path / "compiled").iterdir():
            mark.unlink()
    compile_loops(STEPS, "cpu", tmp_path / "advice")
    assert beside == [0, 2, 0]


def test_compiling_returns_its_seconds_and_has_a_limit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "call", lambda words, *, is_quiet: None)
    monkeypatch.setattr(compiling, "compiled_folder", lambda: str(tmp_path / "compiled"))
    for took_s in (59.0, 0.0):  # nothing is left to compile
        times = iter([0.0, took_s])
        monkeypatch.setattr("runner.advise.compiling.time.monotonic", lambda times=times: next(times))
        assert compile_loops(STEPS, "cpu", tmp_path / "advice") == took_s
    times = iter([0.0, compiling.MOST_S + 2])
    monkeypatch.setattr("runner.advise.compiling.time.monotonic", lambda: next(times))
    with pytest.raises(RunError, match=r"took over 600 s\. What it compiled is kept: type the same again"):
        compile_loops(COMMANDS, "cpu", tmp_path / "advice")


def test_an_error_leaves_compiling_to_the_trials_and_a_signal_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Exception] = [RunError("no"), Interrupted("interrupted")]
    monkeypatch.setattr(compiling, "compiled_folder", lambda: str(tmp_path / "compiled"))

    def call(words: Sequence[str], *, is_quiet: bool) -> None:
        raise raised.pop(0)

    monkeypatch.setattr(compiling, "call", call)
    compile_loops(STEPS, "cpu", tmp_path / "advice")
    with pytest.raises(Interrupted):
        compile_loops(STEPS, "cpu", tmp_path / "advice")
    assert not any(tmp_path.rglob("advised-*"))


@pytest.mark.parametrize("question", [STEPS, COMMANDS])
def test_the_words_are_a_run(question: Question) -> None:
    settings = {**compiling.WORK[bool(question.requests)], "device": "cpu", "workload.cache": "hot"}
    config = question.with_settings(settings).config()
    assert config.against == ["baseline"]
