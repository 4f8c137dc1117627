"""The sentences below the table of a run: which mode is faster, how sure that is, and what to type next."""

from __future__ import annotations

import re

import pytest
from support.results.drawn_run import drawn, pairs
from support.results.summary_rows import row

from launchopt.analysis.comparison.arms import Run, Side
from launchopt.analysis.comparison.compare import compare
from launchopt.analysis.comparison.text import advice
from launchopt.recording.results import Row
from launchopt.statistics.interval import Verdict


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
