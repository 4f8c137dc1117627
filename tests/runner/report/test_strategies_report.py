"""The report of strategies: from rows and manifests to Markdown, a terminal, a README and a picture.

The golden file is what `test_markdown_is_the_golden_file` wrote to its temporary folder; after an intended
change copy it from there, and read the difference.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.paths import TESTS
from support.results.summary_rows import DECODE, TOKENS, repeats, row, write

from launchopt.recording import results
from runner.report import __main__ as report
from runner.report import page, tables

GOLDEN = TESTS / "golden" / "strategies.md"
CEILINGS = {"peak_tflops": 50.0, "achieved_tflops": 0.1, "setup_ms": 12.5}
REFUSED = {
    "fused_qkv": "no q, k and v to merge",
    "fused_epilogue": "no bias to fuse",
    "torch_graph": "needs torch: pip install -e '.[torch]'",
    "torch_eager": "needs torch: pip install -e '.[torch]'",
}


def rows() -> list[results.Row]:
    """GEMVs in six modes, two of them traced as well, one failed; and requests in three, the settings not all alike."""
    gemv: dict[str, Any] = {**CEILINGS, "run_id": "strategies/0"}
    few: dict[str, Any] = {"launch_calls": 3907, "host_submit_ns_per_launch": 9500.0, "latency_p99_us": 800.25}
    graph = {**few, "padded_commands": 384, "graph_replays": 3907, "setup_ms": 250.5, "capture_ms": 100.0}
    graph |= {"instantiate_ms": 90.25, "upload_ms": 10.0, "update_ms": 33.125}
    ceiling = {"achieved_gb_per_s": 4410.0, "above_ceiling": "reads only; a copy also writes"}
    tensor = {**few, "achieved_tflops": 45.0, "setup_ms": 12.0}
    failed = {"verified": False, "max_rel_error": 0.7, "status": "1 of 3 outputs | wrong\nby <far>"}
    traced = {"traced": True, "run_id": "traced/0"}
    decode: dict[str, Any] = {**TOKENS, "workload": "layer", "setup_ms": 1.0, "run_id": "strategies/1"}
    return [
        *repeats(16_000.0, 16_100.0, 15_900.0, 16_000.0, 16_000.0, **gemv),
        *repeats(1000.0, 1010.0, 990.0, 1000.0, 1000.0, mode="batched", **{**gemv, **few, **ceiling}),
        *repeats(2000.0, 2010.0, 1990.0, 2000.0, 2000.0, mode="graph", **{**gemv, **graph}),
        *repeats(2500.0, 2510.0, 2490.0, 2500.0, 2500.0, mode="coalesced", **{**gemv, **tensor}),
        *repeats(
            15_000.0,
            16_100.0,
            17_900.0,
            16_000.0,
            15_500.0,
            mode="multistream",
            streams=4,
            **{**gemv, "setup_ms": 13.0},
        ),
        *repeats(900.0, 901.0, 902.0, mode="grouped", **{**gemv, **failed}),
        row(kernels=2_000_000, gpu_busy_ms=15_500.0, wall_ms=30_000.0, **{**gemv, **traced}),
        row(mode="graph", kernels=3907, gpu_busy_ms=950.5, wall_ms=1.0, **{**gemv, **graph, **traced}),
        *repeats(650.0, 651.0, **decode),
        *repeats(640.0, 641.0, mode="batched", **decode),
        *repeats(700.0, 701.0, mode="torch_eager", **{**decode, "max_batch": 64, "setup_ms": 55.0}),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a sweep leaves it: a job in each folder, with what was refused in its manifest."""
    base = tmp_path / "strategies"
    for run_id, refused in (
        ("strategies/0", REFUSED),
        ("strategies/1", {"triton_batched": "no ROPE"}),
        ("traced/0", None),
    ):
        job = write(base / run_id.replace("/", "_"), [each for each in rows() if each["run_id"] == run_id])
        more = {} if refused is None else {"refused": refused}
        results.write_manifest(job, {"run_id": run_id, "overrides": ["experiment=strategies"], **more})
    return base


def test_markdown_is_the_golden_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(folder), "--strategies"]) == 0
    written = (folder / "strategies.md").read_text(encoding="utf-8")
    assert written == GOLDEN.read_text(encoding="utf-8")
    assert capsys.readouterr().out == written
    assert not (folder / "report.md").exists()


def test_a_readme_block_of_the_experiment_is_its_strategies(folder: Path) -> None:
    readme = folder.parent / "README.md"
    readme.write_text("<!-- report:strategies -->\n<!-- /report:strategies -->\n")
    assert report.main(["--readme", str(readme)]) == 0
    text = readme.read_text(encoding="utf-8")
    assert "**gemv_micro fp32, 2,000,000 commands**" in text
    assert "| 34,000 (34.00 ms) |" in text
    assert "- Not installed: torch_eager, torch_graph (needs torch" in text
    assert "| batched | 640.5 |" in text
    assert report.main(["--readme", str(readme), "--check"]) == 0


def test_results_of_the_old_name_keep_their_block_and_the_old_option_works_with_a_notice(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in folder.iterdir():
        results.write_manifest(job, {**results.read_manifest(job), "overrides": ["experiment=remedies"]})
    readme = folder.parent / "README.md"
    readme.write_text("<!-- report:strategies -->\n<!-- /report:strategies -->\n")
    assert report.main(["--readme", str(readme)]) == 0
    assert "Not applicable:" in readme.read_text(encoding="utf-8")
    assert report.main([str(folder), "--remedies"]) == 0
    (notice,) = capsys.readouterr().err.splitlines()
    assert notice.startswith("notice: --remedies is now --strategies")


@pytest.mark.parametrize("overrides", [["experiment=decode_in_order"], []])
def test_a_readme_block_of_other_folders_is_their_strategies_once_reported_so(
    folder: Path, overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for job in folder.iterdir():
        results.write_manifest(job, {**results.read_manifest(job), "overrides": overrides})
    readme = folder.parent / "README.md"
    readme.write_text("<!-- report:strategies -->\n<!-- /report:strategies -->\n")
    assert report.main(["--readme", str(readme)]) == 0
    assert "Not applicable:" not in readme.read_text(encoding="utf-8")
    assert report.main([str(folder), "--strategies"]) == 0
    assert report.main(["--readme", str(readme), "--check"]) == 1
    assert report.main(["--readme", str(readme)]) == 0
    assert "Not applicable:" in readme.read_text(encoding="utf-8")


def test_rows_without_a_manifest_have_no_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(write(tmp_path, repeats(9, 9, 9, **DECODE))), "--strategies"]) == 0
    shown = capsys.readouterr().out
    assert "Not applicable" not in shown
    assert "| baseline (dependencies ignored) | 3 | 9.000 |" in shown


def test_traced_runs_alone_have_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(write(tmp_path, [row(traced=True)])), "--strategies"]) == 2
    assert "no untraced run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"run_id": ', "[]"])
def test_a_broken_manifest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (write(tmp_path, [row()]) / "manifest.json").write_text(text)
    assert report.main([str(tmp_path), "--strategies"]) == 2
    assert f"error: {tmp_path / 'manifest.json'}: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--strategies"], ["DIR", "--strategies", "--frontier"]])
def test_arguments_that_do_not_go_together(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        report.main(arguments)
    assert stopped.value.code == 2


def test_on_a_terminal_140_columns_are_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(page, "console", lambda: Console(file=screen, width=140, color_system=None))
    tables.strategies([folder])
    shown = screen.getvalue()
    for text in (
        "16.0x [15.9, 16.1]",
        "FAILED (3)",
        "multistream ",
        "34,000",
        "capture 100.0 ms",
        "Not applicable: fused_qkv (no q, k and v to merge)",
    ):
        assert text in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 140
    lines = [line.split() for line in shown.splitlines()]
    assert len([line for line in lines if line[-1:] in (["yes"], ["NO"])]) == 9, "a mode is a line"
