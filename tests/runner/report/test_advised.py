"""Advice beside the best stack of a sweep: the upper limit of the interval of their paired factor decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, write

from launchopt.analysis.tables.columns import NOTHING
from launchopt.errors import DataError
from runner.report.advised import ANSWER, FILE, SWEEP, markdown
from runner.report.blocks import FILES

WORK: dict[str, Any] = {"workload": "layer", "model": "llama", "requests": 4, "layers": 8, "dtype": "bf16"}
STEADY = (1.0, 1.001, 0.999, 1.002, 0.998)
NOISY = (1.0, 1.2, 0.85, 1.1, 0.9)


SURE = "gain: 2.0x as fast as engine; no other stack of the last round can be more than 5% faster"


def page(
    folder: Path,
    walls_ms: dict[str, float],
    advised: str = "graph",
    noise: tuple[float, ...] = STEADY,
    gain: str = SURE,
) -> Path:
    """Write the sweep of one advice, in which the first stack is as noisy as `noise`."""
    rows = []
    for at, (mode, wall_ms) in enumerate(walls_ms.items()):
        walls = [wall_ms * each for each in (noise if at == 0 else STEADY)]
        rows += repeats(*walls, mode=mode, **WORK)
    write(folder / "llama_4" / SWEEP, rows)
    answer = {"advised": advised, "requests": 4, "layers": 16, "budget_s": 60, "took_s": 48.25, "stacks": 9}
    answer |= {"lines": ["now: engine takes 20.0 ms", f"do: mode={advised}", gain]}
    (folder / "llama_4" / ANSWER).write_text(json.dumps(answer))
    path = folder / FILE
    path.write_text(json.dumps({"advised": [{"run": "llama_4"}]}))
    return path


def cells(path: Path) -> list[str]:
    (line,) = [line for line in markdown(path).splitlines() if line.startswith("| llama")]
    return line.strip("| ").split(" | ")


def test_the_fastest_stack_as_advised_is_within_the_margin(tmp_path: Path) -> None:
    path = page(tmp_path, {"graph": 10.0, "engine": 20.0, "pdl": 11.0})
    work = ["llama bf16, 4 requests, NVIDIA H200", "8 of 16", "48.25 s of 60", "graph", "the same", NOTHING, "yes"]
    assert cells(path) == [*work, "yes", "3 of 9, 5"]
    counts = "Within 5%: 1 of 1; in the median 0 more. Of the sure ones: 1 of 1; in the median 0 more.\n"
    assert markdown(path).endswith(counts)
    assert FILES[FILE] is markdown


@pytest.mark.parametrize(
    ("wall_ms", "noise", "within"),
    [(9.8, STEADY, "yes"), (9.8, NOISY, "in the median"), (9.0, STEADY, "NO")],
)
def test_the_upper_limit_decides_and_a_median_above_the_margin_is_a_no(
    wall_ms: float, noise: tuple[float, ...], within: str, tmp_path: Path
) -> None:
    found = cells(page(tmp_path, {"pdl": wall_ms, "graph": 10.0}, noise=noise))
    assert (found[4], found[6]) == ("pdl", within)
    assert found[5].startswith(f"{10.0 / wall_ms:.3f}"[:4])


@pytest.mark.parametrize(
    "gain", ["gain: 1.1x as fast as engine; others may be over 5% faster: undecided", "gain: unknown"]
)
def test_an_answer_that_was_not_sure_is_counted_apart(gain: str, tmp_path: Path) -> None:
    path = page(tmp_path, {"pdl": 9.0, "graph": 10.0}, gain=gain)
    assert cells(path)[6:8] == ["NO", "no"]
    assert "Of the sure ones: 0 of 0" in markdown(path)


def test_an_advised_stack_that_did_not_run_is_a_no(tmp_path: Path) -> None:
    assert cells(page(tmp_path, {"engine": 9.0, "graph": 10.0}, "pdl"))[6] == "NO: did not run"


def test_a_stack_with_a_wrong_output_is_not_the_fastest(tmp_path: Path) -> None:
    path = page(tmp_path, {"graph": 10.0, "engine": 20.0})
    wrong = repeats(*[1.0] * 5, mode="pdl", **WORK)
    right = repeats(*[10.0] * 5, mode="graph", **WORK) + repeats(*[20.0] * 5, mode="engine", **WORK)
    write(tmp_path / "llama_4" / SWEEP, [*right, *wrong[:4], wrong[4] | {"verified": False}])
    assert cells(path)[4] == "the same"


@pytest.mark.parametrize("text", ["{}", '{"advised": [{}]}', '{"advised": [{"run": "nowhere"}]}', "["])
def test_a_file_without_advices_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(text)
    with pytest.raises(DataError, match=FILE):
        markdown(path)
