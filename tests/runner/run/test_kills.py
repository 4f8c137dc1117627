"""Kills at random points: of the consumer, the producer, the parent and all at once, in every phase of a run."""

from collections import Counter
from pathlib import Path

from support.processes.own_run import on_linux
from support.thorough import is_thorough

from scripts.kill_campaign import PHASES, VICTIMS, Kill, campaign, summary

ALL_KILLS = 50
KILLS = 2 * len(VICTIMS)  # by default: each victim in two phases, each phase with two victims
WORKERS = 3


@on_linux
def test_nothing_is_lost_or_leaked(tmp_path: Path) -> None:
    count = ALL_KILLS if is_thorough() else KILLS
    kills = list(campaign(count, 7, WORKERS, tmp_path))
    assert len(kills) == count
    bad = [kill for kill in kills if kill.lost or kill.leaked or kill.wrong]
    assert bad == []
    struck = Counter((kill.victim, kill.struck) for kill in kills)
    assert {victim for victim, _ in struck} == set(VICTIMS)
    if is_thorough():  # a kill that comes late strikes a later phase
        assert {phase for _, phase in struck} >= set(PHASES)
    assert list(tmp_path.iterdir()) == []


def test_what_went_wrong_is_counted() -> None:
    kills = [
        Kill(0, "parent", "running", 0.0, struck="running"),
        Kill(1, "parent", "running", 0.0, struck="checking", lost=2, segments_until_next_start=1, ended_s=1.5),
        Kill(2, "consumer", "running", 0.0, struck="ended", leaked=1, wrong="no word"),
    ]
    counts = {(row["victim"], row["phase"]): row for row in summary(kills)}
    assert [(where, row["tried"]) for where, row in counts.items() if row["tried"]] == [
        (("consumer", "ended"), 1),
        (("parent", "running"), 1),
        (("parent", "checking"), 1),
        (("all", "all"), 3),
    ]
    whole = counts["all", "all"]
    assert (whole["lost"], whole["leaked"], whole["wrong"], whole["longest_end_s"]) == (2, 1, 1, 1.5)
