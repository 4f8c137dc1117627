"""`launchopt advise`: what runs here, the files it writes, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from support.results.summary_rows import repeats

from launchopt.analysis.choice import Entry, Work
from launchopt.devices import find_device
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError, DeviceError, Interrupted
from launchopt.modes import MODES
from launchopt.modes.stack import choices_of, conflict, stack_of
from runner import commands
from runner.advise.__main__ import _own_options_named, _removed_without_results
from runner.advise.answer import lines_of
from runner.advise.candidates import LIKELY, LIKELY_ON_CPU, candidates, changed_stacks
from runner.advise.halving import Decision
from runner.advise.prefixes import has_requests, prefixes_line
from runner.advise.question import Question, base_of, of_file, of_model, settled_for, tpot
from runner.advise.saving import experiment_text, save
from runner.advise.search import Batching, Found
from runner.auto.table import default_path
from runner.config.loading import hydra_of
from runner.config.schema import to_config

MODEL = {
    **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5},
}

EXPERTS = {
    **{"model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 16},
    **{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}

# 1,100 and 1,300 tokens of prompts: two full blocks of 512 tokens each, the first one alike, and a part of a block.
CHAT = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 9, "input_length": 1300, "output_length": 5, "hash_ids": [0, 3, 4]}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "own" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(MODEL))
    return path


def found(question: Question, best: str = "engine+graph") -> Found:
    arms = {"engine": 10.0, best: 5.0}
    rows = {
        label: repeats(*[wall] * 5, mode=label, setup_ms=wall, layers=1, tpot_p50_ms=wall, tpot_p99_ms=wall)
        for label, wall in arms.items()
    }
    order, fits = [best, "engine"], frozenset([best])
    return Found(question, rows, "engine", order, fits, Decision.decided, Batching(16, 0.0, 6), 2, Path("nowhere"))


def test_changed_stacks_keep_the_rules_and_are_no_presets() -> None:
    labels = changed_stacks()
    assert "engine+graph+pdl" in labels
    assert len(labels) == len(set(labels))
    for label in labels:
        name, options = choices_of(label)
        assert conflict(name, stack_of(name, options)) is None


def test_a_cpu_runs_some_stacks_and_the_others_have_a_reason(model: Path) -> None:
    info, _ = find_device("cpu", 0)
    able, refused = candidates(of_model(model, 4, "cpu", None).config(), info)
    assert {"engine", "coalesced", "graph"} <= set(able)
    assert "needs a GPU" in refused["megakernel"]
    assert not set(able) & set(refused)


def test_quantised_weights_leave_the_stacks_that_can_read_them(model: Path) -> None:
    question = of_model(model, 4, "cuda", None).with_settings({"workload.weights": "fp8", "workload.dtype": "bf16"})
    able, refused = candidates(question.config(), DeviceInfo("cuda", 0, "none", 1 << 34, 1 << 20, "no memory", 1 << 20))
    assert {"kernel", "pdl", "engine+own", "engine+silu+epilogue+graph+own+pdl"} <= set(able)
    assert {"engine", "graph", "megakernel", "torch_graph"} <= set(refused)
    assert base_of(question, "cuda") == "engine+own"
    assert base_of(question, "cuda") in able
    assert base_of(question, "cpu") == "engine"


def test_the_likely_stacks_come_first_in_their_order(model: Path) -> None:
    info, _ = find_device("cpu", 0)
    able, _ = candidates(of_model(model, 1, "cpu", None).config(), info)
    first = [label for label in LIKELY_ON_CPU if label in able]
    assert able[: len(first)] == first
    assert set(LIKELY) <= {*MODES, *changed_stacks()}


def test_the_answer_is_five_lines(model: Path) -> None:
    lines = lines_of(found(of_model(model, 16, "cpu", tpot(20.0))))
    assert [line.partition(":")[0] for line in lines] == ["now", "do", "gain", "once", "set"]
    assert "engine takes 10.00 ms, p50 TPOT 20.00 ms" in lines[0]
    assert "measured with 1 of 2 layers" in lines[0]
    assert "p99 TPOT 10.00 ms, within 20" in lines[1]
    assert "--max-num-seqs 16" in lines[4]


def test_a_gain_whose_interval_has_no_verdict_may_be_none(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", None))
    assert "may be none" not in lines_of(whole)[2]
    walls = (5.0, 20.0, 9.0, 15.0, 10.0)
    arms = {**whole.arms, whole.best: repeats(*walls, mode=whole.best, setup_ms=1.0, layers=1)}
    noisy = Found(*[arms if name == "arms" else getattr(whole, name) for name in Found.__slots__])
    assert "as fast as engine, so it may be none; " in lines_of(noisy)[2]


def test_without_time_for_another_stack_nothing_is_advised(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", None), "engine")
    lines = lines_of(whole)
    assert lines[1].startswith("do: nothing yet, engine alone ran in time; give a larger --budget-s")
    assert lines[2] == "gain: unknown, engine alone ran in time"
    assert lines[4] == "set: nothing yet"


def test_a_model_may_be_named_as_in_a_run_and_a_file_of_that_name_comes_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent.parent)
    assert of_model(Path("qwen3_8b"), 2, "cpu", None).config().model.hidden == 4096
    model.parent.rename("qwen3_8b")
    assert of_model(Path("qwen3_8b"), 2, "cpu", None).config().model.hidden == MODEL["hidden_size"]


def test_steps_of_a_model_wait_for_all_requests_and_lists_do_not(model: Path, tmp_path: Path) -> None:
    (gemms := tmp_path / "gemms.csv").write_text("m,n,k\n64,1,64\n")
    assert of_model(model, 16, "cpu", None).config().batching.timeout_us == 50_000
    assert of_file("list", gemms, "cpu", None).config().batching.timeout_us == 150


def test_switches_for_a_list_do_not_take_its_batch_for_requests(tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    path.write_text("m,n,k\n64,1,64\n")
    line = lines_of(found(of_file("list", path, "cpu", None), "graph"))[4]
    assert line.startswith("set: vLLM --max-num-seqs N, --compilation-config")
    assert "SGLang --max-running-requests N, --cuda-graph-max-bs N;" in line
    assert line.endswith("; N: your requests side by side")


def test_a_stack_that_does_not_coalesce_has_no_switch(model: Path) -> None:
    assert lines_of(found(of_model(model, 16, "cpu", None), "batched"))[4].startswith("set: nothing in vLLM")


def test_every_switch_has_a_value(model: Path) -> None:
    question = of_model(model, 16, "cpu", None)
    line = lines_of(found(question, "engine+graph"))[4]
    assert """--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}', -O2; SGLang""" in line
    assert "cuda_graph_config={max_batch_size: 16}, torch_compile_config={enable_fullgraph: true}" in line
    line = lines_of(found(question, "torch_eager"))[4]
    assert line.endswith(
        "--enforce-eager; SGLang --max-running-requests 16, --disable-cuda-graph; TensorRT-LLM "
        "max_batch_size=16, cuda_graph_config=null"
    )


def test_a_limit_that_nothing_keeps_is_said_with_the_closest_point(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", tpot(2.0)))
    (_, do, *_) = lines_of(
        Found(*[getattr(whole, name) if name != "fits" else frozenset() for name in Found.__slots__])
    )
    assert "nothing tried keeps p99 TPOT within 2 ms: 10.00 ms is the closest" in do


def changed(whole: Found, **parts: object) -> Found:
    values: list[Any] = [parts.get(name, getattr(whole, name)) for name in Found.__slots__]
    return Found(*values)


def test_a_batching_that_keeps_the_limit_is_said_to_keep_it(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", tpot(2.0)))
    kept = Batching(4, 0.0, 6, gain=0.8, kept_ms=1.5)
    do = lines_of(changed(whole, fits=frozenset(), batching=kept))[1]
    assert "(0.800x as fast as the default batching, in one sweep); p99 TPOT 1.500 ms, within 2" in do


def test_a_slower_stack_that_alone_keeps_the_limit_is_no_gain(model: Path) -> None:
    whole = found(of_model(model, 16, "cpu", tpot(20.0)))
    slower = repeats(*[20.0] * 5, mode=whole.best, setup_ms=1.0, layers=1, tpot_p50_ms=1.0, tpot_p99_ms=1.0)
    gain = lines_of(changed(whole, arms={**whole.arms, whole.best: slower}))[2]
    assert gain.startswith("gain: 0.5")
    assert "as fast as engine, so it is slower; engine does not keep the limit; " in gain


@pytest.mark.parametrize("best", ["engine+graph", "coalesced", "engine"])
def test_the_experiment_runs_the_advised_stack_beside_its_base(model: Path, tmp_path: Path, best: str) -> None:
    path = tmp_path / "experiment" / "advice.yaml"
    path.parent.mkdir()
    path.write_text(experiment_text(found(of_model(model, 16, "cpu", None), best)))
    with hydra_of(config_dir=str(tmp_path)):
        config = to_config(compose("config", ["experiment=advice"]))
    assert config.mode.label == best
    assert (config.batching.max_batch, config.batching.timeout_us) == (16, 0.0)
    assert config.against == ([] if best == "engine" else ["engine"])
    assert (config.model.name, config.workload.requests) == ("own", 16)


def test_the_experiment_reads_the_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "ü \U0001f600 ${oc.env:HOME}'s [1],b=2.csv"
    path.write_text("m,n,k\n64,1,128\n")
    whole = found(of_file("list", path, "cpu", None), "baseline")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/advice.yaml").write_text(experiment_text(whole))
    with hydra_of(config_dir=str(tmp_path)):
        assert compose("config", ["experiment=advice"]).workload.path == str(path)
    assert whole.question.config().workload.path == str(path)


def test_a_broken_table_of_auto_costs_a_warning_and_not_the_answer(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    measured = Entry(Work("a CPU", True, 4, "decode", 1.0, 1.0), "mine", {"engine": 2.0, "graph": 1.0})
    monkeypatch.setattr("runner.advise.saving.entries_in", lambda folders: [measured])
    table = default_path("a CPU")
    table.parent.mkdir(parents=True)
    table.write_text("{")
    again, page = save(found(of_model(model, 16, "cpu", None)), [], tmp_path / "answer")
    assert again.startswith("again: launchopt run --config-dir")
    assert page.startswith("page: ")
    assert (tmp_path / "answer/experiment/advice.yaml").exists()
    assert table.read_text() == "{"
    assert f"warning: {table}: cannot be read as JSON" in capsys.readouterr().err


def _no_gpu(index: int) -> DeviceInfo:
    raise DeviceError("device=cuda: no GPU here")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--model", "nowhere.json"], "nowhere.json: no such file"),
        (["--list", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--model", "lama_3_8b"], "or the path of a config.json; did you mean --model llama_3_8b"),
        (["--model", "broken.json"], "broken.json"),
        (["--model", "negative.json"], "hidden_size=-64: must be a whole number from 1"),
        (["--model", "large.json", "--device", "cpu"], "GB of main memory may be used: give a smaller model, or fewer"),
        (["--model", "own", "--device", "cuda"], "device=cuda: no GPU here"),
        (["--model", "own", "--device", "cpu", "--budget-s", "1"], "--budget-s=1: must be 10 or more"),
        (["--trace", "broken.json"], "broken.json: not JSON"),
        (["--list", "/dev/zero"], "/dev/zero: cannot be read: a device"),
        (["--list", "gemms.csv", "--slo-tpot-ms", "1"], "only a model has tokens"),
        (["--list", "gemms.csv", "--requests", "2"], "only a model has requests"),
        (["--model", "own", "--list", "gemms.csv"], "--list: not allowed with argument --model"),
        (["--requests", "2"], "one of the arguments --model --trace --list is required"),
        (["--model", "own", "--trace", "gemms.csv"], "only a Mooncake trace of requests, with hash_ids, goes with"),
        (
            ["--trace", "chat.jsonl"],
            "holds requests, not launches: add --model config.json, or type launchopt",
        ),
        (["--model", "experts.json", "--slo-tpot-ms", "1"], "and experts of a layer, have no tokens"),
        (["--model", "nowhere.json", "--budget-s", "0"], "--budget-s: 0: must be a number above 0"),
        (["--model", "own", "--output", "own"], "is there already"),
        (["--model", "new${x/config.json"], "new${x/config.json: has ${ in its name"),
        (["--model", "own", "--output", "new${x"], "--output=new${x: has ${ in its name"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    wanted: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"hidden_size": ')
    Path("negative.json").write_text(json.dumps(MODEL | {"hidden_size": -64}))
    Path("experts.json").write_text(json.dumps(MODEL | EXPERTS))
    Path("chat.jsonl").write_text(CHAT)
    Path("large.json").write_text(json.dumps(MODEL | {"hidden_size": 2 << 20}))
    monkeypatch.setattr("launchopt.devices.cuda.info.cuda_info", _no_gpu)
    monkeypatch.setattr("runner.advise.__main__._running_s", lambda: 0.0)  # the tests' process is older than a budget
    before = sorted(tmp_path.rglob("*"))
    try:
        code = commands.main(["advise", *words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    error = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert code == 2
    assert wanted in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_error_leaves_no_folder_without_trials_and_names_one_with_them(
    has_ended: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "below" / "advice"

    def interrupted() -> None:
        with _removed_without_results(folder):
            (folder / "round_1").mkdir(parents=True)
            if has_ended:
                (folder / "round_1/summary.parquet").touch()
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        interrupted()
    assert (folder.exists(), folder.parent.exists()) == (has_ended, has_ended)
    assert capsys.readouterr().err == (f"no advice; the trials that ended are in {folder}\n" if has_ended else "")


def test_a_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    path.write_text("m,n,k,count,weight\n64,1,128,8,first\n")
    question = of_file("list", path, "cpu", None)
    info, _ = find_device("cpu", 0)
    able, _ = candidates(question.config(), info)
    assert {"baseline", "batched"} <= set(able)
    assert question.requests == 0


def test_a_list_of_several_dtypes_runs_in_that_of_most_gemms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gemms.csv"
    path.write_text("m,n,k,dtype,count\n64,1,128,fp32,1\n64,1,128,fp32,1\n64,1,128,bf16,8\n")
    assert of_file("list", path, "cpu", None).config().workload.dtype.name == "bf16"
    assert "several dtypes: all rows run in bf16" in capsys.readouterr().err


def test_of_a_trace_only_stacks_that_keep_its_order_are_tried() -> None:
    question = of_file("trace", Path("tests/corpus/kineto.json.gz"), "cpu", None)
    able, refused = candidates(question.config(), find_device("cpu", 0)[0])
    assert "baseline" in able
    assert refused["graph"].startswith("changes the order")


def test_of_a_model_with_experts_the_experts_of_a_layer_run(tmp_path: Path) -> None:
    path = tmp_path / "mixture" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(MODEL | EXPERTS))
    question = of_model(path, 4, "cpu", None)
    assert (question.requests, question.settings["batching.max_batch"]) == (0, 64)
    info, _ = find_device("cpu", 0)
    config = settled_for(question, question.config(), info).config()
    assert (config.workload.name, config.workload.tokens, config.model.experts) == ("moe", 4, 8)
    able, refused = candidates(config, info)
    assert {"baseline", "batched", "graph", "grouped"} <= set(able)
    assert refused["graph+route+activate+combine+pdl"].startswith("mode.fuse=[route,activate,combine] needs a GPU")
    assert refused["torch_eager"] == "cannot launch COMBINE, EXPERT_MAP, PERMUTE, TOP_K"
    assert lines_of(found(question, "grouped"))[4].startswith(
        "set: nothing in vLLM, SGLang or TensorRT-LLM, which launch"
    )
    graph = lines_of(found(question, "graph+pdl"))[4]
    assert (
        "SGLang --cuda-graph-max-bs 4, no switch for pdl; TensorRT-LLM cuda_graph_config={max_batch_size: 4}" in graph
    )


def test_the_first_line_says_what_runs_of_a_model_with_experts(model: Path) -> None:
    experts = {"expert_routing": "power_law 1.2", "experts": 8, "experts_per_token": 2, "steps": 32, "step_tokens": 4}
    experts |= {"active_experts": 5.5, "largest_expert_tokens": 3.0}
    whole = found(of_model(model, 4, "cpu", None))
    arms = {label: [row | experts for row in rows] for label, rows in whole.arms.items()}
    first = lines_of(replace(whole, arms=arms))[0]
    assert "for 32 steps of 4 tokens through the experts of one layer (2 of 8 experts a token), without" in first
    packed = {label: [row | {"weights": "int4 per block"} for row in rows] for label, rows in whole.arms.items()}
    assert "10.00 ms, with int4 weights per block, p50 TPOT" in lines_of(replace(whole, arms=packed))[0]


def test_quantised_weights_of_experts_leave_our_own_kernels(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    wide = {"hidden_size": 256, "moe_intermediate_size": 128}
    path.write_text(json.dumps(MODEL | EXPERTS | wide))
    question = of_model(path, 16, "cuda", None).with_settings({"workload.weights": "int4", "workload.dtype": "bf16"})
    able, _ = candidates(question.config(), DeviceInfo("cuda", 0, "none", 1 << 34, 1 << 20, "no memory", 1 << 20))
    assert set(able) == {"expert_kernel", "graph", "graph+pdl", "graph+route+activate+combine+pdl"}
    assert base_of(question, "cuda") == "expert_kernel"
    assert base_of(question, "cpu") == "baseline"


def test_weights_that_cannot_be_quantised_are_refused_by_the_option_of_advise(model: Path) -> None:
    question = of_model(model, 1, "cpu", None).with_settings({"workload.weights": "int4"})
    with pytest.raises(ConfigError) as refused, _own_options_named(question):
        candidates(question.config(), find_device("cpu", 0)[0])
    assert str(refused.value) == (
        "--weights=int4: model.hidden=64 is no multiple of a block: use fp8 or int8, or leave it out"
    )


def test_a_trace_of_requests_says_what_prefix_caching_saves(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(CHAT)
    assert has_requests(path)
    line = prefixes_line(path)
    assert "has 21.3% of 2,400 prompt tokens (25.0% of full blocks of 512)" in line, "512 of 2,400; 1 of 4"
    assert not has_requests(Path("tests/corpus/kineto.json.gz"))
    assert not has_requests(tmp_path)
