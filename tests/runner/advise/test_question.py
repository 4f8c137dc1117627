"""Questions about models, lists and traces: the settings of their trials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.advices import EXPERTS, MODEL, found

from launchopt.devices import find_device
from runner.advise.answer import lines_of
from runner.advise.candidates import candidates
from runner.advise.question import of_file, of_model, settled_for


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
