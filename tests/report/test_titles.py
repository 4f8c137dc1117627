"""Names of streams differ from each other, and warnings come by severity."""

from __future__ import annotations

from pathlib import Path

from support.results.recorded_runs import summary_row, write_run
from support.results.summary_rows import repeats, write

from launchopt.report.glance import glances
from launchopt.report.source import read_source
from launchopt.report.tiles import verdict_sentences
from launchopt.report.titles import stream_names
from launchopt.report.warnings import Severity, severities, warnings


def test_a_name_has_the_model_and_what_tells_it_from_others() -> None:
    streams = [
        {"model": "a"},
        {"model": "b"},
        {"cache": "hot"},
        {"cache": "cold"},
        {"shapes": "1x1x1", "cache": "cold"},
    ]
    rows = [summary_row("run", "baseline", 0, **each) for each in [*streams, {"cache": "cold"}]]
    names = stream_names(rows)
    assert len(set(names)) == len(names)
    assert names[0] == "gemv_micro fp32, a, 64 commands"
    assert names[2] == "gemv_micro fp32, 64 commands, hot cache"
    assert "shapes 1x1x1" in names[4]


def test_a_name_says_over_how_many_gpus_the_work_ran() -> None:
    columns = [{"gpus": 2, "tensor": 2}, {"gpus": 2}, {}]
    names = stream_names([summary_row("run", "baseline", 0, device="cpu", **each) for each in columns])
    first = "gemv_micro fp32, 64 commands"
    assert names == [f"{first}, split over 2 cores", f"{first}, 2 cores", first]


def test_warnings_are_counted_by_severity_errors_first(tmp_path: Path) -> None:
    assert warnings(read_source([write_run(tmp_path / "fine")])) == []
    found = warnings(read_source([write_run(tmp_path / "bad", verified=False, throttled=True)]))
    assert [one.severity for one in found] == [Severity.ERROR, Severity.WARNING]
    assert severities(found) == "1 error, 1 warning"


def test_a_bandwidth_that_changed_is_a_warning(tmp_path: Path) -> None:
    changed = {"ceilings_change": 0.31, "copy_gb_per_s": None, "read_gb_per_s": None, "peak_tflops": None}
    (found,) = warnings(read_source([write_run(tmp_path / "run", **changed)]))
    assert found.severity is Severity.WARNING
    assert found.text.startswith("Memory bandwidth changed during the runs of ")
    assert found.text.endswith("They are compared with no ceiling.")


def test_a_verdict_has_at_most_three_sentences(tmp_path: Path) -> None:
    one = read_source([write_run(tmp_path / "0")])
    several = read_source([write_run(tmp_path / f"{at}", f"{at}", model=f"m{at}") for at in range(1, 4)])
    for source in (one, several):
        assert 1 <= len(verdict_sentences(glances(source.tables), source.diagnoses)) <= 3


def test_one_comparison_and_several_are_counted_in_words(tmp_path: Path) -> None:
    rows = [*repeats(9, 9), *repeats(3, 3, mode="graph")]
    (one,) = warnings(read_source([write(tmp_path / "one", rows)]))
    assert one.text.startswith("1 comparison had no interval (fewer than 5 repeats")
    (two,) = warnings(read_source([write(tmp_path / "two", [*rows, *repeats(3, 3, mode="batched")])]))
    assert two.text.startswith("2 comparisons had no interval (fewer than 5 repeats")
