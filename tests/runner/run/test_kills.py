"""Signals at random points: to children, the parent, Python's tracker and all at once, in every phase of a run."""

import json
from collections import Counter
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest
from support.processes.own_run import on_linux
from support.thorough import is_thorough

from scripts.kill_campaign import LINES, campaign, finished, main, summary
from scripts.kills import PHASES, SIGNALS, VICTIMS, Kill, plan

ALL_KILLS = 60
KILLS = 8
WORKERS = 3


@on_linux
def test_nothing_is_lost_or_leaked(tmp_path: Path) -> None:
    kills = plan(ALL_KILLS if is_thorough() else KILLS, 7)
    done = list(campaign(kills, WORKERS, tmp_path))
    assert len(done) == len(kills)
    assert [kill for kill in done if kill.is_bad] == []
    if is_thorough():  # a kill that comes late strikes a later phase
        assert {kill.struck for kill in done} >= set(PHASES)
    assert list(tmp_path.iterdir()) == []


def test_every_victim_gets_every_signal_in_every_phase_in_which_it_lives() -> None:
    kills = plan(200, 1)
    assert kills == plan(200, 1)
    struck = {(kill.victim, kill.signal, kill.phase) for kill in kills}
    wanted = set(product(VICTIMS, SIGNALS, PHASES))
    assert {each for each in wanted - struck if each[2] != "interpreter" or each[0] in ("parent", "group")} == set()
    assert {kill.job for kill in kills if kill.phase == "between"} == {"sweep"}


def test_a_campaign_that_ended_early_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills = plan(3, 1)
    assert finished(tmp_path / LINES, kills) == []
    lines = "".join(json.dumps(asdict(kill)) + "\n" for kill in kills)
    (tmp_path / LINES).write_text(lines + '{"number": 2, "vic')  # killed while it wrote
    assert finished(tmp_path / LINES, kills) == kills
    assert main(["--kills", "3", "--seed", "2", "--out", str(tmp_path)]) == 2
    assert "of another campaign: --kills or --seed differ; choose another --out" in capsys.readouterr().err
    (tmp_path / LINES).write_text(lines)
    assert main(["--kills", "3", "--seed", "1", "--out", str(tmp_path)]) == 0, "nothing is left to do"
    assert json.loads((tmp_path / "manifest.json").read_text())["counts"][-1]["tried"] == 3


def test_what_went_wrong_is_counted() -> None:
    kills = [
        Kill(0, "parent", "running", 0.0, struck="running", hung=1),
        Kill(1, "parent", "running", 0.0, struck="checking", lost=2, segments_until_next_start=1, ended_s=1.5),
        Kill(2, "consumer", "running", 0.0, struck="ended", leaked=1, wrong="no word", tracebacks=3),
    ]
    counts = {(row["victim"], row["phase"]): row for row in summary(kills)}
    assert [(where, row["tried"]) for where, row in counts.items()] == [
        (("consumer", "ended"), 1),
        (("parent", "running"), 1),
        (("parent", "checking"), 1),
        (("all", "all"), 3),
    ]
    whole = counts["all", "all"]
    assert Counter({name: whole[name] for name in ("lost", "leaked", "hung", "tracebacks", "wrong")}) == Counter(
        lost=2, leaked=1, hung=1, tracebacks=3, wrong=1
    )
    assert whole["longest_end_s"] == 1.5
