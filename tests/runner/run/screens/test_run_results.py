"""The results of a run on the screen: whole cells at any width, marks, and a full queue."""

from __future__ import annotations

import re
import sys

import pytest
from support.results.drawn_run import drawn, shown
from support.results.summary_rows import row

from launchopt.recording.results import Row
from runner.run.screens.run_results import print_results
from runner.screen.fitted import SafeConsole
from runner.screen.pager import console

WIDTHS = (60, 80, 100, 120, 200)
CAPPED = {"throttled": True, "throttle_reasons": "sw_power_cap"}
MODES = ("graph", "batched", "coalesced", "multistream", "baseline")


def test_runs_of_quantised_weights_show_the_format_of_the_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    fp8 = "fp8 per channel"
    rows = [row(mode="baseline", weights=fp8, dtype="bf16"), row(mode="batched", weights=fp8, quantised_inputs=fp8)]
    assert shown(rows, capsys)["inputs"] == ["bf16", fp8]
    assert "inputs" not in shown([row()], capsys)


def many() -> list[Row]:
    values = {"latency_p50_us": 2_311_061.4, "latency_p99_us": 2_663_383.0, "launch_calls": 8192, "commands": 8192}
    return [row(mode=mode, device="cpu", gpu=None, repeat=0, arrival="poisson", **values) for mode in MODES]


def test_the_table_marks_throttled_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    seen = {"sm_clock_mhz": 1980.0, "sm_clock_min_mhz": 1200.0, "energy_mj_per_command": 2.51234, "power_w": 412.3}
    rows = [
        *(row(repeat=0, **CAPPED, **seen), row(repeat=1, throttled=False, **seen)),
        *(row(repeat=0, mode="batched", throttled=False), row(repeat=0, mode="graph")),
    ]
    lines = shown(rows, capsys)
    assert lines["throttled repeats"] == ["1 of 2 (sw_power_cap)", "none seen", "-"]
    assert lines["SM clock MHz (median / lowest)"] == ["1,980 / 1,200", "- / -", "- / -"]
    assert lines["energy mJ per command"] == ["2.512", "-", "-"]
    assert lines["power W"] == ["412", "-", "-"]


def test_the_table_of_a_cpu_has_no_such_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown([row(device="cpu", gpu=None)], capsys)
    assert "wall ms" in lines
    assert not {"throttled repeats", "power W", "GPU span ms"} & set(lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_and_no_word_is_cut(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = drawn(many(), capsys, SafeConsole(file=sys.stdout, width=width))
    table = text[: text.index("next:")]
    assert max(map(len, table.splitlines())) <= width
    assert table.count("2,311,061.4 / 2,663,383.0") == len(MODES)
    assert len(re.findall(r"(?<![\d,])8,192(?![\d,])", table)) == len(MODES) + 1, "launch calls, and the title"
    words = set(re.findall(r"[^\s─]+", table))
    assert {*MODES, "queue", "latency", "verified", "commands/s", "independent"} <= words


def test_bases_stand_first_and_the_others_in_alphabetical_order(capsys: pytest.CaptureFixture[str]) -> None:
    text = drawn(many(), capsys, SafeConsole(file=sys.stdout, width=200))
    heading = next(line for line in text.splitlines() if "multistream" in line)
    assert heading.split()[-5:] == ["baseline", "coalesced", "batched", "graph", "multistream"]


def test_a_full_queue_says_so_instead_of_a_latency(capsys: pytest.CaptureFixture[str]) -> None:
    full = {"arrival": "closed", "commands": 1000, "launch_calls": 1000, "tokens": None}
    rows = [row(mode="baseline", wall_ms=100.0, latency_p50_us=50_000.0, latency_p99_us=99_000.0, **full)]
    text = drawn(rows, capsys)
    assert "queue saturated: latency is queue depth, not service time" in " ".join(text.split())
    assert "latency us" not in text
    assert re.search(r"time per command us +100\.00", text)
    quick = [row(mode="baseline", wall_ms=100.0, latency_p50_us=110.0, latency_p99_us=150.0, **full)]
    assert "latency us p50 / p99" in drawn(quick, capsys)


def test_a_name_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    text = drawn([row(mode="bat\x1b[2Jched", workload="gemv\x1b]0;x\x07")], capsys)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "bat\\x1b[2Jched" in text


def test_an_open_loop_that_keeps_up_shows_no_completion_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """With few requests the rate is far from the arrivals', although all have finished."""
    held = {"arrival": "poisson", "arrival_rate_per_s": 50.0, "completed_rate_per_s": 13.9, "overloaded": False}
    rows = [row(mode=mode, **held) for mode in ("baseline", "batched")]
    lines, text = shown(rows, capsys), drawn(rows, capsys)
    assert (lines["arrivals, commands/s"], lines["overloaded"]) == (["50.0", "50.0"], ["no", "no"])
    assert "13.9" not in text
    assert "Overloaded" not in text


@pytest.mark.parametrize(("tokens", "noun"), [(None, "1,000 commands"), (640, "10 requests")])
def test_an_overloaded_open_loop_says_that_nothing_was_lost(
    tokens: int | None, noun: str, capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"arrival": "poisson", "arrival_rate_per_s": 50.0, "completed_rate_per_s": 13.9, "overloaded": True}
    rows = [row(mode="baseline", tokens=tokens, requests=10, commands=1000, **late)]
    text = " ".join(drawn(rows, capsys).split())
    assert "overloaded YES: 13.9/s of 50/s" in text
    assert f"Overloaded (baseline): arrivals come faster than results. All {noun} finished;" in text


def test_how_many_outputs_were_checked_is_shown_if_not_all_were(capsys: pytest.CaptureFixture[str]) -> None:
    for count, expected in ((1_000, "yes ("), (125, "yes, 12.5% checked (")):
        rows = [row(mode="batched", commands=1_000, checked_commands=count, tokens=None)]
        assert shown(rows, capsys)["verified (max error)"][0].startswith(expected)


def test_a_mode_that_launched_nothing_has_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    none = {"launch_calls": 0, "latency_p50_us": None, "latency_p99_us": None}
    rows = [row(mode="batched", commands=0, checked_commands=0, tokens=None, **none)]
    assert "0.0% checked" in shown(rows, capsys)["verified (max error)"][0]


def test_a_bandwidth_that_changed_during_the_run_leaves_the_rate_without_a_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed = {"ceilings_change": 0.31, "copy_gb_per_s": None, "read_gb_per_s": None, "peak_tflops": None}
    rows = [row(mode="batched", achieved_gb_per_s=2100.0, arrival="poisson", **changed)]
    assert shown(rows, capsys)["memory GB/s (% of peak)"] == ["2,100.0"]


@pytest.mark.parametrize(
    ("tflops", "label", "cells"),
    [(0.00021, "GFLOP/s", ["0.210"]), (1.5, "TFLOP/s", ["1.500"]), (None, "TFLOP/s", ["-"])],
)
def test_a_small_rate_of_operations_is_in_gflops(
    tflops: float | None, label: str, cells: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown([row(mode="batched", achieved_tflops=tflops)], capsys)[label] == cells


def test_the_command_for_a_waterfall_is_shown_if_the_run_was_not_traced(capsys: pytest.CaptureFixture[str]) -> None:
    for traced in (False, True):
        print_results([row(traced=traced)], "batched", "outputs/run/x", console(), has_orders=True)
        assert ("launchopt report outputs/run/x --waterfall" in capsys.readouterr().out) is not traced


def test_flushes_have_separators(capsys: pytest.CaptureFixture[str]) -> None:
    flushes = shown([row(mode="batched", flush_full=1280)], capsys)["flushes full / deadline / stall / idle / drain"]
    assert flushes[0].startswith("1,280 / ")
