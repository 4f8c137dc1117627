"""Signals at random points: to children, the parent, Python's tracker and all at once, in every phase of a run."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.processes.own_run import on_linux
from support.thorough import is_thorough

from launchopt.analysis.tables.reliability import SIGNALS, VICTIMS
from runner.reliability import campaign_markdown
from scripts import kill_campaign
from scripts.kill_campaign import LINES, campaign, finished, main, summary
from scripts.kills import PHASES, Kill, _wrong, plan

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


def test_the_parts_of_a_campaign_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder may have a name that is not UTF-8. Its manifest counts all kills, and names the revision."""
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "a" * 40)
    folder = tmp_path / os.fsdecode(b"of\xff")
    words = ["--kills", "3", "--out", str(folder)]

    def interrupted(kills: list[Kill], *others: object) -> Iterator[Kill]:
        yield kills[1]
        raise KeyboardInterrupt

    monkeypatch.setattr(kill_campaign, "campaign", interrupted)
    assert main(words) == 130
    first = json.loads((folder / "manifest.json").read_text())
    with (folder / LINES).open("a") as lines:
        lines.write('{"number": 2, "vic')
    monkeypatch.setattr(kill_campaign, "campaign", lambda kills, *others: iter(kills))
    assert (main(words), main(words)) == (0, 0)
    assert [json.loads(line)["number"] for line in (folder / LINES).read_text().splitlines()] == [1, 0, 2]
    about = json.loads((folder / "manifest.json").read_text())
    assert (first["counts"][-1]["tried"], about["counts"][-1]["tried"]) == (1, 3)
    assert about["started_utc"] == first["started_utc"]
    assert (about["environment"]["git_revision"], len(about["environment"]["code_sha1"])) == ("a" * 40, 40)
    assert campaign_markdown(folder).startswith("### Kills\n\n**3 kills: ")


def test_another_revision_does_not_continue_a_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kill_campaign, "campaign", lambda kills, *others: iter(kills))
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "a" * 40)
    words = ["--kills", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "b" * 40)
    assert main(words) == 2
    assert f"{tmp_path}: of revision {'a' * 40}, not of {'b' * 40}; choose another --out" in capsys.readouterr().err


class Left:
    """A run that has ended, with these manifests."""

    def __init__(self, *statuses: str, folder: Path = Path("/nonexistent")) -> None:
        self._manifests, self.folder = [{"status": status} for status in statuses], folder

    def manifests(self) -> list[dict[str, str]]:
        return self._manifests


def ended(signal: str, victim: str, exit_code: int, status: str, reason: str = "", struck: str = "running") -> str:
    """Return what is wrong with a run that ended so."""
    kill = Kill(0, victim, struck, 0.0, signal=signal, struck=struck, exit_code=exit_code, status=status, reason=reason)
    left: Any = Left(status)
    return _wrong(kill, left)


STOPPED = "error: interrupted by SIGTERM; 1 finished repeats are in run"


@pytest.mark.parametrize(
    "end",
    [
        ("TERM", "group", 143, "interrupted", STOPPED),
        ("TERM", "consumer", 143, "interrupted", STOPPED),
        ("TERM", "parent", -15, "", "", "interpreter"),
        ("INT", "parent", 130, "interrupted", "error: interrupted; 1 finished repeats are in run"),
        ("INT", "producer", 0, "ok"),
        ("KILL", "parent", -9, "killed"),
        ("STOP KILL", "consumer", 1, "failed", "error: consumer was killed by signal 9"),
        ("STOP CONT", "group", 0, "ok"),
        ("KILL", "tracker", 0, "ok"),
    ],
)
def test_what_is_promised_is_right(end: tuple[Any, ...]) -> None:
    assert ended(*end) == ""


@pytest.mark.parametrize(
    "end",
    [
        ("TERM", "group", 143, "interrupted"),  # says nothing
        ("TERM", "group", 130, "interrupted", STOPPED),
        ("TERM", "parent", 143, "running", STOPPED),
        ("TERM", "parent", -15, ""),  # its handlers stood
        ("TERM", "parent", 143, "interrupted", f"{STOPPED}\nerror: another"),
        ("INT", "producer", 1, "failed", "error: producer ended with exit code 1"),
        ("KILL", "parent", 0, "failed"),
        ("KILL", "consumer", 1, "failed", "error: producer was killed by signal 9"),
        ("STOP CONT", "group", 1, "failed", "error: consumer has not moved for 60 s"),
        ("KILL", "tracker", 1, "failed", "error: no"),
        ("TERM", "parent", 0, "ok", "error: no"),
    ],
)
def test_what_is_not_promised_is_wrong(end: tuple[Any, ...]) -> None:
    assert ended(*end).startswith(f"ended with {end[2]}, status {end[3] or 'none'}")


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
