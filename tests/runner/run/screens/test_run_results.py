"""The results of a run on the screen: whole cells at any width, an answer that names its base, and a full queue."""

from __future__ import annotations

import re
import sys

import pytest
from rich.console import Console
from support.results.summary_rows import row

from launchopt.analysis.comparison.arms import Run, Side
from launchopt.analysis.comparison.compare import compare
from launchopt.analysis.comparison.text import advice
from launchopt.recording.results import Row
from launchopt.statistics.interval import Verdict
from runner.run.screens.run_results import print_results
from runner.screen.fitted import SafeConsole
from runner.screen.pager import console

WIDTHS = (60, 80, 100, 120, 200)
CAPPED = {"throttled": True, "throttle_reasons": "sw_power_cap"}
MODES = ("graph", "batched", "coalesced", "multistream", "baseline")


def drawn(
    rows: list[Row], capsys: pytest.CaptureFixture[str], out: Console | None = None, mode: str = "batched"
) -> str:
    capsys.readouterr()
    print_results(rows, "batched", "outputs/run/x", out or console())
    return capsys.readouterr().out


def shown(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the cells of each line by its label."""
    lines = (line.strip().split("  ") for line in drawn(rows, capsys).splitlines())
    return {words[0]: [word.strip() for word in words[1:] if word.strip()] for words in lines}


def pairs(factors: list[float], **columns: object) -> list[Row]:
    """Return interleaved repeats of baseline, and of batched that is faster by each factor."""
    rows = []
    for repeat, factor in enumerate(factors):
        common = {"repeat": repeat, "interleaved": True, **columns}
        rows += [row(mode="batched", wall_ms=100.0 / factor, **common), row(mode="baseline", wall_ms=100.0, **common)]
    return rows


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


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ([1.5, 1.51, 1.49, 1.5, 1.52], "FASTER: it is faster by more than 1%."),
        ([0.5, 0.51, 0.49, 0.5, 0.52], "SLOWER: it is slower by more than 1%."),
        ([1.0, 1.0001, 0.9999, 1.0, 1.0002], "SAME: the two differ by no more than 1%."),
        ([0.8, 1.3, 1.0, 0.9, 1.2], "UNDECIDED: whether they differ by more than 1% is open."),
    ],
)
def test_the_answer_names_its_base_and_its_interval(
    factors: list[float], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(drawn(pairs(factors), capsys).split())
    assert re.search(r"batched is [\d.]+x \[[\d.]+, [\d.]+\] as fast as baseline in wall time", text)
    assert "(95% interval, 5 interleaved repeats). " + said in text


def test_fewer_than_five_repeats_give_a_range_and_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(drawn(pairs([1.5, 1.4, 1.6]), capsys).split())
    said = (
        r"batched is 1\.\d+x as fast as baseline in wall time \(range 1\.400 to 1\.600\): no verdict with fewer than 5"
    )
    assert re.search(said, text)
    assert "interval, " not in text


def test_a_run_with_too_few_repeats_proposes_more_even_if_all_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert "next: the same command with repeats=8\n" in drawn(pairs([1.5, 1.5, 1.5, 1.5]), capsys)


def test_one_repeat_gives_no_verdict_and_five_are_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(drawn(pairs([1.5]), capsys).split())
    assert "as fast as baseline in wall time. One repeat gives no verdict: repeats=5 gives one. next:" in text
    assert "next: the same command with repeats=5 outputs" in text


def three(factors: dict[str, float], repeats: int = 5) -> list[Row]:
    """Return interleaved repeats of baseline, and of modes that are faster by these factors, with little noise."""
    rows = []
    for repeat in range(repeats):
        for place, (mode, factor) in enumerate({"baseline": 1.0, **factors}.items()):
            noise = 1 + 0.02 * ((repeat * (place + 1)) % 5 - 2)
            rows.append(row(mode=mode, wall_ms=100.0 * noise / factor, repeat=repeat, interleaved=True))
    return rows


def test_the_answer_of_many_modes_names_the_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(drawn(three({"graph": 3.0, "grouped": 3.01, "batched": 1.5}), capsys).split())
    said = r"Fastest: grouped, 3\.\d+x \[[\d.]+, [\d.]+\] as fast as baseline in wall time; graph cannot be told"
    assert re.search(said + r" apart from it\. batched is 1\.", text), text
    slower = " ".join(drawn(three({"graph": 0.5, "batched": 0.7}), capsys).split())
    assert "Fastest: baseline. batched is 0." in slower


def test_a_mode_that_is_not_shown_to_be_faster_is_not_named_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    noisy = three({"graph": 1.0, "batched": 0.5})
    for at, each in enumerate(each for each in noisy if each["mode"] == "graph"):
        each["wall_ms"] *= (0.7, 0.8, 1.0, 1.3, 1.5)[at]
    text = " ".join(drawn(noisy, capsys).split())
    assert "No mode is shown to be faster than baseline: graph cannot be told apart from it. " in text
    assert "Fastest" not in text


def test_modes_that_ignored_dependencies_have_no_factor_and_the_run_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = three({"graph": 3.0, "batched": 1.5})
    for each in rows:
        each.update(independent=False, ordering="none" if each["mode"] == "graph" else "per_request")
    text = " ".join(drawn(rows, capsys).split())
    assert "Fastest: batched, 1." in text
    assert "No factor: graph ignored dependencies that baseline kept." in text


def test_too_few_repeats_name_no_fastest_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Fastest" not in drawn(three({"graph": 3.0, "batched": 1.5}, repeats=4), capsys)


def test_where_no_affordable_number_decides_compare_and_the_run_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pairs([0.5, 1.9, 1.0, 0.6, 1.5])
    run = Run("", "", rows, None)
    (one,) = compare(Side("", "baseline", [run]), Side("", "batched", [run])).comparisons
    said = "Noise is too large for 1,000 repeats to decide: quiet the machine"
    text = " ".join(drawn(rows, capsys).split())
    assert said in text
    assert f"{said}. " in f"{text} "
    assert advice(one)[0] == said  # no effect of at most 25% decides
    assert "repeats=" not in text
    assert not any("repeats=" in line for line in advice(one))


def test_a_noisy_run_prints_a_command_whose_effect_decides(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pairs([0.86, 1.17, 1.0, 0.9, 1.12, 0.95, 1.08, 0.84, 1.19, 0.99, 1.16, 0.87])
    text = " ".join(drawn(rows, capsys).split())
    asked = re.search(r"\(launchopt compare outputs/run/x:baseline outputs/run/x:batched --effect (\d+)%\)\.", text)
    assert asked is not None, text
    run = Run("", "", rows, None)
    a, b = Side("outputs/run/x:baseline", "baseline", [run]), Side("outputs/run/x:batched", "batched", [run])
    found = [compare(a, b, smallest_effect=(int(asked[1]) + more) / 100).comparisons[0].verdict for more in (-1, 0)]
    assert found == [Verdict.UNDECIDED, Verdict.SAME]


def test_compare_and_the_run_propose_the_same_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (2, 5, 12, 60):
        rows = pairs([1.01 + 0.01 * (-1) ** each * (1 + each / count) for each in range(count)])
        run = Run("", "", rows, None)
        (one,) = compare(Side("", "baseline", [run]), Side("", "batched", [run])).comparisons
        assert one.verdict is Verdict.UNDECIDED
        assert f"next: the same command with repeats={one.next_samples}\n" in drawn(rows, capsys)
        assert advice(one)[-1] == f"next: the same run with repeats={one.next_samples}"


def test_the_next_command_follows_and_the_folder_is_last(capsys: pytest.CaptureFixture[str]) -> None:
    decided = drawn(pairs([1.5, 1.51, 1.49, 1.5, 1.52]), capsys).splitlines()
    assert decided[-2].startswith("next: launchopt verdict outputs/run/x ")
    assert decided[-1] == "outputs/run/x"
    undecided = drawn(pairs([0.99, 1.04, 1.0, 1.01, 1.03]), capsys).splitlines()
    assert re.fullmatch(r"next: the same command with repeats=\d+", undecided[-2])


@pytest.mark.parametrize("noise", [0.012, 0.03])
@pytest.mark.parametrize("taken", [4, 5, 12, 60])
def test_an_open_verdict_proposes_at_least_twice_the_repeats_taken(
    taken: int, noise: float, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = [1.01 + noise * (-1) ** each * (1 + each / taken) / 2 for each in range(taken)]
    text = drawn(pairs(factors), capsys)
    asked = re.search(r"next: the same command with repeats=(\d+)", text)
    assert asked is not None, text
    assert 2 * taken <= int(asked[1]) <= max(50, 2 * taken)


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


def test_a_factor_that_differs_from_the_ratio_of_the_medians_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    agree = " ".join(drawn(pairs([1.5, 1.51, 1.49, 1.5, 1.52]), capsys).split())
    assert "the medians in the table" not in agree
    rows = []
    # Three slow repeats of the base meet two slow ones of the mode, so the medians come from different repeats.
    for repeat, (base, mode) in enumerate([(100, 50), (100, 50), (300, 150), (300, 150), (300, 50)]):
        rows += [row(mode=name, wall_ms=ms, repeat=repeat) for name, ms in (("baseline", base), ("batched", mode))]
    differ = " ".join(drawn(rows, capsys).split())
    assert "batched is 2.0" in differ
    assert "The factor is the typical ratio of one repeat; the medians in the table give 6.000x." in differ


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
