"""python -m runner.reliability: tables of a kill campaign, of a soak, and the page that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.processes.own_process import ROOT
from support.results.mutations import raw_controls

from launchopt.analysis.tables.reliability import VICTIMS
from launchopt.errors import DataError
from runner.reading import sync_block
from runner.reliability import BLOCK, campaign_markdown, main, read_kills, read_soak
from scripts import kill_campaign, soak
from scripts.kills import Kill

FINE = {"status": "failed", "exit_code": 1, "repeats_before": 2, "repeats_after": 2, "ended_s": 1.0}
KILLS = [
    Kill(0, "consumer", "running", 0.1, struck="running", **FINE),
    Kill(1, "consumer", "running", 0.1, struck="checking", **(FINE | {"ended_s": 3.0, "repeats_after": 3})),
    Kill(2, "producer", "starting", 0.1, struck="starting", exit_code=0, status="ok", repeats_after=4, ended_s=9.0),
    Kill(3, "group", "running", 0.1, struck="running", exit_code=-9, segments_until_next_start=1, ended_s=0.5),
    Kill(4, "parent", "running", 0.1, signal="STOP KILL", struck="ended", exit_code=0, status="ok"),
]
BAD = Kill(5, "parent", "running", 0.1, struck="running", exit_code=None, lost=2, leaked=1, wrong="no | word <b>")


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A folder as the script itself writes it, of these kills."""
    folder = tmp_path / "campaign"

    def write(*kills: Kill) -> Path:
        def made(*asked: object) -> Iterator[Kill]:
            yield from kills

        monkeypatch.setattr(kill_campaign, "campaign", made)
        is_bad = any(kill.lost or kill.leaked or kill.wrong for kill in kills)
        assert kill_campaign.main(["--kills", str(len(kills)), "--seed", "7", "--out", str(folder)]) == is_bad
        return folder

    return write


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """Cells of the table whose head holds `heading`, by its first column."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith("| ") and heading in line)
    found = {}
    for line in lines:
        if not line.startswith("| "):
            break
        first, *cells = line.strip("| ").split(" | ")
        found[first] = cells
    return found


def test_tables_of_a_campaign(campaign: Callable[..., Path]) -> None:
    text = campaign_markdown(campaign(*KILLS))
    assert text.startswith("### Kills\n\n**5 kills: 0 repeats lost, 0 leaked, 0 hung, 0 tracebacks, 0 wrong.** ")
    tried = rows(text, "| phase |")
    assert tried["running"] == ["1", "0", "0", "1", "2"]
    assert tried["ended"] == ["0", "0", "1", "0", "1"]
    assert tried["all"] == ["2", "1", "1", "1", "5"]
    outcomes = rows(text, "exit codes")
    assert outcomes["KILL"] == ["4", "1 (2), -9 (1), 0 (1)", *["0"] * 5]
    assert outcomes["STOP KILL"] == ["1", "0 (1)", *["0"] * 5]
    assert outcomes["all"] == ["5", "0 (2), 1 (2), -9 (1)", *["0"] * 5]
    kept = rows(text, "seconds p50")
    assert kept["consumer"] == ["2", "4", "5", "2.000", "3.000", "0", "failed (2)"]
    assert kept["producer"] == ["0", "0", "0", "—", "—", "0", "—"], "a run that went on says nothing of its end"
    assert kept["all"] == ["3", "4", "5", "1.000", "3.000", "1", "failed (2), none (1)"]
    assert "Not as promised" not in text
    for section in ("Hostile input", "Limits of the system", "Soak"):
        assert text.split(f"### {section}\n\n")[1].startswith("Not measured: `python scripts/")


def test_where_it_ran_is_told(campaign: Callable[..., Path]) -> None:
    folder = campaign(*KILLS)
    path = folder / "manifest.json"
    about = json.loads(path.read_text())
    about["environment"] |= {"git_revision": "0123456789abcdef", "git_dirty": True, "memory_bytes": 25.3e9, "cores": 2}
    about["environment"]["processor"] = "cpu family 25"
    path.write_text(json.dumps(about | {"processor": "Some | CPU"}))
    places = rows(campaign_markdown(folder), "| what | which |")
    assert places["revision"] == ["0123456789ab, with changes that were not committed"]
    assert " | ".join(places["processor"]) == "Some \\| CPU (cpu family 25); 2 cores to use, 25.3 GB of memory"
    assert places["campaign"][0].startswith("seed 7, 2 runs at a time, started 20")
    for dirty, message in ((False, "as committed"), (None, "unknown whether it was changed")):
        about["environment"]["git_dirty"] = dirty
        path.write_text(json.dumps(about))
        assert rows(campaign_markdown(folder), "| what | which |")["revision"] == [f"0123456789ab, {message}"]


def test_a_copy_without_a_history_is_clean_if_its_code_has_the_hash_of_its_revision(
    campaign: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "a" * 40)
    folder = campaign(*KILLS)
    code_sha1 = json.loads((folder / "manifest.json").read_text())["environment"]["code_sha1"]
    for known, state in (("0" * 40, "unknown whether it was changed"), (code_sha1, "as committed")):
        about = {"commit": 1, "date": "2026-01-01", "code_sha1": known}
        (folder.parent / "revisions.json").write_text(json.dumps({"a" * 40: about}))
        assert f"| revision | aaaaaaaaaaaa, {state} |" in campaign_markdown(folder)


def test_what_went_wrong_is_named(campaign: Callable[..., Path]) -> None:
    text = campaign_markdown(campaign(*KILLS, BAD))
    assert text.startswith("### Kills\n\n**6 kills: 2 repeats lost, 1 leaked, 0 hung, 0 tracebacks, 1 wrong.** ")
    assert "- 5: KILL to parent while running: 2 lost, 1 leaked, 0 hung, 0 tracebacks; no \\| word &lt;b>\n" in text
    assert rows(text, "exit codes")["all"][2:] == ["2", "1", "0", "0", "1"]


def test_names_in_the_table_are_escaped(campaign: Callable[..., Path]) -> None:
    folder = campaign(*KILLS[:1])
    table = pq.read_table(folder / "campaign.parquet")
    for name in ("victim", "struck", "signal", "status"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array(["\x1b[2J<b>\u202e"]))
    pq.write_table(table, folder / "campaign.parquet")
    text = campaign_markdown(folder)
    assert (raw_controls(text), "<b>" in text) == ("", False)
    assert text.count("\\x1b[2J&lt;b>\\u202e") == 6


@cache
def soaked() -> str:
    """What the script writes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "soak.json"
        assert soak.main(["--records", "5000", "--json", str(path)]) == 0
        return path.read_text()


def told_soak(path: Path) -> dict[str, Any]:
    path.write_text(soaked())
    figures: dict[str, Any] = json.loads(soaked())
    return figures


def test_a_soak_beside_it_is_shown(campaign: Callable[..., Path]) -> None:
    folder = campaign(*KILLS)
    figures = told_soak(folder / "soak.json")
    read = read_soak(folder / "soak.json")
    assert (read.records, read.lost, read.batches) == (5000, 0, figures["batches"])
    shown = rows(text := campaign_markdown(folder), "M commands/s")
    (cells,) = ([first, *others] for first, others in shown.items() if first != "---:")
    assert cells[:3] == ["5,000", "0", f"{figures['batches']:,}"]
    peak = figures["memory"]["consumer"]["peak_bytes"] / 1e6
    assert float(cells[5].split(" / ")[2].replace(",", "")) == pytest.approx(peak, abs=0.05)
    assert f"| soak | started {figures['started_utc']} |" in text
    assert "Not measured: `python scripts/soak.py" not in text


def test_the_committed_campaign_is_one() -> None:
    folder = ROOT / "outputs/reference/reliability"
    assert re.match(r"### Kills\n\n\*\*[\d,]+ kills: ", campaign_markdown(folder))
    assert {kill.victim for kill in read_kills(folder / "campaign.parquet")} <= set(VICTIMS)


def test_a_campaign_of_the_first_version_is_read_and_claims_no_fault_that_it_did_not_count(
    campaign: Callable[..., Path],
) -> None:
    folder = campaign(*KILLS[:3])
    assert "not counted" not in campaign_markdown(folder)
    without(folder, "signal", "job", "hung", "tracebacks")
    with pytest.raises(DataError, match=r"says hung: 0, where campaign\.parquet has None"):
        campaign_markdown(folder)
    about = json.loads((folder / "manifest.json").read_text())
    for name in ("hung", "tracebacks"):
        del about["counts"][-1][name]
    (folder / "manifest.json").write_text(json.dumps(about))
    text = campaign_markdown(folder)
    assert "**3 kills: 0 repeats lost, 0 leaked, 0 wrong; not counted: hung, tracebacks.** " in text
    assert rows(text, "| signal |")["all"][4:6] == ["—", "—"]


def without(folder: Path, *columns: str) -> None:
    table = pq.read_table(folder / "campaign.parquet")
    pq.write_table(table.drop_columns(list(columns)), folder / "campaign.parquet")


def with_nulls(folder: Path) -> None:
    table = pq.read_table(folder / "campaign.parquet")
    at = table.schema.get_field_index("lost")
    pq.write_table(table.set_column(at, "lost", pa.nulls(len(table), pa.int64())), folder / "campaign.parquet")


def with_words(folder: Path) -> None:
    table = pq.read_table(folder / "campaign.parquet")
    at = table.schema.get_field_index("lost")
    pq.write_table(table.set_column(at, "lost", pa.array(["few"] * len(table))), folder / "campaign.parquet")


def fewer_rows(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "campaign.parquet").slice(1), folder / "campaign.parquet")


def no_rows(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "campaign.parquet").slice(0, 0), folder / "campaign.parquet")


def manifest(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)


def other_soak(folder: Path, **change: Any) -> None:
    figures = told_soak(folder / "soak.json")
    (folder / "soak.json").write_text(json.dumps(figures | change))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no table": (lambda folder: (folder / "campaign.parquet").unlink(), "not a folder of scripts/kill_campaign.py"),
    "no Parquet": (
        lambda folder: (folder / "campaign.parquet").write_text("PAR1"),
        "cannot be read as Parquet",
    ),
    "columns": (lambda folder: without(folder, "lost", "struck"), "not a table of kills: lacks struck, lost"),
    "nulls": (with_nulls, "lost must not be null"),
    "words": (with_words, "cannot be read as Parquet"),
    "other rows": (fewer_rows, "says tried: 5, where campaign.parquet has 4: not of one campaign"),
    "no rows": (no_rows, "0 kills: must be 1 to 1,000,000"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "no manifest"),
    "no JSON": (lambda folder: manifest(folder, "{"), "cannot be read as JSON"),
    "no counts": (lambda folder: manifest(folder, "{}"), "says tried: None"),
    "no soak": (
        lambda folder: (folder / "soak.json").write_text("[]"),
        "not what scripts/soak.py writes: lacks started",
    ),
    "words for numbers": (lambda folder: other_soak(folder, records="many"), "a value has a wrong type"),
    "no memory": (lambda folder: other_soak(folder, memory={}), "a value has a wrong type"),
    "not a number": (lambda folder: other_soak(folder, seconds=float("nan")), "a value has a wrong type"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_no_campaign_is_refused(
    name: str, campaign: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = campaign(*KILLS)
    damage, why = BREAKS[name]
    damage(folder)
    page = tmp_path / "page.md"
    page.write_text("<!-- reliability -->\nold\n<!-- /reliability -->\n")
    capsys.readouterr()
    assert main([str(folder), "--readme", str(page)]) == 2
    figures = capsys.readouterr()
    assert figures.out == ""
    assert figures.err.startswith(f"error: {folder}")
    assert why in figures.err
    assert figures.err.count("\n") == 1
    assert "old" in page.read_text()


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: no such folder\n"


def test_a_page_is_refreshed_and_a_stale_one_is_seen(
    campaign: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = str(campaign(*KILLS)), tmp_path / "page.md"
    page.write_text("before\n<!-- reliability -->\nold\n<!-- /reliability -->\nafter\n")
    capsys.readouterr()
    assert main([folder, "--readme", str(page), "--check"]) == 1
    assert capsys.readouterr().err.startswith(f"{page}: out of date: run launchopt reliability {folder} --readme ")
    assert "old" in page.read_text()
    assert main([folder, "--readme", str(page)]) == 0
    assert main([folder, "--readme", str(page), "--check"]) == 0
    text = page.read_text()
    assert (text.startswith("before\n"), text.endswith("after\n")) == (True, True)
    assert campaign_markdown(Path(folder)) in text
    assert main([folder]) == 0
    assert capsys.readouterr().out == campaign_markdown(Path(folder))


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(DataError, match="cannot be read"):
        sync_block(page, BLOCK, "text", check=False)
    page.write_text("<!-- /reliability -->\n<!-- reliability -->\n")
    with pytest.raises(DataError, match="has no <!-- reliability -->"):
        sync_block(page, BLOCK, "text", check=False)
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--check"])
