"""mode=auto: the table on disk, the mode that a config gets, and `launchopt tune`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import DictConfig
from support.paths import ROOT
from support.processes.own_process import environ_of

from launchopt.analysis.choice import Entry, Work, entries_of
from launchopt.devices import find_device
from launchopt.errors import ConfigError, DataError
from launchopt.recording import results
from runner import commands
from runner.auto.__main__ import BLOCK, counts_text
from runner.auto.resolving import plan_of_run, resolved
from runner.auto.table import add, default_path, find_entries, read_table
from runner.config.loading import hydra_of
from runner.reading import sync_block

DEVICE = find_device("cpu", 0)[0].name
DECODE = ("workload=decode", "model=tiny", "workload.requests=4", "workload.tokens=2", "device=cpu")


def work(columns: float = 4.0) -> Work:
    return Work(DEVICE, True, 4, "decode", columns, 36864.0)


def composed(*words: str) -> DictConfig:
    with hydra_of():
        return compose("config", [*DECODE, "mode=auto", *words])


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHOPT_TUNING", raising=False)


def test_without_a_table_the_rule_says_what_runs() -> None:
    task, (line,) = resolved(composed())
    assert (task.mode.name, str(task.mode.submit)) == ("engine", "graph")
    assert line.startswith(f"mode=auto: engine+graph, nothing similar was measured on {DEVICE}")


def test_the_fastest_measured_mode_that_runs_here_is_taken_and_the_plan_says_so() -> None:
    add(default_path(DEVICE), [Entry(work(), "mine", {"megakernel": 1.0, "coalesced": 2.0, "engine": 3.0})])
    plan = plan_of_run(composed("against=[engine]"), is_published=False)
    assert [arm.label for arm in plan.arms] == ["engine", "coalesced"]
    assert plan.notices[0] == (
        "mode=auto: coalesced, expected to be the fastest by 1 measured work; measured in this work, mine"
    )
    assert plan.composed["mode"]["name"] == "coalesced"


def test_a_base_that_is_chosen_runs_once() -> None:
    add(default_path(DEVICE), [Entry(work(), "mine", {"coalesced": 2.0, "engine": 1.0})])
    plan = plan_of_run(composed("against=[engine,coalesced]"), is_published=False)
    assert [arm.label for arm in plan.arms] == ["coalesced", "engine"]


ALONE = "auto chose {}, the base itself: nothing is compared; type against=all"


@pytest.mark.parametrize(
    ("fastest", "words", "hint"),
    [
        ("baseline", [], "baseline"),
        ("baseline", ["against=baseline"], "baseline"),
        ("engine", ["against=[engine]"], "engine"),
        ("baseline", ["against=[]"], None),
        ("baseline", ["against=[engine]"], None),
        ("engine", [], None),
    ],
)
def test_a_choice_that_is_the_base_itself_says_that_nothing_is_compared(
    fastest: str, words: list[str], hint: str | None
) -> None:
    other = {"baseline": "engine", "engine": "baseline"}[fastest]
    add(default_path(DEVICE), [Entry(work(), "mine", {fastest: 1.0, other: 2.0})])
    plan = plan_of_run(composed(*words), is_published=False)
    assert [each for each in plan.notices if each.startswith("auto chose")] == ([ALONE.format(hint)] if hint else [])
    assert plan.notices[0].startswith(f"mode=auto: {fastest}, ")
    assert (len(plan.arms) == 1) == (hint is not None or words == ["against=[]"])


@pytest.mark.parametrize(
    ("has_mode", "order", "labels"),
    [
        (False, "[coalesced,engine]", ["engine", "coalesced"]),
        (True, "[coalesced,engine]", ["coalesced", "engine", "batched"]),
        (False, "[megakernel,engine,graph]", ["graph", "engine"]),
    ],
)
def test_a_waterfall_runs_its_own_modes_alone_unless_a_mode_is_named(
    has_mode: bool, order: str, labels: list[str]
) -> None:
    with hydra_of():
        task = compose("config", [*DECODE, f"waterfall=[{order}]"])
    plan = plan_of_run(task, is_published=False, has_mode=has_mode)
    assert [arm.label for arm in plan.arms] == labels
    assert len(plan.orders) == 1


def test_a_waterfall_without_a_mode_that_runs_here_says_why() -> None:
    with hydra_of():
        task = compose("config", [*DECODE, "waterfall=[[megakernel,persistent]]"])
    with pytest.raises(ConfigError, match="waterfall=megakernel: needs a GPU"):
        plan_of_run(task, is_published=False, has_mode=False)


@pytest.mark.parametrize("unknown", ["auto", "of_a_plugin", "", "a\nb", "engine+graph+graph", "graph+nothing"])
def test_a_measured_mode_that_this_program_does_not_have_is_passed_over(unknown: str) -> None:
    add(default_path(DEVICE), [Entry(work(), "mine", {unknown: 1.0, "coalesced": 2.0, "engine": 3.0})])
    assert resolved(composed())[1][0].startswith("mode=auto: coalesced, ")


def test_processes_that_add_at_once_lose_nothing() -> None:
    program = """
import sys
from pathlib import Path
from launchopt.analysis.choice import Entry, Work, entries_of
from runner.auto.table import add
for at in range(20):
    times = {"a": 1.0 + at, "b": float(len(sys.argv[1]))}
    add(Path("table.json"), [Entry(Work("d", True, 4, "w", 1.0, 1.0), f"{sys.argv[1]} {at}", times)])
"""
    call = [sys.executable, "-c", program]
    both = [subprocess.Popen([*call, name], env=environ_of(ROOT)) for name in ("one", "other")]
    assert [each.wait() for each in both] == [0, 0]
    assert len(read_table(Path("table.json"))) == 40
    assert [each.name for each in Path.cwd().iterdir()] == ["table.json"]


def test_a_broken_table_in_the_folder_is_named_and_the_others_count(capsys: pytest.CaptureFixture[str]) -> None:
    add(default_path(DEVICE), [Entry(work(), "mine", {"coalesced": 2.0, "engine": 3.0})])
    default_path("another").write_text('{"schema_ver')
    assert resolved(composed())[0].mode.name == "coalesced"
    assert "warning: outputs/tuning/another.json: cannot be read as JSON" in capsys.readouterr().err


def test_an_order_that_is_broken_on_purpose_needs_a_named_mode() -> None:
    with pytest.raises(ConfigError, match="ordering=violated"):
        resolved(composed("ordering=violated"))


def test_a_table_is_read_as_it_was_written_and_a_run_replaces_its_earlier_entry() -> None:
    path = default_path(DEVICE)
    first = Entry(work(), "mine", {"graph": 1.0, "engine": 2.0})
    assert add(path, [first]) == 1
    assert read_table(path) == [first]
    assert add(path, [first._replace(wall_ms={"graph": 3.0}), first._replace(run="other")]) == 2
    assert find_entries(DEVICE) == read_table(path)
    assert find_entries("another device") == []


BROKEN = {"run": "x", "work": work()._asdict() | {"columns": -1.0}, "wall_ms": {"graph": 1.0}}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not a table of mode=auto"),
        ('{"schema_version": 9, "entries": []}', "schema_version=9"),
        ('{"schema_version": 1, "entries": [{"run": "x"}]}', "entries[0]: not a measured work"),
        (json.dumps({"schema_version": 1, "entries": [BROKEN]}), "entries[0]: its numbers must be above 0"),
    ],
)
def test_a_broken_table_is_one_line(content: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("table.json")
    path.write_text(content)
    monkeypatch.setenv("LAUNCHOPT_TUNING", str(path))
    with pytest.raises(DataError) as error:
        find_entries(DEVICE)
    assert wanted in str(error.value)


def test_tune_writes_a_table_of_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["tune", str(ROOT / "outputs/reference/readme")]) == 0
    assert "NVIDIA H200: 7 measured works added; outputs/tuning/nvidia_h200.json has 7" in (capsys.readouterr().out)
    assert len(find_entries("NVIDIA H200")) == 7


def test_tune_adds_to_the_table_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCHOPT_TUNING", "mine.json")
    assert commands.main(["tune", str(ROOT / "outputs/reference/readme/decode_4")]) == 0
    assert "NVIDIA H200: 1 measured work added; mine.json has 1" in capsys.readouterr().out
    assert not Path("outputs").exists()
    assert len(find_entries("NVIDIA H200")) == 1
    assert commands.main(["tune", str(ROOT / "outputs/reference/readme/decode_4"), "--save", "other.json"]) == 0
    assert "other.json has 1" in capsys.readouterr().out


@pytest.mark.parametrize("named", [default_path(DEVICE), Path("copy.json")])
def test_a_measurement_in_the_named_table_and_in_the_folder_counts_once(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHOPT_TUNING", str(named))
    entries = [Entry(work(columns), "mine", {"coalesced": 1.0, "engine": 2.0}) for columns in (4.0, 8.0)]
    for path in {named, default_path(DEVICE)}:
        add(path, entries)
    assert find_entries(DEVICE) == entries
    assert "by 2 measured works" in resolved(composed())[1][0]


def test_a_measurement_under_another_name_is_added_once(tmp_path: Path) -> None:
    table, work = tmp_path / "mine.json", Work("a GPU", True, 2, "layer", 4.0, 1e6)
    assert add(table, [Entry(work, "sweep/0", {"graph": 1.0, "batched": 2.0})]) == 1
    assert add(table, [Entry(work, "/home/me/monday/sweep/0", {"batched": 2.0, "graph": 1.0})]) == 1
    assert add(table, [Entry(work, "/home/me/monday/sweep/0", {"batched": 2.5, "graph": 1.0})]) == 1
    assert add(table, [Entry(work, "sweep/0", {"batched": 2.0, "graph": 1.0})]) == 2


@pytest.mark.parametrize("words", [[], ["--check", "--page", "page.md"]])
def test_tune_refuses_results_without_modes_in_turn(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page = f"<!-- {BLOCK} -->\nold\n<!-- /{BLOCK} -->\n"
    Path("page.md").write_text(page)
    assert commands.main(["tune", str(ROOT / "outputs/reference/gpu/azure_llama_3_8b"), *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no closed loop in which two or more modes took turns" in said.err
    assert Path("page.md").read_text() == page
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--page", "page.md"], "--page goes with --check: type --check"),
        (["--check", "--save", "mine.json"], "--check writes no table: leave --save out"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(["tune", str(ROOT / "outputs/reference/readme/decode_4"), *words])
    assert ended.value.code == 2
    assert wanted in capsys.readouterr().err
    assert [*Path.cwd().iterdir()] == []


def test_the_page_has_the_counts_of_committed_works() -> None:
    folders = [ROOT / "outputs/reference"]
    rows = results.read_summaries(folders)
    text = counts_text(entries_of(rows, results.read_manifests(folders)), rows)
    command = "launchopt tune outputs/reference --check --page docs/strategies.md"
    assert sync_block(ROOT / "docs/strategies.md", BLOCK, text, check=True), f"type {command}"
