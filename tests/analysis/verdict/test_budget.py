"""What launches cost a day: the textbook's arithmetic, and how measurements of one model are carried to another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.diagnosed_rows import decode, few, repeats, row, traced

from launchopt.analysis.verdict.budget import Budget, BudgetLine, hours, measured, textbook
from launchopt.analysis.verdict.budget_question import OPS_A_LAYER, Ask
from launchopt.errors import ConfigError, DataError
from launchopt.recording.results import Row
from launchopt.streams.chains.program import layer_program
from launchopt.streams.model import ModelShape

numbers = st.floats(1e-3, 1e9)


def line(found: Budget, mode: str) -> BudgetLine:
    (one,) = [each for each in found.lines if each.mode == mode]
    return one


def chain(*more: Row) -> list[Row]:
    """1 request, 8 commands a token, 8 us a launch, 100 ms for 1,000 tokens; and a graph of a step each."""
    graph = {"launch_calls": 1000, "batches": 1000, "batch_size_mean": 8.0, "graph_replays": 1000}
    slow = {"host_submit_ns_per_launch": 20_000.0, "host_submit_burst_ns": 20_000.0}
    base = decode("baseline", 100.0, 100.0, 100.0, requests=1)
    return [*base, *decode("graph", 50.0, 50.0, 50.0, requests=1, **graph, **slow), *more]


def test_the_textbook() -> None:
    assert hours(10e6, 1200, 5) == pytest.approx(16.67, abs=0.01)
    found = textbook(Ask(10e6, launches_per_token=1200, launch_us=5))
    assert [(each.host_hours, each.gpu_idle_hours) for each in found.lines] == [(pytest.approx(16.667, abs=1e-3),) * 2]
    assert found.lines[0].idle_is_bound
    assert "10,000,000 generated tokens a day; prompts are not counted" in found.assumptions


@given(numbers, numbers, numbers)
def test_hours_grow_with_each_factor(tokens: float, launches: float, us: float) -> None:
    assert hours(2 * tokens, launches, us) == pytest.approx(2 * hours(tokens, launches, us))
    assert hours(tokens, launches, us) == pytest.approx(tokens * launches * (us / 1e6) / 3600)


def test_a_model_without_a_run_takes_the_operations_of_a_layer() -> None:
    shape = ModelShape("any", 64, 2, 4, 2, 16, 128)
    assert len(layer_program(shape, 64).layer) == OPS_A_LAYER, "the constant is that of workload=layer"
    found = textbook(Ask(1e6, "any", 80, launch_us=5))
    assert found.lines[0].launches_per_token == OPS_A_LAYER * 80
    assert "14 a layer (the operations of workload=layer, one launch each) x 80 layers of any" in found.assumptions[0]
    experts = textbook(Ask(1e6, "mixture", 48, launch_us=5, experts_per_token=8))
    assert experts.lines[0].launches_per_token == (14 - 3 + 6 + 2 * 8) * 48, "router, top-k, map, permutation, sums"
    assert "33 a layer (11 operations of workload=layer, 6 + 16 of workload=moe" in experts.assumptions[0]
    given_ = textbook(Ask(1e6, "any", 80, launches_per_layer=15, launch_us=5))
    assert given_.lines[0].launches_per_token == 1200
    assert "15 a layer (as given)" in given_.assumptions[0]


def test_as_measured_where_nothing_else_is_asked() -> None:
    found = measured(Ask(3.6e6), chain(traced("baseline", 75.0, 8000, **own())), "run")
    base, graph = line(found, "baseline"), line(found, "graph")
    assert (base.launches_per_token, base.launch_us) == pytest.approx((8.0, 8.0))
    assert base.host_hours == pytest.approx(3.6e6 * 8 * 8e-6 / 3600)
    assert (base.gpu_idle_hours, base.idle_is_bound) == (pytest.approx(3.6e6 * 25e-6 / 3600), False)
    assert (graph.launches_per_token, graph.launch_us) == pytest.approx((1.0, 20.0))
    assert graph.idle_is_bound, "untraced: at most what the roofline does not ask for"
    assert graph.gpu_idle_hours == pytest.approx(3.6e6 * 45e-6 / 3600)


def test_a_layer_with_experts_counts_its_tokens_and_is_scaled_to_the_layers_of_the_model() -> None:
    moe = {"workload": "moe", "tokens": None, "layers": None, "requests": 1, "commands": 8000, "launch_calls": 8000}
    moe |= {"expert_routing": "power_law 1.2", "experts": 16, "experts_per_token": 4, "steps": 250, "step_tokens": 4}
    moe |= {"active_experts": 13.0, "largest_expert_tokens": 3.0}
    rows = decode("baseline", 100.0, 100.0, 100.0, **moe)
    base = line(measured(Ask(3.6e6), rows, "run"), "baseline")
    assert base.launches_per_token == pytest.approx(8.0)
    found = measured(Ask(3.6e6, "any", 48), rows, "run")
    assert line(found, "baseline").launches_per_token == pytest.approx(8.0 * 48)
    assert "moe: the experts of a layer, without its attention" in found.assumptions
    assert line(found, "baseline").work == "moe fp16, 8,000 commands, steps of 4 tokens"


def test_calls_that_pack_are_launch_calls_and_share_the_time_of_their_launches() -> None:
    """As in summary.parquet: 146 calls, of which 32 pack for 114 launches of 10 us."""
    calls = {"commands": 480, "tokens": 32, "launch_calls": 146, "submits": 114, "host_submit_burst_ns": 10_000.0}
    rows = decode("engine", 100.0, requests=8, host_submit_ns_per_launch=10_000.0, **calls)
    found = measured(Ask(3.6e6), rows, "run").lines[0]
    assert found.launches_per_token == pytest.approx(146 / 32)
    assert found.host_hours == pytest.approx(3.6e6 / 32 * 114 * 10e-6 / 3600)
    assert found.launch_us == pytest.approx(114 * 10 / 146)


def test_cached_tokens_of_prompts_are_named_and_tell_two_streams_apart() -> None:
    cached = {"scheduler": "continuous, prefixes hash", "cached_tokens": 448, "prefix_hit_rate": 0.875}
    rows = [*decode("engine", 100.0, scheduler="continuous"), *decode("engine", 90.0, run_id="other", **cached)]
    found = measured(Ask(1e6), rows, "runs")
    plain = "decode fp16, 8,000 commands of 16 requests"
    assert {each.work for each in found.lines} == {plain, f"{plain}, prefixes hash"}
    why = "448 tokens of prompts cached (87.5% of full blocks), so launches of prompts have fewer columns"
    assert f"{plain}, prefixes hash: {why}" in found.assumptions
    assert any(
        each.startswith("1,000,000 generated tokens a day; launches of prompts count") for each in found.assumptions
    )


def own() -> dict[str, Any]:
    """What a traced twin of `chain` shares with it."""
    stream = decode("baseline", 100.0, requests=1)[0]
    names = ("workload", "model", "layers", "tokens", "requests", "commands", "launch_calls", "batches", "dtype")
    return {name: stream[name] for name in names}


def test_another_model_is_scaled_by_its_layers_but_a_replay_is_not() -> None:
    found = measured(Ask(1e6, "large", 80), chain(traced("baseline", 75.0, 8000, **own())), "run")
    assert line(found, "baseline").launches_per_token == pytest.approx(8 / 2 * 80)
    assert line(found, "graph").launches_per_token == pytest.approx(1.0)
    assert all(each.idle_is_bound for each in found.lines), "kernels of another model hide other launches"
    assert any(
        "320 commands a token, 4 a layer of decode, measured, x 80 layers of large" in a for a in found.assumptions
    )
    assert any("kernels were those of tiny" in a for a in found.assumptions)
    same = measured(Ask(1e6, "tiny", 2), chain(), "run")
    assert line(same, "baseline").launches_per_token == pytest.approx(8.0)


@pytest.mark.parametrize("mode", ["engine+graph", "torch_compile"])
def test_the_replays_of_a_stack_do_not_grow_with_the_layers(mode: str) -> None:
    calls = {"commands": 5000, "launch_calls": 1000, "batches": 1000, "graph_replays": 1000, "layers": 16}
    found = measured(Ask(1e6, "large", 80), decode(mode, 50.0, 50.0, requests=1, **calls), "run")
    assert line(found, mode).launches_per_token == pytest.approx(1.0)
    assert "a graph is replayed once a step: its launches a token do not grow with the layers" in found.assumptions
    captured = calls | {"graph_replays": 0}  # a graph that no step replayed
    found = measured(Ask(1e6, "large", 80), decode(mode, 50.0, 50.0, requests=1, **captured), "run")
    assert line(found, mode).launches_per_token == pytest.approx(5.0)
    assert not any(each.startswith("a graph is replayed") for each in found.assumptions)


@pytest.mark.parametrize(("features", "words"), [(2_000, "which cannot hide"), (60_000, "which can hide")])
def test_whether_the_models_kernels_hide_a_launch(features: int, words: str) -> None:
    found = measured(Ask(1e6, "large", 80, ((features, features),)), chain(), "run")
    assert any(words in assumption for assumption in found.assumptions)


def test_a_quantised_linear_asks_for_its_codes_and_scales() -> None:
    """int4: half a byte a value, and 2 bytes for 128 of them, at 4,000 GB/s."""
    rows = decode("baseline", 100.0, 100.0, requests=1, weights="int4 per block")
    found = measured(Ask(1e6, "large", 80, ((16384, 16384),)), rows, "run")
    us = 16384 * 16384 * (1 / 2 + 2 / 128) / 4e12 * 1e6
    assert any(f"a linear of large asks {us:.3g} us or more of one GPU" in each for each in found.assumptions)


def test_given_figures_replace_measured_ones() -> None:
    found = measured(Ask(1e6, launches_per_token=1200, launch_us=5, gpu_hour_cost=2.0), chain(), "run")
    base = line(found, "baseline")
    assert (base.launches_per_token, base.launch_us) == pytest.approx((1200, 5))
    assert base.cost == pytest.approx(2.0 * (base.gpu_idle_hours or 0))
    per_layer = measured(Ask(1e6, "tiny", 2, launches_per_layer=15), chain(), "run")
    assert line(per_layer, "baseline").launches_per_token == pytest.approx(30)
    assert line(per_layer, "graph").launches_per_token == pytest.approx(1.0)


def test_waiting_for_room_is_no_launch() -> None:
    """A closed loop of 200 requests can fill the queue: what later calls take longer is the GPU's time."""
    columns = {"host_submit_burst_ns": 4000.0, "host_submit_ns_per_launch": 9000.0}
    found = measured(Ask(1e6), decode("baseline", 100.0, 100.0, requests=200, **columns), "run")
    assert found.lines[0].launch_us == pytest.approx(4.0)


def test_idle_is_unknown_where_the_gpu_waits_for_requests_or_the_trace_was_slower() -> None:
    open_ = decode("baseline", 100.0, requests=1, arrival="poisson", arrival_rate_per_s=10.0, overloaded=False)
    assert measured(Ask(1e6), open_, "run").lines[0].gpu_idle_hours is None
    slower = measured(Ask(1e6), chain(traced("baseline", 130.0, 8000, **own())), "run")
    assert line(slower, "baseline").gpu_idle_hours is None


def test_what_gives_no_budget_is_left_out_by_name() -> None:
    bad = decode("batched", 9.0, requests=1, verified=False)
    found = measured(Ask(1e6), [*chain(*bad), row(run_id="other")], "run")
    assert "batched" not in {each.mode for each in found.lines}
    assert any(
        a.startswith("left out: batched of decode fp16") and a.endswith("not verified") for a in found.assumptions
    )
    assert "left out: gemv_256, which generate no tokens of a model" in found.assumptions


def test_without_tokens_only_given_launches_help() -> None:
    rows = [*repeats("baseline", 100.0), *few("batched", 5.0)]
    with pytest.raises(DataError, match="no untraced run generated tokens of a model"):
        measured(Ask(1e6), rows, "run")
    found = measured(Ask(1e6, launches_per_token=100), rows, "run")
    assert line(found, "baseline").launches_per_token == pytest.approx(100)
    assert line(found, "batched").launches_per_token == pytest.approx(1.0), "as many commands to a launch as measured"
    with pytest.raises(DataError, match="verified"):
        measured(Ask(1e6, launches_per_token=100), repeats("baseline", 100.0, verified=False), "run")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"tokens_per_day": -1.0}, "tokens_per_day"),
        ({"tokens_per_day": float("nan")}, "tokens_per_day"),
        ({"tokens_per_day": float("inf")}, "tokens_per_day"),
        ({"tokens_per_day": 0.0}, "tokens_per_day"),
        ({"launch_us": 0.0}, "launch_us"),
        ({"launches_per_token": -1.0}, "launches_per_token"),
        ({"gpu_hour_cost": -0.1}, "gpu_hour_cost"),
        ({"launches_per_layer": 4.0}, "launches_per_layer"),
        ({"launches_per_layer": 4.0, "layers": 2, "launches_per_token": 4.0}, "launches_per_layer"),
    ],
)
def test_what_cannot_be_asked_is_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Ask(**{"tokens_per_day": 1e6, **values})
    assert refused.value.key == key


@pytest.mark.parametrize("ask", [Ask(1e6), Ask(1e6, launch_us=5), Ask(1e6, launches_per_token=5)])
def test_a_textbook_needs_its_figures(ask: Ask) -> None:
    with pytest.raises(ConfigError, match="missing"):
        textbook(ask)
