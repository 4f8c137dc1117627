"""Stacks of choices before they run: labels, refusals by a workload or a device, and the rows that each groups."""

from __future__ import annotations

from typing import Any

import pytest
from support.steps.programs import stream_of

from launchopt.command import Dtype
from launchopt.errors import ConfigError
from launchopt.modes import MODES, mode_class
from launchopt.modes.stack import (
    PRESETS,
    choices_of,
    conflict,
    label_of,
    stack_of,
    values_of,
)
from launchopt.stack import Stack, parts_of, preset_of
from launchopt.streams.chains.groups import Kind, groups_of, unwritten_of
from launchopt.workloads.gemv import gemv


@pytest.mark.parametrize("name", MODES)
def test_a_preset_is_allowed_and_is_its_own_label(name: str) -> None:
    assert mode_class(name).stack == PRESETS[name] == stack_of(name, {})
    assert conflict(name, PRESETS[name]) is None
    assert mode_class(name, values_of(PRESETS[name])) is mode_class(name)
    assert mode_class(name).label() == name == preset_of(name)


@pytest.mark.parametrize(
    "label", ["graph+norm+attention+pdl", "engine-attention", "graph-coalesce", "engine+graph+own"]
)
def test_a_label_names_its_choices(label: str) -> None:
    name, options = choices_of(label)
    assert (name, preset_of(label)) == (label.partition("+")[0].partition("-")[0],) * 2
    assert label_of(name, stack_of(name, options)) == label == mode_class(name, options).label()


def test_labels_whose_choices_have_another_order_are_of_one_arm() -> None:
    assert parts_of("engine-norm+own") == parts_of("engine+own-norm") == ("engine", {"-norm", "+own"})
    assert parts_of("graph") == ("graph", frozenset())
    assert parts_of("graph+norm") != parts_of("graph-norm")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("graph+nrm", "nrm is no choice; allowed: .*did you mean against=graph[+]norm[?]"),
        ("graph-graph", "graph cannot be left out; allowed: "),
        ("graph-grph", "grph is no choice; allowed: "),
        ("graph+norm,", "before the name of a choice; allowed: the name of a mode with its other choices, such as"),
        ("graph+", "[+] and - come before the name of a choice; allowed: the name of a mode with its other choices"),
        ("graph-norm+pdl", "graph has no norm to leave out; did you mean against=graph[+]pdl[?]"),
        ("graph+norm+nor", "nor is no choice; .*did you mean against=graph[+]norm[+]norm[?]"),
        ("graph+silu", "cuBLASLt has no epilogue for SiLU"),
        ("batched+norm", "takes commands of one shape, and only whole steps can be stacked"),
        ("torch_graph+norm", "PyTorch's modes are torch_eager, torch_compile and torch_graph as they are"),
    ],
)
def test_a_wrong_label_is_refused_in_one_line(label: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        choices_of(label)
    assert "\n" not in str(caught.value)


def test_a_label_as_a_mode_is_answered_with_settings_that_work() -> None:
    with pytest.raises(ConfigError, match=r"did you mean mode=engine mode.submit=graph\?$"):
        choices_of("engine+Graph", "mode")
    with pytest.raises(ConfigError, match=r"did you mean mode=engine 'mode.fuse=\[qkv,gate_up,norm,rope_kv\]'\?$"):
        choices_of("engine-attention-attention", "mode")
    with pytest.raises(ConfigError) as refused:
        choices_of("graph+sillu", "mode")
    assert "did you mean" not in str(refused.value), "graph+silu is refused, too"


def test_a_preset_without_its_fusion_does_not_need_the_rows_of_it() -> None:
    layer = stream_of("layer", [(0, 2)] * 2)
    assert mode_class("fused_epilogue", {"fuse": []}).refusal("cpu", layer) is None
    assert mode_class("fused_elementwise", {"fuse": ["attention"]}).refusal("cpu", layer) is None
    assert mode_class("fused_epilogue").refusal("cpu", layer) == (
        "fuses GEMM, bias and ReLU in a row: this workload has none"
    )


def test_a_fusion_that_the_workload_lacks_is_refused_and_one_of_the_preset_is_left_out() -> None:
    linear = stream_of("linear", [(0, 2)] * 2)
    assert mode_class("engine").refusal("cpu", linear) is None
    assert mode_class("graph", {"fuse": ["norm"]}).refusal("cpu", linear) == (
        "mode.fuse=norm: this workload does not have a norm; allowed: qkv, gate_up"
    )
    layer = str(mode_class("graph", {"fuse": ["epilogue"]}).refusal("cpu", stream_of("layer", [(0, 2)])))
    assert layer.endswith("; allowed: qkv, gate_up, norm, rope_kv, attention"), "silu needs kernels of our own"
    assert mode_class("graph", {"fuse": ["qkv", "gate_up"]}).refusal("cpu", linear) is None, "they are stored merged"
    alone = gemv(2, 1, 2, 4, Dtype.fp32, 4)
    why = "takes whole steps: this workload's commands are independent of each other"
    assert mode_class("graph").refusal("cpu", alone) is None
    assert mode_class("baseline", {"fuse": ["norm"]}).refusal("cpu", alone) == why
    graph = str(mode_class("graph", {"fuse": ["norm"]}).refusal("cpu", alone))
    assert graph.startswith(why)
    assert graph.endswith("; use mode=graph as it is, or a workload of steps, such as workload=layer")
    assert "needs a GPU" in str(mode_class("graph", {"pdl": True}).refusal("cpu", linear))


def test_what_our_kernels_do_not_support_is_refused_on_a_gpu_and_left_out_of_a_preset() -> None:
    small, wide = stream_of("layer", [(0, 2)]), stream_of("layer", [(0, 2)], Dtype.bf16)
    own, attention = mode_class("graph", {"kernels": "own"}), mode_class("graph", {"fuse": ["attention"]})
    assert own.refusal("cuda", small) == "mode.kernels=own: our GEMM of decode steps takes fp16 and bf16"
    why = "mode.fuse=attention: has head_dim=16; our attention kernel takes 64 or 128"
    assert attention.refusal("cuda", small) == why
    assert own.refusal("cuda", wide) is None
    assert attention.refusal("cpu", small) is None
    assert mode_class("engine").refusal("cuda", small) is None


def test_groups_of_a_layer() -> None:
    """The table of fusions: rows of a layer, by name, that each stack launches together."""
    stream = stream_of("layer", [(0, 3)], layers=2)
    vllm = ["qkv", "gate_up", "norm", "rope_kv", "attention"]

    def grouped(**options: Any) -> list[str]:
        rows, stack = stream.rows(0), stack_of("coalesced", options)
        assert isinstance(stack, Stack)
        return ["+".join(row.name for row in rows[each.first : each.stop]) for each in groups_of(stream, 0, stack)]

    attention = "rope+kv_write+qk+softmax+av"
    assert grouped(fuse=vllm) == [attention, "add1+norm2", "add2+norm1", attention, "add1+norm2"]
    assert grouped(fuse=["attention"]) == ["qk+softmax+av"] * 2
    assert grouped(fuse=["rope_kv"]) == ["rope+kv_write"] * 2
    own = ["norm1+qkv", attention, "o+add1", "norm2+gate_up+silu_mul", "down+add2"]
    assert grouped(fuse=[*vllm, "silu", "epilogue"], kernels="own") == own * 2
    assert grouped(kernels="own") == ["qkv", "o", "gate_up", "down"] * 2


def test_groups_of_a_layer_apart() -> None:
    """q, k and v, and gate and up, are merged where the stack says so; then a norm and SiLU(gate) * up can join."""
    stream = stream_of("apart", [(0, 3)], Dtype.bf16, layers=1)

    def grouped(**options: Any) -> list[str]:
        rows, stack = stream.rows(0), stack_of("coalesced", options)
        return ["+".join(row.name for row in rows[each.first : each.stop]) for each in groups_of(stream, 0, stack)]

    assert grouped(fuse=["qkv"]) == ["q+k+v"]
    assert grouped(fuse=["qkv", "gate_up"]) == ["q+k+v", "gate+up"]
    attention = "rope+kv_write+qk+softmax+av"
    assert grouped(fuse=list(PRESETS["engine"].fuse)) == ["q+k+v", attention, "add1+norm2", "gate+up"]
    own = {"kernels": "own", "fuse": ["qkv", "gate_up", "norm", "silu", "epilogue"]}
    assert grouped(**own) == ["norm1+q+k+v", "o+add1", "norm2+gate+up+silu_mul", "down+add2"]
    assert unwritten_of(stream, stack_of("coalesced", own)) == {"norm1", "o", "norm2", "gate", "up", "down"}
    assert grouped(kernels="own") == ["q", "k", "v", "o", "gate", "up", "down"]
    alone = grouped(kernels="own", fuse=["norm", "gate_up"])
    assert alone == ["q", "k", "v", "o", "norm2+gate+up", "down"], "three GEMMs read norm1: its output is stored"
    assert grouped(kernels="own", fuse=["norm"]) == ["q", "k", "v", "o", "add1+norm2", "gate", "up", "down"]
    silu = {"kernels": "own", "fuse": ["silu"]}
    assert "add gate_up to mode.fuse" in str(mode_class("graph", silu).refusal("cuda", stream))
    assert mode_class("graph", {**silu, "fuse": ["silu", "gate_up"]}).refusal("cuda", stream) is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("coalesced", {"kernels": "own"}),
        ("baseline", {"kernels": "own"}),
        ("kernel", {"coalesce": True}),
        ("pdl", {"pdl": False}),
        ("coalesced", {"kernels": "triton", "fuse": ["epilogue"]}),
    ],
    ids=str,
)
def test_a_cpu_has_no_kernels_to_choose_from(name: str, options: dict[str, Any]) -> None:
    kind, stream = mode_class(name, options), stream_of("linear_epilogue", [(0, 3)])
    why = f"mode.kernels={kind.stack.kernels} needs a GPU: the cpu device has no kernels to choose from"
    assert kind.refusal("cpu", stream) == why


def test_triton_fuses_no_gemm_and_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt's epilogue of bias and ReLU is not Triton's: a stack of Triton's kernels leaves it out."""
    triton = {"kernels": "triton", "fuse": ["epilogue"]}
    kind = mode_class("graph", triton)
    epilogue, elementwise = (stream_of(name, [(0, 3)]) for name in ("linear_epilogue", "elementwise"))
    assert {each.kind for each in groups_of(epilogue, 0, stack_of("coalesced", {"fuse": ["epilogue"]}))} == {
        Kind.epilogue
    }
    monkeypatch.setattr("launchopt.modes.base.missing", lambda *packages: list(packages))
    assert "does not have bias, ReLU and scale in a row" in str(kind.refusal("cuda", epilogue))
    assert kind.refusal("cuda", elementwise) is None
    assert str(kind.lacks()).startswith("needs triton: pip install")


def test_a_declined_group_gives_way_to_a_smaller_one() -> None:
    stream, stack = stream_of("layer", [(0, 3)], layers=1), PRESETS["engine"]
    rows = stream.rows(0)
    found = groups_of(stream, 0, stack, lambda group: group.stop - group.first < 4)
    names = [(each.kind, rows[each.first].name) for each in found]
    assert names == [(Kind.rope_kv, "rope"), (Kind.attention, "qk"), (Kind.add_norm, "add1")]
