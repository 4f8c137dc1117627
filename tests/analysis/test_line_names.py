"""Lines of one mode in one table: each text that names one of them says which."""

from __future__ import annotations

import pytest
from support.results.summary_rows import TOKENS, repeats

from launchopt.analysis.line_names import labelled, named, told_apart
from launchopt.analysis.tables.markdown import table_markdown
from launchopt.analysis.tables.rows import build_tables
from launchopt.recording.results import Row

WALLS = (10.0, 10.1, 9.9, 10.2, 9.8)


def runs(*settings: dict[str, object]) -> list[Row]:
    """Baseline and graph of several runs, of which each has its settings."""
    found = []
    for settings_of_run in settings:
        found += repeats(*WALLS, mode="baseline", **settings_of_run)
        found += repeats(*(wall / 2 for wall in WALLS), mode="graph", **settings_of_run)
    return found


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([{"run_id": "a"}], ["baseline"]),
        ([{"run_id": "a"}, {"run_id": "b"}], ["baseline (run a)", "baseline (run b)"]),
        ([{"run_id": "a", "max_batch": 8}, {"run_id": "b", "max_batch": 9}],
         ["baseline (max_batch 8, timeout 150 us)", "baseline (max_batch 9, timeout 150 us)"]),
        ([{"run_id": "a", "max_batch": 8}, {"run_id": "b", "max_batch": 9}, {"run_id": "c", "max_batch": 9}],
         ["baseline (max_batch 8, timeout 150 us)", "baseline (max_batch 9, timeout 150 us, run b)",
          "baseline (max_batch 9, timeout 150 us, run c)"]),
    ],
)  # fmt: skip
def test_a_name_has_only_what_tells_lines_apart(settings: list[dict[str, object]], names: list[str]) -> None:
    (table,) = build_tables(runs(*settings))
    lines = [line for line in table.lines if line["mode"] == "baseline"]
    assert sorted(named(line, table.lines) for line in lines) == names
    assert len({labelled(line, table.lines) for line in table.lines}) == len(table.lines)
    assert all(" · ".join(told_apart(line, table.lines)[1:]) in labelled(line, table.lines) for line in lines)


def test_a_table_of_tokens_says_of_which_run_a_line_is() -> None:
    rows = [row for name in ("monday", "tuesday") for row in repeats(*WALLS, **(TOKENS | {"run_id": name}))]
    (table,) = build_tables(rows)
    _, _, tokens = table_markdown(table, "piped").partition("### Tokens")
    assert [name in tokens for name in ("| run |", "| monday |", "| tuesday |")] == [True] * 3
