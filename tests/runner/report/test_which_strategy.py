"""Which mode is fastest for how many requests: which_strategy.json among results, as a table of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from runner.report import which_strategy

STREAM = {"workload": "decode", "model": "tiny", "layers": 2, "requests": 4, "tokens": 100, "ordering": "per_request"}


def page(folder: Path, *rows: list[dict[str, Any]], **run: Any) -> Path:
    write(folder / "0", [row for each in rows for row in each])
    path = folder / which_strategy.FILE
    path.write_text(json.dumps({"runs": [{"requests": 4, "run": "0", "bases": ["baseline"], **run}]}))
    return path


def test_the_fastest_mode_is_named_with_its_factors_over_the_second_and_the_bases(tmp_path: Path) -> None:
    modes = [("baseline", 200, 190, 210), ("graph", 20, 20, 20), ("coalesced", 30, 29, 31), ("batched", 50, 50, 50)]
    path = page(tmp_path, *(repeats(*wall, mode=mode, **STREAM) for mode, *wall in modes))
    assert which_strategy.markdown(path).splitlines()[-1].replace(which_strategy.NO_BREAK, " ") == (
        "| 4 | decode fp32, model=tiny, 2 layers, 25 tokens a request | **graph** | 5,000 "
        "| 1.50x (1.45 to 1.55) coalesced<br>10.0x (9.50 to 10.5) baseline | 4, 3 | 0 |"
    )


def test_a_mode_that_is_faster_in_tpot_is_named(tmp_path: Path) -> None:
    graph = repeats(20, 20, mode="graph", tpot_p50_ms=2.0, **STREAM)
    path = page(tmp_path, graph, repeats(30, 30, mode="baseline", tpot_p50_ms=1.0, **STREAM))
    line = which_strategy.markdown(path).splitlines()[-1].replace(which_strategy.NO_BREAK, " ")
    assert "| **graph**<br>TPOT: baseline |" in line
    assert "1.50x (1.50 to 1.50) baseline; TPOT 0.500x" in line


def test_notes_stand_below_the_table(tmp_path: Path) -> None:
    path = page(tmp_path, repeats(2, mode="graph", **STREAM), repeats(4, mode="baseline", **STREAM))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"notes": ["One machine."]}))
    assert which_strategy.markdown(path).endswith(" |\n\n- One machine.\n")


def test_traced_rows_do_not_count(tmp_path: Path) -> None:
    traced = repeats(1, 1, mode="graph", traced=True, **STREAM)
    path = page(tmp_path, traced, repeats(2, 2, mode="batched", **STREAM), repeats(4, 4, mode="baseline", **STREAM))
    assert "**batched**" in which_strategy.markdown(path)


@pytest.mark.parametrize("bad", [{"verified": False}, {"status": "launch failed"}, {"ordering": "none"}])
def test_a_run_that_is_not_right_is_refused(bad: dict[str, Any], tmp_path: Path) -> None:
    path = page(tmp_path, repeats(1, mode="graph", **{**STREAM, **bad}), repeats(2, mode="baseline", **STREAM))
    with pytest.raises(DataError, match="mode graph: failed, not verified, or without order"):
        which_strategy.markdown(path)


def test_a_run_of_other_requests_is_refused(tmp_path: Path) -> None:
    path = page(tmp_path, repeats(1, mode="graph", **STREAM), repeats(2, mode="baseline", **STREAM), requests=16)
    with pytest.raises(DataError, match="4 requests, not 16"):
        which_strategy.markdown(path)


def test_the_page_has_a_switch_for_every_mode_that_won() -> None:
    text = (ROOT / "docs/which-strategy.md").read_text()
    won = {
        line.split("**")[1] for line in text.split("## The runs")[1].splitlines() if "**" in line and "from" not in line
    }
    switches = text.split("## The switch")[1]
    modes = {mode for mode in won if " " not in mode}
    assert modes >= {"graph", "megakernel"}
    assert [mode for mode in modes if f"`{mode}`" not in switches] == []
