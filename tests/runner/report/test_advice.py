"""What to do for how many requests: advice.json among results, as a table of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from runner.report import advice
from runner.report.which_strategy import NO_BREAK

STREAM = {"workload": "decode", "model": "tiny", "layers": 2, "requests": 4, "tokens": 100, "ordering": "per_request"}


def page(folder: Path, *walls: dict[str, float], gains: list[tuple[str, str]], **stream: Any) -> Path:
    """Write a run for each of `walls` (ms by mode), and advice for 4 requests."""
    for index, modes in enumerate(walls):
        rows = [row for mode, wall in modes.items() for row in repeats(wall, mode=mode, **{**STREAM, **stream})]
        write(folder / str(index), rows)
    runs = [{"requests": 4, "run": str(index), "bases": []} for index in range(len(walls))]
    (folder / "which_strategy.json").write_text(json.dumps({"runs": runs}))
    path = folder / advice.FILE
    advices = [{"requests": 4, "do": "Batch.", "gains": gains}]
    path.write_text(json.dumps({"runs": "which_strategy.json", "advice": advices}))
    return path


def test_a_factor_is_that_of_the_only_run_or_the_range_of_all_that_have_both_modes(tmp_path: Path) -> None:
    first, second = {"baseline": 300, "coalesced": 30, "graph": 20}, {"coalesced": 30, "graph": 24}
    path = page(tmp_path, first, second, gains=[("graph", "coalesced"), ("coalesced", "baseline")])
    assert advice.markdown(path).splitlines()[-1].replace(NO_BREAK, " ") == (
        "| 4 | Batch. | graph 1.25x to 1.50x over coalesced<br>coalesced 10.0x over baseline |"
    )


def test_tpot_stands_where_its_factor_is_another(tmp_path: Path) -> None:
    path = page(tmp_path, {"coalesced": 30, "graph": 20}, gains=[("graph", "coalesced")])
    for tpot_ms, said in ((20.1, ""), (25.0, "; TPOT 1.20x")):
        each = {"coalesced": (30, 30.0), "graph": (20, tpot_ms)}
        rows = [
            row for mode, (wall, tpot) in each.items() for row in repeats(wall, mode=mode, tpot_p50_ms=tpot, **STREAM)
        ]
        write(tmp_path / "0", rows)
        cell = advice.markdown(path).splitlines()[-1].replace(NO_BREAK, " ")
        assert f"graph 1.50x over coalesced{said} |" in cell


def test_a_gain_that_no_run_has_is_refused(tmp_path: Path) -> None:
    path = page(tmp_path, {"baseline": 2, "graph": 1}, gains=[("megakernel", "graph")])
    with pytest.raises(DataError, match="no run has both megakernel and graph"):
        advice.markdown(path)


def test_a_run_that_is_not_verified_is_refused(tmp_path: Path) -> None:
    path = page(tmp_path, {"baseline": 2, "graph": 1}, gains=[("graph", "baseline")], verified=False)
    with pytest.raises(DataError, match="not verified"):
        advice.markdown(path)
