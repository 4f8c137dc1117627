"""Two profiles side by side."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.results.nsys_export import Export

from launchopt.errors import DataError
from runner.profiles.nsys_compare import main


def profile(path: Path, mode: str, kernels: int) -> Path:
    """Write a profile with a warm-up run and one range of `mode`, where one call starts `kernels` kernels of 10 ns."""
    export = Export(path)
    export.domain("launchopt")
    export.span("warm-up run", 0, 50)
    export.call(10, 1)
    export.kernel(20, 30, 1)
    export.span(f"{mode} 64x1x8192 fp32", 100, 2_000_100)
    export.call(110, 2)
    for number in range(kernels):
        export.kernel(1000 + 10 * number, 1010 + 10 * number, 2)
    return export.close()


@pytest.fixture
def profiles(tmp_path: Path) -> list[str]:
    a, b = profile(tmp_path / "a.sqlite", "batched", 2), profile(tmp_path / "b.sqlite", "graph", 5)
    return [f"batched={a}", f"graph={b}"]


def table(printed: str) -> dict[str, list[str]]:
    """Values by the quantity's name; all piped columns but the first have no spaces."""
    rows = [line.rsplit(maxsplit=3) for line in printed.splitlines() if not line.startswith("in ranges")]
    return {row[0].strip(): row[1:] for row in rows if len(row) == 4}


def test_values_and_ratios(profiles: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(profiles) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split()[-6:] == ["A:", "batched", "B:", "graph", "B", "/", "A"][1:]
    rows = table(printed)
    assert rows["kernels"] == ["2", "5", "2.500"]
    assert rows["ranges (a launch of a batch each)"] == ["1", "1", "1.000"]
    assert rows["host ms in ranges"] == ["2.000", "2.000", "1.000"]
    assert rows["kernels a range"] == ["2.000", "5.000", "2.500"]
    assert "Times are traced" in printed


def test_the_same_mode_twice_is_told_apart_in_the_file(
    profiles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "compare.parquet"
    assert main([profiles[0], profiles[0], "--output", str(output)]) == 0
    assert table(capsys.readouterr().out)["kernels"] == ["2", "2", "1.000"]
    rows = pq.read_table(output).to_pylist()
    assert {(row["side"], row["mode"]) for row in rows} == {("A", "batched"), ("B", "batched")}
    assert sum(row["kernels"] for row in rows if row["side"] == "A") == 3  # with that of the warm-up run
    assert not list(tmp_path.glob(".*"))


def test_a_mode_that_the_profile_does_not_hold(profiles: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([profiles[0], profiles[1].replace("graph=", "pdl=")]) == 0
    printed = capsys.readouterr().out
    assert "B: no range of mode=pdl: is that the mode of this profile?" in printed
    assert table(printed)["kernels"] == ["2", "0", "0.000"]
    assert table(printed)["launch call p50 us"][1:] == ["-", "-"]


def test_nothing_to_divide_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = profile(tmp_path / "a.sqlite", "batched", 0)
    assert main([f"batched={empty}", f"batched={empty}"]) == 0
    assert table(capsys.readouterr().out)["kernels"] == ["0", "0", "-"]


def test_errors_are_one_line(profiles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.sqlite"
    assert main([profiles[0], f"graph={missing}"]) == DataError.exit_code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {missing}: no such file\n")


@pytest.mark.parametrize("argument", ["a.sqlite", "=a.sqlite", "batched="])
def test_a_profile_without_its_mode_is_refused(
    argument: str, profiles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument, profiles[1]])
    assert ended.value.code == 2
    assert "must be a mode and its profile, as MODE=FILE" in capsys.readouterr().err
