"""Where the time of a step goes: its kernels, the reads of their weights, and what overlapping launches hide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.kernel_rows import traced_rows
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from launchopt.recording import results
from runner.report import kernel_times
from runner.report.blocks import sync_readme

STEPS = 4
GEMM = {"name": "gemm", "weight": "3000x1000"}  # bf16: 6 MB, 2 us at 3,000 GB/s; fp8 with scales: 3.012 MB, 1.004 us
LAYERS = {"first": [{"name": "slot map"}], "repeated": [GEMM, {"name": "attention"}]}
LAYER = {"model": "llama", "requests": 1, "tokens": STEPS, "dtype": "bf16", "weight_bytes": STEPS * 12_000_000}
LAYER_SHAPES = {"3000x1x1000": 2 * STEPS, "norm:3000x1x1000": 2 * STEPS}
EXPERTS = {"model": "qwen", "steps": STEPS, "step_tokens": 2, "active_experts": 5.0, "dtype": "bf16", "tokens": None}
EXPERTS |= {"weights": "fp8 per channel", "weight_bytes": STEPS * 15_316_000}  # a router, and 5 experts
EXPERT_SHAPES = {"128x1x1000": STEPS, "3000x1x1000": 3 * STEPS, "3000x2x1000": 2 * STEPS}
ROUTED = {"repeated": [{"name": "router", "weight": "128x1000", "weights": "none"}, GEMM]}
SERIAL_US = [(0.0, 1.0), (1.5, 6.5), (7.0, 9.0), (9.5, 15.5), (16.0, 18.0)]  # 0.5 us between two kernels
PDL_US = [(0.0, 1.0), (0.5, 6.0), (5.0, 8.0), (7.0, 13.0), (12.0, 14.0)]


def page(folder: Path, work: dict[str, Any], shapes: dict[str, int], trace: dict[str, Any], **more: Any) -> Path:
    """Write a traced run of two modes: the last kernel of repeat r takes r us more, and steps follow 3 us later.

    The call of the last step returns 10 us after the step before it, and the GPU waits for it.
    """
    count = 5 if "first" in trace else 2
    rows, kernels = [], []
    for mode, step in (("graph", SERIAL_US[:count]), ("graph+pdl", PDL_US[:count])):
        rows += repeats(1.0, 1.0, 1.0, mode=mode, **{"traced": True, **work, **more})
        kernels += traced_rows(mode, step, repeats=3, steps=STEPS, gap_us=3.0, wait_us=10.0)
    write(folder / "run", rows)
    results.write_rows(folder / "run/kernels.parquet", results.KERNELS, kernels, {})
    results.write_manifest(folder / "run", {"ceilings": {"read_gb_per_s": 3000.0}, "stream": {"shapes": shapes}})
    path = folder / kernel_times.FILE
    path.write_text(json.dumps({"traces": [{"run": "run", "modes": ["graph", "graph+pdl"]} | trace]}))
    return path


def table(path: Path) -> list[list[str]]:
    lines = kernel_times.markdown(path).splitlines()[4:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_step_of_a_model_is_divided_into_kernels_of_layers(tmp_path: Path) -> None:
    found = table(page(tmp_path, LAYER, LAYER_SHAPES, LAYERS))
    assert [line[0] for line in found] == ["llama, 1 request, bf16, NVIDIA H200, 2 layers", *[""] * 6]
    assert [line[1:] for line in found] == [
        ["slot map", "1", "—", "—", "1.000 (1.000 to 1.000)", "1.000"],
        ["gemm", "2", "6.000 MB", "2.000", "5.500 (5.500 to 5.500)", "3.500"],
        ["attention", "2", "—", "—", "2.500 (2.000 to 3.000)", "2.500"],
        ["between kernels", "4", "—", "—", "2.000 (2.000 to 2.000)", "2.000"],
        ["**step, one after another**", "—", "12.00 MB", "4.000", "19.00 (18.00 to 20.00)", "15.00"],
        ["**step, with PDL**", "—", "12.00 MB", "4.000", "15.00 (14.00 to 16.00)", "11.00"],
        ["gap to the next step", "—", "—", "—", "3.000 (3.000 to 3.000)", "3.000"],
    ]


def test_requests_of_a_step_read_its_weights_once(tmp_path: Path) -> None:
    sixteen = {"requests": 16, "tokens": 16 * STEPS, "weight_bytes": 16 * STEPS * 12_000_000}
    shapes = {shape: 16 * count for shape, count in LAYER_SHAPES.items()}
    found = table(page(tmp_path, LAYER | sixteen, shapes, LAYERS))
    assert found[1][3:5] == ["6.000 MB", "2.000"]
    assert found[4][3:5] == ["12.00 MB", "4.000"]


def test_repeats_which_may_be_of_several_processes_have_a_range(tmp_path: Path) -> None:
    path = page(tmp_path, LAYER, LAYER_SHAPES, LAYERS)
    modes = (("graph", SERIAL_US), ("graph+pdl", PDL_US))
    kernels = [
        row for mode, us in modes for row in traced_rows(mode, us, repeats=5, steps=STEPS, gap_us=3.0, wait_us=10.0)
    ]
    results.write_rows(tmp_path / "run/kernels.parquet", results.KERNELS, kernels, {})
    assert table(path)[4][5] == "20.00 (18.00 to 22.00)"


def test_a_kernel_of_experts_reads_the_weights_of_those_that_have_tokens(tmp_path: Path) -> None:
    found = table(page(tmp_path, EXPERTS, EXPERT_SHAPES, ROUTED))
    assert found[0][0] == "experts of qwen, 2 tokens, 5 experts busy, bf16, fp8 weights per channel, NVIDIA H200"
    assert found[0][1:] == ["router", "1", "0.256 MB", "0.085", "1.000 (1.000 to 1.000)", "0.915"]
    assert found[1][1:] == ["gemm", "1", "15.06 MB", "5.020", "6.000 (5.000 to 7.000)", "0.980"]
    assert found[3][1:5] == ["**step, one after another**", "—", "15.32 MB", "5.105"]


def test_steps_that_wait_for_their_launch_calls_have_no_gap(tmp_path: Path) -> None:
    path = page(tmp_path, LAYER, LAYER_SHAPES, LAYERS)
    kernels = traced_rows("graph+pdl", PDL_US, repeats=3, steps=2, gap_us=3.0, wait_us=10.0)
    kernels += traced_rows("graph", SERIAL_US, repeats=3, steps=2, gap_us=3.0, wait_us=10.0)
    results.write_rows(tmp_path / "run/kernels.parquet", results.KERNELS, kernels, {})
    assert table(path)[-1][1] == "**step, with PDL**"


def test_a_page_has_the_table_and_its_origin_between_its_marks(tmp_path: Path) -> None:
    path, readme = page(tmp_path, LAYER, LAYER_SHAPES, LAYERS), tmp_path / "PAGE.md"
    readme.write_text(f"<!-- report:{path.name} -->\n<!-- /report:{path.name} -->\n")
    sync_readme(readme)
    assert "| llama, 1 request, bf16, NVIDIA H200, 2 layers | slot map | 1 |" in readme.read_text()
    assert "Measured on an unknown machine" in readme.read_text()


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        ({"modes": ["graph", "kernel"]}, "no traced mode 'kernel'"),
        ({"modes": ["graph"]}, "not a list of traces"),
        ({"first": []}, r"steps of \[5\] kernels, not of 0 and a multiple of 2"),
        ({"repeated": [{"name": "gemm"}] * 2}, "kernels read 0 bytes of weights, and a step 12,000,000"),
        ({"run": 1}, "not a list of traces"),
    ],
)
def test_a_trace_that_does_not_fit_the_run_is_said(trace: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        kernel_times.markdown(page(tmp_path, LAYER, LAYER_SHAPES, LAYERS | trace))


@pytest.mark.parametrize(
    ("more", "why"), [({"verified": False}, "failed or not verified"), ({"traced": False}, "no traced mode 'graph'")]
)
def test_a_wrong_output_or_an_untraced_run_has_no_table(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        kernel_times.markdown(page(tmp_path, LAYER, LAYER_SHAPES, LAYERS, **more))
