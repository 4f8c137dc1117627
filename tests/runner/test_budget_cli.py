"""`python -m runner.budget`: settings in, a table and its assumptions out, and short refusals."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.diagnosed_rows import decode, repeats

from launchopt.errors import LaunchoptError
from launchopt.recording import results
from launchopt.recording.results import Row
from runner import budget

TEXTBOOK = ("launches_per_token=1200", "launch_us=5", "tokens_per_day=10e6")


def write(folder: Path, rows: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder whose name looks like a setting, as Hydra makes them."""
    return write(tmp_path / "mode=batched,launch=1", decode("baseline", 100.0, 100.0, 100.0, requests=1))


def test_the_textbook(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main(TEXTBOOK) == 0
    shown = capsys.readouterr().out
    assert "| work | mode | launches a token | us a launch | host h a day | GPU idle h a day |" in shown
    assert "| as given | — | 1,200.0 | 5.000 | 16.67 | ≤ 16.67 |" in shown
    assert "- 5 us a launch as given, all one after the other" in shown


def test_measured_costs_for_another_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main(["model=llama_3_70b", "tokens_per_day=10e6", f"from={run}", "gpu_hour_cost=2.5"]) == 0
    shown = capsys.readouterr().out
    assert (
        "| decode fp16, 8,000 commands of 1 request | baseline | 320.0 | 8.000 | 7.111 | ≤ 10.56 | ≤ 26.39 |" in shown
    )
    assert "320 commands a token, 4 a layer of decode, measured, x 80 layers of llama_3_70b" in shown
    assert (
        "a linear of llama_3_70b asks 107 us or more of one GPU (fp16, 4,000 GB/s), a launch 8 us of the host" in shown
    )


def test_folders_follow_from(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path / "other", decode("pdl", 90.0, requests=1, run_id="other"))
    assert budget.main([f"from={run}", str(other), "tokens_per_day=1e6"]) == 0
    assert budget.main([f"from={run}", f"from={other}", "tokens_per_day=1e6"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| pdl |") == shown.count("| baseline |") == 2


def test_json(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "budget.json"
    assert budget.main([f"from={run}", "tokens_per_day=1e6", "--json", str(target)]) == 0
    content = json.loads(target.read_text())
    assert content["lines"][0]["launches_per_token"] == 8.0
    assert all(assumption in capsys.readouterr().out for assumption in content["assumptions"][:1])


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert budget.main(TEXTBOOK) == 0
    assert "16.67" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["model=nope", "tokens_per_day=1"],
            "model=nope: no such model; allowed: folovllm, llama_3_2_1b, llama_3_70b",
        ),
        (["tokens_per_day=-3"], "tokens_per_day=-3.0: must be finite and above 0"),
        (["tokens_per_day=nan"], "tokens_per_day=nan: must be finite and above 0"),
        (["tokens_per_day=many"], "tokens_per_day=many: must be a number, such as 5 or 10e6"),
        (["tokens_per_day=1", "tokens_per_day=2"], "tokens_per_day=2: given twice"),
        (["bogus=1"], "bogus=1: no such setting; allowed: from, gpu_hour_cost, launch_us"),
        (["llama_3_70b"], "llama_3_70b: not of the form KEY=VALUE; allowed: from"),
        (["from=", "tokens_per_day=1"], "from=: must be a folder with results"),
        (["from=/nonexistent", "tokens_per_day=1"], "/nonexistent: no such folder"),
        (["tokens_per_day=1"], "launch_us=: missing"),
        (["tokens_per_day=1", "launch_us=5"], "launches_per_token=: missing"),
    ],
)
def test_refusals(settings: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main(settings) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {message}")
    assert len(shown.err.splitlines()) == 1


def test_a_run_without_tokens_is_refused_with_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemv = write(tmp_path / "gemv", repeats("baseline", 100.0))
    assert budget.main([f"from={gemv}", "tokens_per_day=1e6"]) == 2
    assert "take decode, layer or moe, or give launches_per_token=" in capsys.readouterr().err
    assert budget.main([f"from={gemv}", "tokens_per_day=1e6", "launches_per_token=9"]) == 0


@given(st.lists(st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(budget.KEYS), st.text(max_size=8))))
def test_settings_are_read_or_refused_never_broken(settings: list[str]) -> None:
    with suppress(LaunchoptError):
        ask, _ = budget.read_settings(settings)
        assert ask.tokens_per_day > 0
