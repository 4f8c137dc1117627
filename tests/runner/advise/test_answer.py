"""The lines of an answer, and how sure they say it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.results.advices import found
from support.results.summary_rows import repeats

from runner.advise.answer import lines_of
from runner.advise.batching import Batching
from runner.advise.halving import Decision
from runner.advise.question import of_file, of_model, tpot


def test_the_answer_is_five_lines(model: Path) -> None:
    lines = lines_of(found(of_model(model, 16, "cpu", tpot(20.0))))
    assert [line.partition(":")[0] for line in lines] == ["now", "do", "gain", "once", "set"]
    assert lines[0].startswith("now: engine takes 10.00 ms with 1 of 2 layers, p50 TPOT 20.00 ms for all layers")
    assert "p99 TPOT 10.00 ms, within 20" in lines[1]
    assert "--max-num-seqs 16" in lines[4]


def test_a_gain_whose_interval_has_no_verdict_may_be_none(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", None))
    assert "may be none" not in lines_of(whole)[2]
    walls = (5.0, 20.0, 9.0, 15.0, 10.0)
    arms = {**whole.arms, whole.best: repeats(*walls, mode=whole.best, setup_ms=1.0, layers=1)}
    lines = lines_of(replace(whole, arms=arms, fits=frozenset(arms)))
    assert "as fast as engine, so it may be none; " in lines[2]
    advised = "mode=engine+graph batching.max_batch=16 batching.timeout_us=0"
    assert lines[1].startswith(f"do: keep engine; the fastest so far, not proven to be faster: {advised}")
    assert lines[4] == "set: nothing yet, since no gain is proven"
    assert lines_of(replace(whole, arms=arms))[1].startswith(f"do: {advised}"), "the base does not keep the limit"


def test_without_time_for_another_stack_nothing_is_advised(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", None), "engine")
    lines = lines_of(whole)
    assert lines[1].startswith("do: nothing yet, engine alone ran in time; give a larger --budget-s")
    assert lines[2] == "gain: unknown, engine alone ran in time"
    assert lines[4] == "set: nothing yet"


def test_with_nothing_to_compare_no_budget_is_asked_for(model: Path) -> None:
    whole = replace(found(of_model(model, 16, "cpu", None), "engine"), is_lone=True)
    _, do, gain, _, set_ = lines_of(whole, None, "3 need a GPU, 20 are not for this work")
    assert do == (
        "do: nothing to compare, engine alone runs here; of the others 3 need a GPU, 20 are not for this work"
    )
    assert (gain, set_) == ("gain: none to measure", "set: nothing")
    do = lines_of(replace(whole, failed=["graph"]))[1]
    assert do == "do: nothing to compare, engine alone runs here and passes its check (graph did not)"


def test_launches_that_take_several_calls_are_counted_apart(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", None))
    calls = {"launch_calls": 543, "submits": 415, "host_submit_ns_per_launch": 12_048.0}
    arms = {label: [row | calls for row in rows] for label, rows in whole.arms.items()}
    now = lines_of(replace(whole, arms=arms))[0]
    assert "launch calls take 50% of it (543 calls in 415 launches)" in now  # 415 x 12.048 us of 10 ms


def test_an_open_choice_says_what_to_do(model: Path) -> None:
    whole = replace(found(of_model(model, 16, "cpu", None)), decision=Decision.open)
    more = lines_of(replace(whole, enough_s=90.0))[2]
    assert more.endswith("undecided; type the same with --budget-s 90")
    assert lines_of(whole)[2].endswith("undecided after 5 repeats; stop other programs, and type the same")


def test_switches_for_a_list_do_not_take_its_batch_for_requests(tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    path.write_text("m,n,k\n64,1,64\n")
    line = lines_of(found(of_file("list", path, "cpu", None), "graph"))[4]
    assert line.startswith("set: vLLM --max-num-seqs N, graphs are on by default; SGLang")
    assert "SGLang --max-running-requests N, --cuda-graph-max-bs N;" in line
    assert line.endswith("; N: your requests side by side")


def test_a_stack_that_does_not_coalesce_has_no_switch(model: Path) -> None:
    assert lines_of(found(of_model(model, 16, "cpu", None), "batched"))[4].startswith("set: nothing in vLLM")


def test_every_switch_has_a_value(model: Path) -> None:
    question = of_model(model, 16, "cpu", None)
    line = lines_of(found(question, "engine+graph"))[4]
    assert "set: vLLM --max-num-seqs 16, graphs are on by default, -O2; SGLang" in line
    assert "cuda_graph_config={max_batch_size: 16}, torch_compile_config={enable_fullgraph: true}" in line
    line = lines_of(found(question, "torch_eager"))[4]
    assert line.endswith(
        "--enforce-eager; SGLang --max-running-requests 16, --disable-cuda-graph; TensorRT-LLM "
        "max_batch_size=16, cuda_graph_config=null"
    )


def test_a_limit_that_nothing_keeps_is_said_with_the_closest_point(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", tpot(2.0)))
    do = lines_of(replace(whole, fits=frozenset()))[1]
    assert "nothing tried keeps p99 TPOT within 2 ms: 10.00 ms is the closest" in do


def test_a_batching_that_keeps_the_limit_is_said_to_keep_it(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", tpot(2.0)))
    kept = Batching(4, 0.0, 6, gain=0.8, kept_ms=1.5)
    do = lines_of(replace(whole, fits=frozenset(), batching=kept))[1]
    assert "(0.800x as fast as the default batching, in one sweep); p99 TPOT 1.500 ms, within 2" in do


def test_a_slower_stack_that_alone_keeps_the_limit_is_no_gain(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", tpot(20.0)))
    slower = repeats(*[20.0] * 5, mode=whole.best, setup_ms=1.0, layers=1, tpot_p50_ms=1.0, tpot_p99_ms=1.0)
    gain = lines_of(replace(whole, arms={**whole.arms, whole.best: slower}))[2]
    assert gain.startswith("gain: 0.5")
    assert "as fast as engine, so it is slower; engine does not keep the limit; " in gain


def test_the_first_line_says_what_runs_of_a_model_with_experts(model: Path) -> None:
    experts = {"expert_routing": "power_law 1.2", "experts": 8, "experts_per_token": 2, "steps": 32, "step_tokens": 4}
    experts |= {"active_experts": 5.5, "largest_expert_tokens": 3.0}
    whole = found(of_model(model, 4, "cpu", None))
    arms = {label: [row | experts for row in rows] for label, rows in whole.arms.items()}
    first = lines_of(replace(whole, arms=arms))[0]
    assert "for 32 steps of 4 tokens through the experts of one layer (2 of 8 experts a token), without" in first
    packed = {label: [row | {"weights": "int4 per block"} for row in rows] for label, rows in whole.arms.items()}
    assert (
        "10.00 ms with 1 of 2 layers, with int4 weights per block, p50 TPOT" in lines_of(replace(whole, arms=packed))[0]
    )
