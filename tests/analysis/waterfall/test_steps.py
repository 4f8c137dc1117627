"""What each choice brings: right values, exact sums, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.summary_rows import repeats

from launchopt.analysis.waterfall.markdown import waterfall_notes, waterfall_sentence, waterfalls_markdown
from launchopt.analysis.waterfall.steps import Waterfall, build_waterfalls, choice_between, orders_of, waterfalls_json
from launchopt.errors import DataError
from launchopt.recording.results import Row

STACKS = {
    "baseline": "submit=stream kernels=cublaslt",
    "coalesced": "coalesce submit=stream kernels=cublaslt",
    "coalesced+norm": "coalesce fuse=norm submit=stream kernels=cublaslt",
    "coalesced+norm+graph": "coalesce fuse=norm submit=graph kernels=cublaslt",
    "graph": "coalesce submit=graph kernels=cublaslt",
    "megakernel": "coalesce submit=megakernel kernels=own",
}
FUSE_FIRST = ["baseline", "coalesced", "coalesced+norm", "coalesced+norm+graph", "megakernel"]
GRAPH_FIRST = ["baseline", "coalesced", "graph", "coalesced+norm+graph", "megakernel"]
ORDERS = {"run": [FUSE_FIRST, GRAPH_FIRST]}
STEPS = 100  # tokens of each request
WORK: dict[str, Any] = {"workload": "layer", "requests": 16, "tokens": 16 * STEPS, "commands": 10_000}
# Wall times of five repeats, in ms: 100 steps. The second repeat was slow for all.
TIMES_MS: dict[str, tuple[float, ...]] = {
    "baseline": (1000, 1500, 1001, 999, 1000),
    "coalesced": (200, 700, 201, 199, 200),
    "coalesced+norm": (170, 670, 169, 171, 170),
    "coalesced+norm+graph": (90, 590, 91, 89, 90),
    "graph": (110, 610, 109, 111, 110),
    "megakernel": (70, 570, 70, 70, 70),
}


def rows(**changed: tuple[float, ...]) -> list[Row]:
    times = {**TIMES_MS, **changed}
    return [row for mode, ms in times.items() for row in repeats(*ms, mode=mode, stack=STACKS[mode], **WORK)]


def both(found: list[Row] | None = None) -> list[Waterfall]:
    return build_waterfalls(rows() if found is None else found, ORDERS)


def test_each_choice_brings_what_it_saves_of_a_step() -> None:
    fuse_first, graph_first = both()
    assert [(each.choice, each.mode) for each in fuse_first.steps] == [
        ("coalesce", "coalesced"),
        ("norm", "coalesced+norm"),
        ("graph", "coalesced+norm+graph"),
        ("megakernel, own kernels", "megakernel"),
    ]
    assert [each.brings.value for each in fuse_first.steps] == pytest.approx([8000, 300, 800, 200])
    assert [(each.before_us, each.after_us) for each in fuse_first.steps[:2]] == [
        pytest.approx((11_000, 3000)),
        pytest.approx((3000, 2700)),
    ]
    assert [each.share for each in fuse_first.steps] == pytest.approx([each / 9300 for each in (8000, 300, 800, 200)])
    assert [(each.choice, round(each.brings.value)) for each in graph_first.steps] == [
        *(("coalesce", 8000), ("graph", 900), ("norm", 200), ("megakernel, own kernels", 200)),
    ]
    assert fuse_first.unit == "us a step"
    assert (fuse_first.number, fuse_first.orders, fuse_first.repeats) == (1, 2, 5)


def test_a_slow_repeat_of_all_arms_does_not_widen_an_interval() -> None:
    """Differences of norm in us a step: 300, 300, 320, 280, 300; t(0.975, 4) = 2.776."""
    norm = both()[0].steps[1].brings
    reach = 2.776 * (200 / 5) ** 0.5
    assert (norm.low, norm.high) == pytest.approx((300 - reach, 300 + reach), rel=1e-3)
    assert [each.sign for each in both()[0].steps] == [1, 1, 1, 1]


def test_both_orders_have_the_same_whole() -> None:
    first, second = both()
    assert first.whole.brings == second.whole.brings
    assert (first.whole.before_us, first.whole.after_us) == pytest.approx((11_000, 1700))


@given(st.lists(st.lists(st.floats(1e-3, 1e7), min_size=5, max_size=5), min_size=len(TIMES_MS), max_size=len(TIMES_MS)))
def test_the_sum_is_the_whole(times: list[list[float]]) -> None:
    for one in both(rows(**{mode: tuple(ms) for mode, ms in zip(TIMES_MS, times, strict=True)})):
        total, rounding = sum(each.brings.value for each in one.steps), 1e-6 * max(map(max, times))
        assert total == pytest.approx(one.whole.brings.value, abs=rounding)
        assert one.whole.brings.value == pytest.approx(one.whole.before_us - one.whole.after_us, abs=rounding)


def test_a_choice_that_costs_time_and_one_that_may_do_nothing_are_told_apart() -> None:
    changed = {"coalesced+norm": (210.0, 710.0, 212.0, 208.0, 210.0), "megakernel": (89.0, 591.0, 91.0, 90.0, 90.0)}
    costs, unclear = both(rows(**changed))[0].steps[1], both(rows(**changed))[0].steps[3]
    assert costs.brings.value == pytest.approx(-100)
    assert (costs.sign, unclear.sign) == (-1, 0)


def test_below_five_repeats_there_is_no_interval() -> None:
    few = [row for row in rows() if row["repeat"] < 3]
    step = both(few)[0].steps[1]
    assert step.sign is None
    assert step.brings.range == pytest.approx((300, 320))


def test_an_arm_that_failed_is_left_out_and_the_next_step_spans_it() -> None:
    found = [{**row, "verified": False} if row["mode"] == "coalesced+norm" else row for row in rows()]
    fuse_first, _ = both(found)
    assert [(each.choice, round(each.brings.value)) for each in fuse_first.steps] == [
        *(("coalesce", 8000), ("norm, graph", 1100), ("megakernel, own kernels", 200)),
    ]
    assert fuse_first.left_out == {"coalesced+norm": "failed: not verified"}


def test_an_arm_without_rows_and_one_that_broke_are_named() -> None:
    found = [{**row, "status": "failed"} if row["mode"] == "graph" else row for row in rows()]
    fuse_first, graph_first = both([row for row in found if row["mode"] != "coalesced+norm"])
    assert fuse_first.left_out == {"coalesced+norm": "no untraced repeat"}
    assert graph_first.left_out == {"graph": "failed"}
    assert "Left out: graph (failed)" in waterfall_notes(graph_first)


def test_an_order_names_only_its_own_arms_among_those_that_cannot_run() -> None:
    """`against=all` refuses arms that no order has."""
    orders = {"run": [["baseline", "graph+own", "coalesced"], ["baseline", "graph", "graph+pdl"]]}
    why = {"graph+own": "needs a GPU", "graph+pdl": "needs a GPU", "persistent": "takes no steps"}
    first, second = build_waterfalls(rows(), orders, {"run": why})
    assert (first.left_out, second.left_out) == ({"graph+own": "needs a GPU"}, {"graph+pdl": "needs a GPU"})
    assert [each.mode for each in (*first.steps, *second.steps)] == ["coalesced", "graph"]


def test_an_arm_of_which_one_repeat_was_far_off_is_named() -> None:
    fuse_first, graph_first = both(
        rows(graph=(110, 190, 109, 111, 110), **{"coalesced+norm": (170, 200, 169, 171, 170)})
    )
    assert fuse_first.outliers.keys() == {"baseline", "coalesced", "coalesced+norm+graph", "megakernel"}
    assert graph_first.outliers["graph"] == pytest.approx(190 / 110)
    assert "graph 1.7x" in waterfall_notes(graph_first)[-1]
    quiet = both([row for row in rows() if row["repeat"] != 1])[0]
    assert (quiet.outliers, waterfall_notes(quiet)) == ({}, [])


def test_only_repeats_that_all_arms_have_count() -> None:
    found = [row for row in rows() if not (row["mode"] == "graph" and row["repeat"] == 1)]
    first, second = both(found)
    assert first.repeats == second.repeats == 4
    assert first.whole.brings == second.whole.brings
    assert first.whole.before_us == pytest.approx(10_000)


@pytest.mark.parametrize("columns", [{"wall_ms": None}, {"tokens": 0, "commands": 0}, {"requests": None}])
def test_an_arm_without_a_time_is_left_out(columns: dict[str, Any]) -> None:
    found = [{**row, **columns} if row["mode"] == "graph" else row for row in rows()]
    alike = [{**row, **{name: columns[name] for name in columns if name in ("commands", "requests")}} for row in found]
    assert all("graph" not in {step.mode for step in one.steps} for one in both(alike))


def test_with_three_processes_a_sample_is_the_mean_of_a_process() -> None:
    """Coalesce saves 10, 12 and 14 us in three processes: mean 12, standard error 2 / sqrt(3), t(0.975, 2) = 4.303."""
    times = [(100.0, 100.0 - each) for each in (9, 11, 11, 13, 13, 15)]
    found = [
        {**row, "process": row["repeat"] // 2}
        for at, mode in enumerate(("baseline", "coalesced"))
        for row in repeats(*(each[at] / 10 for each in times), mode=mode, stack=STACKS[mode], **WORK)
    ]
    (one,) = build_waterfalls(found, {"run": [["baseline", "coalesced"]]})
    brings = one.steps[0].brings
    reach = 4.303 * 2 / 3**0.5
    assert (brings.value, brings.low, brings.high) == pytest.approx((12, 12 - reach, 12 + reach), rel=1e-3)
    assert one.repeats == 6


def test_commands_without_tokens_are_counted_one_by_one() -> None:
    found = [*repeats(*[2000.0] * 5, mode="baseline"), *repeats(*[1000.0] * 5, mode="batched")]
    (one,) = build_waterfalls(found, {"run": [["baseline", "batched"]]})
    assert (one.unit, one.steps[0].choice) == ("us a command", "batched")
    assert one.steps[0].brings.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("before", "after", "choice"),
    [
        ("coalesce submit=stream", "coalesce fuse=qkv,gate_up submit=stream", "qkv, gate_up"),
        ("submit=graph kernels=cublaslt", "submit=graph kernels=own", "own kernels"),
        ("coalesce submit=graph pdl kernels=own", "coalesce submit=graph_loop pdl kernels=own", "graph_loop"),
        ("submit=graph kernels=own", "submit=graph pdl kernels=own", "pdl"),
        ("fuse=norm submit=graph", "submit=graph", "without norm"),
        ("coalesce fuse=qkv,norm submit=stream", "coalesce submit=graph", "graph, without qkv, norm"),
        ("coalesce fuse=qkv submit=stream pdl", "submit=graph pdl", "graph, without coalesce, qkv"),
        ("fuse=norm submit=graph kernels=own", "submit=megakernel kernels=own", "megakernel"),
        ("submit=stream", "submit=stream", "b"),
        (None, None, "b"),
    ],
)
def test_a_choice_is_what_the_stacks_differ_in(before: str | None, after: str | None, choice: str) -> None:
    assert choice_between({"stack": before, "mode": "a"}, {"stack": after, "mode": "b"}) == choice


def test_runs_without_an_order_and_traced_runs_have_no_waterfall() -> None:
    assert build_waterfalls(rows(), {"other": [FUSE_FIRST]}) == []
    assert both([{**row, "traced": True} for row in rows()]) == []
    assert build_waterfalls(rows(), {"run": [["baseline", "baseline"], ["nope", "baseline"], []]}) == []
    assert both([]) == []
    assert orders_of([{"run_id": "a", "waterfall": []}, {"run_id": "b", "waterfall": [["x", "y"]]}, {}]) == {
        "b": [["x", "y"]]
    }


def test_two_rows_for_one_repeat_are_refused() -> None:
    with pytest.raises(DataError, match="two different rows"):
        both([*rows(), {**rows()[0], "wall_ms": 1.0}])


def test_the_table_has_every_choice_and_the_whole() -> None:
    orders = {"run": [[*FUSE_FIRST, "pdl"], ["pdl", *GRAPH_FIRST]]}
    text = waterfalls_markdown(build_waterfalls(rows(), orders, {"run": {"pdl": "needs <a> GPU"}}), "full")
    assert "| graph | coalesced+norm+graph | 2,700.0 | 1,900.0 | 800 [782, 818] | 8.6% |" in text
    assert "| whole | megakernel | 11,000.0 | 1,700.0 | 9300 [9291, 9309] | 100.0% |" in text
    assert text.count("### baseline to megakernel, order ") == 2
    assert text.count("- Left out: pdl (needs &lt;a> GPU)") == 2
    compact = waterfalls_markdown(both(), "compact")
    assert compact.count("**layer fp32, 10,000 commands of 16 requests**") == 1


def test_a_sentence_says_the_whole_and_the_two_largest_parts() -> None:
    assert waterfall_sentence(both()[0]) == (
        "From 11,000.0 to 1,700.0 us a step: 9300 us [9291, 9309] in all. Most by coalesce 8000 us [8000, 8000] and "
        "graph 800 us [782, 818]."
    )


def test_a_choice_whose_interval_contains_0_is_not_said_to_bring_most() -> None:
    times = {"baseline": (100, 100, 100, 100, 100), "coalesced": (50, 50, 50, 50, 50), "graph": (45, 55, 40, 60, 49)}
    found = [row for mode, ms in times.items() for row in repeats(*ms, mode=mode, stack=STACKS[mode], **WORK)]
    (one,) = build_waterfalls(found, {"run": [["baseline", "coalesced", "graph"]]})
    assert one.steps[1].sign == 0 < one.steps[1].brings.value
    assert waterfall_sentence(one).endswith(" Most by coalesce 500 us [500, 500].")


def test_json_has_plain_numbers() -> None:
    first, _ = waterfalls_json(both())["waterfalls"]
    assert (first["run_id"], first["order"], first["unit"], first["repeats"]) == ("run", 1, "us a step", 5)
    assert first["steps"][2]["brings"]["us"] == pytest.approx(800)
    assert first["steps"][2]["mode"] == "coalesced+norm+graph"
    assert first["whole"]["brings"]["us"] == pytest.approx(9300)


def test_a_step_through_a_layer_with_experts_counts_as_one() -> None:
    work = {"workload": "moe", "tokens": None, "requests": 1, "commands": 4000, "steps": 100, "step_tokens": 16}
    times = {"baseline": (100.0,) * 5, "graph": (20.0,) * 5}
    found = [row for mode, ms in times.items() for row in repeats(*ms, mode=mode, stack=STACKS[mode], **work)]
    (one,) = build_waterfalls(found, {"run": [["baseline", "graph"]]})
    assert one.unit == "us a step"
    assert one.whole.brings.value == pytest.approx(800)
