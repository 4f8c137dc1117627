"""Stacks that an advice may try."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.advices import EXPERTS, MODEL

from launchopt.devices import find_device
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.modes import MODES
from launchopt.modes.stack import choices_of, conflict, stack_of
from runner.advise.__main__ import _own_options_named
from runner.advise.candidates import LIKELY, LIKELY_ON_CPU, REORDERS, candidates, changed_stacks, counts, why_not
from runner.advise.question import base_of, of_file, of_model


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


def test_stacks_that_cannot_run_are_counted_by_reason(model: Path) -> None:
    info, _ = find_device("cpu", 0)
    _, refused = candidates(of_model(model, 4, "cpu", None).config(), info)
    number = sum("needs a GPU" in why for why in refused.values())
    assert why_not(refused).startswith(f"{number} need a GPU, ")
    torch = {"a": "needs torch: pip install -e '.[torch]'", "b": REORDERS, "c": "takes whole steps", "d": "no"}
    assert counts(["baseline"], torch) == (
        "1 stack can run this here (baseline), 4 cannot: 1 needs torch: pip install -e '.[torch]', "
        "2 are not for this work, 1 would change the order of its GEMMs (a list by launchopt record keeps it)"
    )
    assert counts(["a", "b", "c", "d"], {"e": "needs a GPU"}) == "4 stacks can run this here, 1 cannot: 1 needs a GPU"


def test_a_gpu_is_named_as_the_reason_only_if_it_would_help() -> None:
    config = of_file("trace", Path("tests/corpus/kineto.json.gz"), "cpu", None).config()
    _, refused = candidates(config, find_device("cpu", 0)[0])
    able, _ = candidates(config, DeviceInfo("cuda", 0, "none", 1 << 34, 1 << 20, "no memory", 1 << 20))
    assert {label for label, why in refused.items() if "needs a GPU" in why} <= set(able)


def test_of_a_trace_only_stacks_that_keep_its_order_are_tried() -> None:
    question = of_file("trace", Path("tests/corpus/kineto.json.gz"), "cpu", None)
    able, refused = candidates(question.config(), find_device("cpu", 0)[0])
    assert "baseline" in able
    assert refused["graph"].startswith("changes the order")


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
