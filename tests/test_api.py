"""`launchopt.load` and `launchopt.compare`, on folders of runs, and the public names."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.processes.own_process import environ_of
from support.results import recorded_runs
from support.results.recorded_runs import write_run

import launchopt
from launchopt.analysis.conclusions import modes_of, objective
from launchopt.recording import results
from launchopt.recording.manifest import write_manifest

NAMES = [
    *("Comparison", "ComparisonError", "ConfigError", "DataError", "DeviceError", "Factor", "Interrupted"),
    *("LaunchoptError", "PackageError", "Result", "RunError", "Verdict", "compare", "load", "record", "run"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of batched against baseline, which it is four times as fast as."""
    return write_run(tmp_path_factory.mktemp("api") / "run")


def test_the_public_names_stay() -> None:
    """A name that is left out here breaks programs of users."""
    assert launchopt.__all__ == NAMES
    assert {type(getattr(launchopt, name)).__name__ for name in NAMES} == {"type", "function"}
    assert set(NAMES) <= set(dir(launchopt))
    assert launchopt.__version__
    assert not hasattr(launchopt, "Device")


def test_an_import_loads_no_library() -> None:
    program = "import sys, launchopt, launchopt.api; print(*(each.partition('.')[0] for each in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], env=environ_of(), capture_output=True, text=True)
    assert {"numpy", "pandas", "pyarrow", "hydra", "omegaconf", "rich", "runner", "numba"} & {
        *done.stdout.split()
    } == set()


def test_a_result_has_a_row_for_each_repeat(folder: Path) -> None:
    result = launchopt.load(folder)
    frame = result.to_pandas()
    assert (len(frame), set(frame["mode"])) == (10, {"baseline", "batched"})
    assert list(frame.columns) == results.SUMMARY.names
    pd.testing.assert_series_equal(frame["wall_ms"], pd.read_parquet(folder / "summary.parquet")["wall_ms"])
    assert (result.modes, result.status, result.notices) == (("baseline", "batched"), "ok", ("device: cuda",))
    assert repr(result) == f"<launchopt.Result of {folder}: 1 run of baseline, batched; ok>"


def test_a_run_within_the_folder_of_a_run_does_not_count(folder: Path, tmp_path: Path) -> None:
    outer = write_run(tmp_path / "outer")
    write_run(outer / "inner")
    result = launchopt.load(outer)
    assert (len(result.to_pandas()), repr(result).count("1 run of")) == (10, 1)
    assert result.objective == launchopt.load(folder).objective
    assert len(launchopt.load(tmp_path).to_pandas()) == 10, "the same rows again are a copy"
    with pytest.raises(launchopt.ConfigError, match="folder=: the name of a folder"):
        launchopt.run(folder="")
    with pytest.raises(launchopt.DataError, match="no name of a folder"):
        launchopt.load("")


def test_the_verdict_has_the_factor_and_what_bounds_the_time(folder: Path) -> None:
    verdict = launchopt.load(str(folder)).verdict
    (factor,) = verdict.factors
    assert (factor.base, factor.mode, factor.metric, factor.verdict) == ("baseline", "batched", "wall_ms", "FASTER")
    assert factor.low is not None
    assert factor.high is not None
    assert factor.low <= factor.value <= factor.high
    assert factor.value == pytest.approx(4)
    assert str(factor).startswith("batched is 4.0")
    assert verdict.first_to_try == ("batched",)
    assert str(verdict).splitlines() == [str(factor), *verdict.bounds]
    assert verdict.bounds[0].startswith("gemv_micro fp32, 64 commands: baseline is ")


def test_a_result_prints_a_table_over_the_base_that_was_asked_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    asked = recorded_runs.manifest("run", config={"against": ["batched"], "mode": {"name": "baseline"}})
    write_manifest(folder, asked)
    result = launchopt.load(folder)
    assert result.modes == ("batched", "baseline")
    assert (result.verdict.factors[0].base, result.verdict.factors[0].verdict) == ("batched", "SLOWER")
    assert result.objective == pytest.approx(4)
    assert "| times as fast as batched |" in str(result)
    assert str(result).endswith(f"\n\n{result.verdict}")
    assert result._repr_markdown_().splitlines()[-1] == f"- {result.verdict.bounds[0]}"


@pytest.mark.parametrize("against", [None, 3, ["nope", 4], {"a": 1}])
def test_a_damaged_manifest_leaves_the_base_of_the_workload(against: object) -> None:
    rows = [{"mode": mode, "commands": 1, "requests": 1, "ordering": "per_request"} for mode in ("batched", "baseline")]
    whole = [{**dict.fromkeys(results.SUMMARY.names), **row, "workload": "gemv_micro"} for row in rows]
    assert modes_of(whole, against) == ["baseline", "batched"]


def test_an_objective_is_smaller_for_a_faster_mode_and_infinite_for_a_failed_one() -> None:
    rows = [
        {"mode": mode, "wall_ms": wall_ms, "status": "ok", "verified": True}
        for mode, wall_ms in (("a", 4.0), ("b", 1.0), ("a", 6.0), ("b", 9.0), ("b", 2.0))
    ]
    assert objective(rows, "b", "a") == 2.0 / 5.0
    assert objective(rows, "b", None) == 2.0
    assert objective(rows, "c", "a") == math.inf
    assert objective([*rows, rows[0] | {"verified": False}], "b", "a") == math.inf
    assert objective([*rows, rows[1] | {"status": "failed"}], "b", None) == math.inf


def test_a_folder_of_several_runs_has_factors_within_each(tmp_path: Path) -> None:
    for name in ("0", "1"):
        write_run(tmp_path / name, f"sweep/{name}", max_batch=8 << int(name))
    result = launchopt.load(tmp_path)
    assert len(result.verdict.factors) == 2
    assert "2 runs of baseline, batched" in repr(result)
    assert "| work, commands |" in str(result)
    with pytest.raises(launchopt.DataError, match="has 2 runs; an objective is that of one"):
        _ = result.objective


def test_a_page_is_written_where_the_user_says(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_python_programs` makes a whole page."""
    monkeypatch.setattr("launchopt.report.page.page_html", lambda source: f"the page of {source.folders[0]}")
    result = launchopt.load(folder)
    assert result.report(tmp_path / "page.html").read_text() == f"the page of {folder}"
    with pytest.raises(launchopt.ConfigError, match=r"^path=page\.txt: the name of a page must end in \.html$"):
        result.report("page.txt")
    with pytest.raises(launchopt.DataError, match="cannot be written"):
        result.report(tmp_path / "no" / "page.html")


def test_pandas_is_named_where_it_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.distribution.find_spec", lambda name: None)
    with pytest.raises(launchopt.PackageError, match=r"^to_pandas\(\) needs pandas; type: pip install pandas$"):
        launchopt.load(folder).to_pandas()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_ends_with_its_notices_on_standard_error_unless_it_is_quiet(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run")
    notices = ["device: cuda", "memory bandwidth differs by 25% (another\x1b[2J process?)"]
    write_manifest(folder, recorded_runs.manifest("run") | {"notices": notices})
    monkeypatch.setattr("runner.calling.caller.call", lambda words, is_quiet: folder)
    assert launchopt.run(quiet=quiet).notices == tuple(notices)
    shown = "device: cuda\nmemory bandwidth differs by 25% (another\\x1b[2J process?)\n"
    assert capsys.readouterr() == ("", "" if quiet else shown)


def test_the_status_of_a_run_without_a_manifest_is_unknown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "manifest.json").unlink()
    result = launchopt.load(folder)
    assert (result.status, result.notices, result.modes) == ("unknown", (), ("baseline", "batched"))


def test_names_in_results_send_no_control_character_on(tmp_path: Path) -> None:
    """A terminal would obey it, and a notebook would show a link or load a picture."""
    evil = "a\x1b[2J\u202eb|<b>![x](y)"
    folder = write_run(tmp_path / "a\x1b[2J", evil, workload=evil, gpu=evil, shapes=evil)
    result = launchopt.load(folder)
    comparison = launchopt.compare(f"{folder}:baseline", f"{folder}:batched")
    pages = [result._repr_markdown_(), result.verdict._repr_markdown_(), comparison._repr_markdown_()]
    shown = [str(result), repr(result), str(result.verdict), str(comparison), *map(str, comparison.factors), *pages]
    assert [text for text in shown if not all(c.isprintable() or c == "\n" for c in text)] == []
    assert [page for page in pages if "<b>" in page or "](y" in page] == []


def test_a_folder_without_results_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(launchopt.DataError, match=r"no summary\.parquet here or below"):
        launchopt.load(tmp_path)
    with pytest.raises(launchopt.DataError, match="no such folder"):
        launchopt.load(tmp_path / "nothing")


def test_two_modes_or_two_folders_are_compared(folder: Path, tmp_path: Path) -> None:
    found = launchopt.compare(f"{folder}:baseline", f"{folder}:batched")
    assert (found.verdict, found.refused, found.alone) == ("FASTER", (), ())
    (factor,) = found.factors
    assert factor.value == pytest.approx(4)
    assert str(found).startswith("gemv_micro fp32, 64 commands, batched, max_batch 8, timeout 100 us: B is 4.0")
    assert found._repr_markdown_().startswith("B = `")
    other = write_run(tmp_path / "other", "other")
    both = launchopt.compare(launchopt.load(folder), other)
    assert [one.verdict for one in both.factors] == ["UNDECIDED", "UNDECIDED"]
    assert both.verdict == "UNDECIDED"


def test_what_cannot_be_compared_is_an_error_of_ours(folder: Path, tmp_path: Path) -> None:
    slower = write_run(tmp_path / "slower", "slower", gpu="NVIDIA H100")
    with pytest.raises(launchopt.LaunchoptError) as refused:
        launchopt.compare(folder, slower)
    assert refused.value.exit_code == 2
    failed = write_run(tmp_path / "failed", "failed", status="failed: wrong")
    with pytest.raises(launchopt.ComparisonError, match="failed: wrong"):
        launchopt.compare(folder, failed)
    for name, value in {"metric": "nope", "effect": 2.0}.items():
        with pytest.raises(launchopt.ConfigError, match=f"^{name}={value}: "):
            launchopt.compare(folder, slower, **{name: value})  # type: ignore[arg-type]


def test_a_value_of_another_type_is_an_error_of_ours(folder: Path) -> None:
    for name, call in {
        "folder": lambda: launchopt.load(3),  # type: ignore[arg-type]
        "b": lambda: launchopt.compare(folder, None),  # type: ignore[arg-type]
        "metric": lambda: launchopt.compare(folder, folder, metric=3),  # type: ignore[arg-type]
        "path": lambda: launchopt.load(folder).report(3),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(launchopt.ConfigError) as caught:
            call()
        assert caught.value.key == name
    with pytest.raises(launchopt.ConfigError, match=r"^path=3: "):
        launchopt.record(3)  # type: ignore[arg-type]
    with pytest.raises(launchopt.ConfigError, match=r"^folder=3: "):
        launchopt.run(folder=3)  # type: ignore[arg-type]


def test_settings_are_a_dictionary_and_each_is_given_once() -> None:
    with pytest.raises(launchopt.ConfigError, match=r"^seed=2: is given twice, and was 1$"):
        launchopt.run({"seed": 1}, seed=2)
    with pytest.raises(launchopt.ConfigError, match=r"^settings=seed=1: a dictionary, such as "):
        launchopt.run("seed=1")  # type: ignore[arg-type]


def test_a_folder_that_the_system_does_not_show_is_an_error_of_ours(folder: Path) -> None:
    long = "a" * 5000
    for call in (lambda: launchopt.load(long), lambda: launchopt.compare(long, folder)):
        with pytest.raises(launchopt.DataError, match=r"cannot be read: File name too long$"):
            call()


def test_a_page_of_an_impossible_name_is_refused(folder: Path) -> None:
    with pytest.raises(launchopt.DataError, match="NUL"):
        launchopt.load(folder).report("a\0b.html")


def test_a_side_must_have_a_name(folder: Path) -> None:
    with pytest.raises(launchopt.ConfigError, match=r'^A="": no name of a folder; '):
        launchopt.compare("", folder)


def test_an_effect_is_proposed_as_python_has_it(folder: Path) -> None:
    with pytest.raises(launchopt.ConfigError, match="did you mean effect=2%"):
        launchopt.compare(folder, folder, effect=2)
