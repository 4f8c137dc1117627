"""What a row says of its stream: whether the order of the commands matters."""

from __future__ import annotations

import pytest
from support.results.summary_rows import DECODE, repeats, row

from launchopt.analysis.comparison.likeness import unlike_work
from launchopt.analysis.stream_rows import DEPENDENCIES_IGNORED, disorder, is_independent, stream_subtitle, stream_title
from launchopt.analysis.tables.columns import RATES, below_table
from launchopt.analysis.tables.markdown import grid, report_markdown
from launchopt.analysis.tables.rows import build_tables, own_bases
from launchopt.analysis.tables.strategies import build_strategies
from launchopt.analysis.tables.strategies_markdown import strategies_grid, strategies_markdown
from launchopt.report.titles import stream_names


@pytest.mark.parametrize("workload", ["gemv_micro", "mine"])
def test_a_run_says_whether_its_commands_are_independent_whatever_its_workload_is_called(workload: str) -> None:
    free = row(workload=workload, independent=True, ordering="none")
    assert is_independent(free)
    assert disorder(free) is None
    assert unlike_work(free, {**free, "ordering": "per_request"}) == []
    bound = row(workload=workload, independent=False, ordering="none")
    assert not is_independent(bound)
    assert disorder(bound) == DEPENDENCIES_IGNORED
    assert unlike_work(bound, {**bound, "ordering": "per_request"})


def test_an_old_file_goes_by_the_name() -> None:
    assert is_independent(row(independent=None))
    assert not is_independent(row(**DECODE, independent=None))


@pytest.mark.parametrize(
    ("modes", "base"),
    [
        (["graph", "coalesced", "baseline"], "baseline"),
        (["graph", "coalesced", "batched"], "coalesced"),
        (["graph", "pdl", "batched"], "batched"),
    ],
)
def test_several_modes_on_one_stream_are_compared_whether_or_not_a_usual_base_is_among_them(
    modes: list[str], base: str
) -> None:
    rows = [each for mode in modes for each in repeats(10.0, 10.1, 9.9, 10.0, 10.0, mode=mode)]
    (table,) = build_tables(rows)
    assert table.lines[0]["mode"] == base
    others = table.lines[1:]
    assert [line.baseline["mode"] for line in others if line.baseline] == [base, base]
    named = [f"speed-up over {base}"] if base != "baseline" else []
    assert [line.remarks for line in others] == [named, named]


@pytest.mark.parametrize(
    ("modes", "own", "base"),
    [
        (["graph", "coalesced"], {"run": ["graph"]}, "graph"),
        (["graph", "coalesced", "batched"], {"run": ["pdl", "graph", "batched"]}, "graph"),
        (["graph", "baseline"], {"run": ["graph"]}, "baseline"),
        (["graph", "coalesced"], {"run": ["pdl"]}, "coalesced"),
        (["graph", "coalesced"], {"other": ["graph"]}, "coalesced"),
    ],
)
def test_without_engine_and_baseline_the_base_of_the_run_is_the_base(
    modes: list[str], own: dict[str, list[str]], base: str
) -> None:
    rows = [each for mode in modes for each in repeats(*[10.0] * 5, mode=mode, run_id="run")]
    (table,) = build_tables(rows, own)
    (strategies,) = build_strategies(rows, {}, own)
    assert table.lines[0]["mode"] == strategies.strategies[0].line["mode"] == base


def test_runs_with_different_bases_leave_the_base_of_the_workload() -> None:
    arms = [("graph", "one"), ("coalesced", "one"), ("graph", "two"), ("coalesced", "two")]
    rows = [each for mode, run_id in arms for each in repeats(*[10.0] * 5, mode=mode, run_id=run_id)]
    (table,) = build_tables(rows, {"one": ["graph"], "two": ["coalesced"]})
    assert table.lines[0]["mode"] == "coalesced"


@pytest.mark.parametrize("config", [None, {}, {"against": None}, {"against": 3}])
def test_a_damaged_manifest_names_no_base(config: object) -> None:
    assert own_bases([{"run_id": "run", "config": config}]) == {}


@pytest.mark.parametrize(
    ("modes", "base"),
    [
        (["graph", "coalesced", "baseline", "engine"], "engine"),
        (["graph+norm", "graph", "engine"], "engine"),
        (["graph", "coalesced", "baseline"], "baseline"),
        (["graph", "coalesced"], "coalesced"),
    ],
)
def test_factors_of_workloads_of_steps_are_over_engine(modes: list[str], base: str) -> None:
    rows = [each for mode in modes for each in repeats(10.0, 10.1, 9.9, 10.0, 10.0, mode=mode, **DECODE)]
    (table,) = build_tables(rows)
    assert table.lines[0]["mode"] == base
    named = [f"speed-up over {base}"] if base != "baseline" else []
    assert [line.remarks for line in table.lines[1:]] == [named] * (len(modes) - 1)
    assert {line.baseline["mode"] for line in table.lines if line.baseline} == {base}


def test_one_mode_has_nothing_to_be_compared_with() -> None:
    rows = [*repeats(10.0, 11.0, mode="graph", max_batch=16), *repeats(9.0, 9.5, mode="graph", max_batch=64)]
    (table,) = build_tables(rows)
    assert [line.speedup for line in table.lines] == [None, None]


@pytest.mark.parametrize(
    ("tokens", "tflops", "is_noted"), [(None, None, True), (1000, None, False), (1000, 60.0, True)]
)
def test_a_rate_above_a_peak_is_noted_beside_the_share_that_the_table_shows(
    tokens: int | None, tflops: float | None, is_noted: bool
) -> None:
    """With requests that share weights, the bytes that had to move are a fraction of the bytes that commands read."""
    above = {"achieved_gb_per_s": 9000.0, "above_ceiling": "9000 GB/s is above the measured 4200 GB/s: shared weights"}
    (table,) = build_tables([row(tokens=tokens, achieved_tflops=tflops, peak_tflops=50.0, **above)])
    assert table.lines[0].about_rates == (["above the measured 4200 GB/s: shared weights"] if is_noted else [])


def test_a_mode_that_quantises_inputs_is_noted_beside_its_speedup() -> None:
    rows = repeats(10.0, 10.1, mode="baseline") + repeats(
        5.0, 5.1, mode="cublaslt_fp8", quantised_inputs="fp8 per channel"
    )
    (table,) = build_tables(rows)
    _, cells, notes = grid(table, "terminal")
    assert table.lines[0].remarks == []
    assert notes[0].startswith("inputs are quantised, too (fp8 per channel): less accurate")
    assert any("(1)" in cell for cell in cells[1])
    for each in rows:
        each["mode"] = each["mode"].replace("baseline", "triton_batched")
    (table,) = build_tables(rows)
    assert table.lines[0]["mode"] == "triton_batched", "it is compared with a mode that does not quantise inputs"


def test_lines_follow_the_numbers_of_the_jobs_whatever_was_swept_first() -> None:
    swept = [(timeout, size) for timeout in (50.0, 150.0) for size in (16, 64)] + [(300.0, 16)] * 7
    rows = [
        each
        for job, (timeout, size) in enumerate(swept)
        for each in repeats(10.0, 10.1, mode="batched", run_id=f"sweep/{job}", timeout_us=timeout, max_batch=size)
    ]
    (table,) = build_tables(rows[::-1])
    assert [line["run_id"] for line in table.lines] == [f"sweep/{job}" for job in range(11)]


def test_a_subtitle_names_requests_only_where_commands_depend_on_each_other() -> None:
    assert "request" not in stream_subtitle(row())
    assert "1 request" in stream_subtitle(row(**DECODE))


@pytest.mark.parametrize(("commands", "counted"), [(1, "1 command"), (2, "2 commands"), (1_000, "1,000 commands")])
def test_a_title_counts_one_command_in_the_singular(commands: int, counted: str) -> None:
    one = row(commands=commands, workload="list", model="gemms")
    assert stream_title(one) == f"list fp32, {counted}"
    assert stream_names([one]) == [f"list fp32, gemms, {counted}"]


def test_a_subtitle_calls_a_file_of_gemms_no_model() -> None:
    assert ", gemms list, " in stream_subtitle(row(workload="list", model="gemms"))
    assert ", bert trace, " in stream_subtitle(row(workload="trace", model="bert"))
    assert ", llama model, " in stream_subtitle(row(workload="layer", model="llama"))


def test_a_note_keeps_its_number_where_no_line_has_a_speedup() -> None:
    (table,) = build_tables(repeats(10.0, 10.1, throttled=True))
    _, cells, notes = grid(table, "terminal")
    assert len(notes) == 1
    assert any("(1)" in cell for cell in cells[0])


UNSTEADY = "memory bandwidth changed by 50% during the runs (another process?), so no share of the peak is shown"


@pytest.mark.parametrize(("kind", "heading"), [("full", RATES[0]), ("compact", RATES[0]), ("terminal", None)])
def test_a_note_about_rates_stands_at_a_rate_or_below_the_table_and_never_at_the_speedup(
    kind: str, heading: str | None
) -> None:
    without = {"ceilings_change": 0.5, "read_gb_per_s": None, "copy_gb_per_s": None}  # as a run settles its rows
    rows = [each for mode in ("baseline", "graph") for each in repeats(*[9.0] * 5, mode=mode, **without)]
    (table,) = build_tables(rows)
    columns, cells, notes = grid(table, kind)
    marked = {column.heading for line in cells for column, cell in zip(columns, line, strict=True) if "(1)" in cell}
    below = below_table(table.lines, columns)
    assert marked == ({heading} if heading else set())
    assert [len(notes), len(below)] == ([1, 0] if heading else [0, 1])
    assert report_markdown([table], kind).count(UNSTEADY) == 1


@pytest.mark.parametrize(("kind", "is_marked"), [("full", True), ("compact", False)])
def test_a_note_about_rates_stands_at_the_roofline_of_strategies(kind: str, is_marked: bool) -> None:
    without = {"ceilings_change": 0.5, "read_gb_per_s": None, "copy_gb_per_s": None}  # as a run settles its rows
    rows = [each for mode in ("baseline", "graph") for each in repeats(*[9.0] * 5, mode=mode, **without)]
    tables = build_strategies(rows)
    columns, cells, notes = strategies_grid(tables[0], kind)
    marked = {column.heading for line in cells for column, cell in zip(columns, line, strict=True) if "(1)" in cell}
    assert (marked, len(notes)) == (({RATES[1]}, 1) if is_marked else (set(), 0))
    assert strategies_markdown(tables, kind).count(UNSTEADY) == 1


@pytest.mark.parametrize(
    ("readings", "remark"),
    [
        ([(False, None)] * 3, []),
        ([(None, None)] * 3, []),
        (
            [(True, "sw_power_cap"), (False, None), (True, "hw_slowdown, sw_power_cap")],
            ["the GPU was throttled (hw_slowdown, sw_power_cap) in 2 of 3 repeats"],
        ),
        ([(True, None)] * 3, ["the GPU was throttled in 3 of 3 repeats"]),
    ],
)
def test_a_line_says_in_how_many_repeats_the_gpu_was_throttled(
    readings: list[tuple[bool | None, str | None]], remark: list[str]
) -> None:
    rows = repeats(2.0, 2.1, 2.0)
    for each, (throttled, reasons) in zip(rows, readings, strict=True):
        each.update({"throttled": throttled, "throttle_reasons": reasons})
    (table,) = build_tables(rows)
    assert table.lines[0].remarks == remark
