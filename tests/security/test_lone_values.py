"""Results of other programs, in which a column has a value and those that belong to it have none: no traceback."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from support.results.summary_rows import repeats, row, write

from launchopt.recording import results
from runner import commands


def some(kind: pa.DataType) -> object:
    """Return a plausible value of a column."""
    if pa.types.is_boolean(kind):
        return True
    return 2 if pa.types.is_integer(kind) else 0.5 if pa.types.is_floating(kind) else "x"


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each column that a plain row lacks, with a value in it."""
    folder, plain = tmp_path_factory.mktemp("lone"), row(wall_ms=1.0)
    missing = [field for field in results.SUMMARY if plain.get(field.name) is None]
    assert {"expert_routing", "gpus", "tensor"} <= {field.name for field in missing}
    for field in missing:
        own = {field.name: some(field.type), "run_id": field.name}
        write(
            folder / field.name,
            [*repeats(2.0, 2.1, mode="baseline", **own), *repeats(1.0, 1.1, mode="batched", **own)],
        )
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "report --output page.md",
        "report --strategies --output page.md",
        "report --frontier --output page.md",
        "report --waterfall --output page.md",
        "report --html page.html",
        "verdict",
        "dataset --output all.parquet",
    ],
)
def test_a_lone_value_ends_no_command_that_reads_results(
    words: str, lone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *others = words.split()
    assert commands.main([name, str(lone), *others]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_lone_value_ends_no_budget_and_no_comparison(lone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in lone.iterdir():
        assert commands.main(["budget", "tokens_per_day=1e6", f"from={folder}"]) in (0, 2)
        assert commands.main(["compare", f"{folder}:baseline", f"{folder}:batched"]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err
