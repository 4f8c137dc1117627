"""The comment on a pull request: short whatever the runs hold, and a table that renders."""

from __future__ import annotations

from pathlib import Path

from support.results.recorded_runs import HOSTILE, write_run, write_sweep

from launchopt.report.pull_request import MOST_BYTES, MOST_ROWS, pull_request_markdown
from launchopt.report.source import read_source


def test_verdict_table_and_environment(tmp_path: Path) -> None:
    text = pull_request_markdown(read_source([write_run(tmp_path / "run"), write_sweep(tmp_path / "sweep")]))
    lines = text.splitlines()
    assert lines[0] == "### Launch overhead on NVIDIA H200"
    assert (
        "1 of 2 streams of commands have a mode that is proven faster than the baseline. The gain: batched 4.00x"
        in text
    )
    table = [line for line in lines if line.startswith("| ")]
    assert any("batched (max_batch 8, timeout 100 us) | 4.00x [4.00, 4.00] | 0.513 | 0.128" in line for line in table)
    details = text.index("<details>")
    assert text.index("git_revision: 0123456789abcdef") > details
    assert text.rstrip().endswith("</details>")


def test_tables_have_as_many_cells_as_headings(tmp_path: Path) -> None:
    text = pull_request_markdown(read_source([write_run(tmp_path, status="a | b\n| c |", verified=False)]))
    widths: list[set[int]] = [set()]
    for line in text.splitlines():
        if line.startswith("|"):
            widths[-1].add(line.replace("\\|", "").count("|"))
        elif widths[-1]:
            widths.append(set())
    assert [len(each) for each in widths if each] == [1, 1]


def test_it_fits_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    for index in range(MOST_ROWS + 3):
        write_run(tmp_path / f"{index}", f"run {index} {'x' * 5000}", shapes=f"{index}x1x1", status="é" * 9000)
    text = pull_request_markdown(read_source([tmp_path]))
    assert len(text.encode("utf-8")) < MOST_BYTES
    assert "3 more streams of commands are in the HTML report." in text


def test_html_in_a_name_is_text(tmp_path: Path) -> None:
    text = pull_request_markdown(read_source([write_run(tmp_path, HOSTILE)]))
    assert HOSTILE not in text
    assert "&lt;script>" in text
