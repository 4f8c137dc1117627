"""What an advice saves: an experiment that runs it again, and measurements for mode=auto."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose
from support.results.advices import found

from launchopt.analysis.choice import Entry, Work
from launchopt.distribution import install_command
from runner.advise.question import of_file, of_model
from runner.advise.saving import experiment_text, save
from runner.auto.table import default_path
from runner.config.loading import hydra_of
from runner.config.objects import to_config


@pytest.mark.parametrize("best", ["engine+graph", "coalesced", "engine"])
def test_the_experiment_runs_the_advised_stack_beside_its_base(model: Path, tmp_path: Path, best: str) -> None:
    path = tmp_path / "experiment" / "advice.yaml"
    path.parent.mkdir()
    path.write_text(experiment_text(found(of_model(model, 16, "cpu", None), best)))
    with hydra_of(config_dir=str(tmp_path)):
        config = to_config(compose("config", ["experiment=advice"]))
    assert config.mode.label == best
    assert (config.batching.max_batch, config.batching.timeout_us) == (16, 0.0)
    assert config.against == ([] if best == "engine" else ["engine"])
    assert (config.model.name, config.workload.requests) == ("own", 16)


def test_the_experiment_reads_the_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "ü \U0001f600 ${oc.env:HOME}'s [1],b=2.csv"
    path.write_text("m,n,k\n64,1,128\n")
    whole = found(of_file("list", path, "cpu", None), "baseline")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/advice.yaml").write_text(experiment_text(whole))
    with hydra_of(config_dir=str(tmp_path)):
        assert compose("config", ["experiment=advice"]).workload.path == str(path)
    assert whole.question.config().workload.path == str(path)


def test_a_broken_table_of_auto_costs_a_warning_and_not_the_answer(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    measured = Entry(Work("a CPU", True, 4, "decode", 1.0, 1.0), "mine", {"engine": 2.0, "graph": 1.0})
    monkeypatch.setattr("runner.advise.saving.entries_in", lambda folders: [measured])
    table = default_path("a CPU")
    table.parent.mkdir(parents=True)
    table.write_text("{")
    again, page = save(found(of_model(model, 16, "cpu", None)), [], tmp_path / "answer")
    assert again.startswith("again: launchopt run --config-dir")
    assert page.startswith("page: ")
    assert (tmp_path / "answer/experiment/advice.yaml").exists()
    assert table.read_text() == "{"
    assert f"warning: {table}: cannot be read as JSON" in capsys.readouterr().err


def test_without_the_packages_of_a_page_the_line_says_what_to_type_for_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launchopt.report.page.missing", lambda *modules: ["altair"])
    monkeypatch.setattr("launchopt.report.source.read_source", lambda folders: None)
    monkeypatch.setattr("runner.advise.saving.entries_in", lambda folders: [])
    whole = replace(found(of_model(model, 16, "cpu", None)), folder=tmp_path / "its trials")
    _, page = save(whole, ["now: ..."], tmp_path)
    assert page == (
        f"page: none, needs altair; type: {install_command('report')}; then: launchopt report '{whole.folder}' --html"
    )
