"""A run under way is saved often, but its saves take a tenth of its time at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.composing import planned

from launchopt.files import Reserve, read_json
from launchopt.recording import results
from runner.run.run import execute
from runner.run.saving import SAVES_SHARE, Run


class TimedRun(Run):
    """A run on a made-up clock, whose saves take `save_s` and more with each repeat."""

    now_s, save_s, saves = 0.0, 0.02, 0

    def save(self, status: str) -> None:
        self.saves += 1
        self.now_s += self.save_s * (1 + len(self.rows) / 10)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedRun]:
    folder = tmp_path_factory.mktemp("run")
    with Reserve(folder) as reserve:
        made = TimedRun(planned("workload=gemv_micro", "mode=batched"), folder, [], [], reserve)
        made.clock = lambda: made.now_s
        yield made


@given(repeats_s=st.lists(st.floats(0.001, 5.0), min_size=1, max_size=200), save_s=st.floats(0.001, 1.0))
def test_saves_take_a_tenth_of_the_time_at_most_and_wait_no_longer(
    repeats_s: Sequence[float], save_s: float, run: TimedRun
) -> None:
    run.now_s, run.save_s, run.saves, run.next_save_s, run.rows = 0.0, save_s, 0, 0.0, []
    saving_s = last_s = took_s = 0.0
    for repeat_s in repeats_s:
        run.now_s += repeat_s
        run.rows.append({})
        before_s, before = run.now_s, run.saves
        run.save_if_due()
        if run.saves > before:
            last_s, took_s = run.now_s, run.now_s - before_s
            saving_s += took_s
        else:
            assert run.now_s - last_s < took_s / SAVES_SHARE
    assert saving_s - took_s <= SAVES_SHARE * run.now_s, "the last save has its share of the time behind it"


def test_all_repeats_are_saved_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "save_if_due", lambda run: None)
    words = ("workload=gemv_micro", "workload.commands=50", "mode=batched", "repeats=4")
    execute(planned(*words, "device=cpu"), tmp_path, list(words))
    assert len(results.read_summaries([tmp_path])) == read_json(tmp_path / "manifest.json")["repeats_done"] == 4


def test_an_error_that_nobody_foresaw_keeps_the_finished_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "save_if_due", lambda run: len(run.rows) == 3 and 1 / 0)
    words = ("workload=gemv_micro", "workload.commands=50", "mode=batched", "repeats=4", "device=cpu")
    with pytest.raises(ZeroDivisionError):
        execute(planned(*words), tmp_path, list(words))
    about = read_json(tmp_path / "manifest.json")
    assert (about["status"], about["repeats_done"], about["error"]) == (
        "failed",
        3,
        "ZeroDivisionError: division by zero",
    )
    assert len(results.read_summaries([tmp_path])) == 3
