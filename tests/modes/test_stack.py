"""Stacks of choices: every pair of choices is in the table of rules, or runs; labels and options say the same."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cuda import fake_cuda
from support.modes.torch_runs import cuda_device
from support.steps.programs import SPLIT, requests_of, stream_of
from support.steps.step_runs import StepRun

from launchopt.arrivals.requests import Requests
from launchopt.command import HALF_BITS, LOW_HALF, Dtype, Op, RecordWord
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.errors import ConfigError
from launchopt.modes import MODES, mode_class
from launchopt.modes.stack import (
    CHANGED,
    PRESETS,
    RULES,
    choices_of,
    conflict,
    label_of,
    preset_stack,
    stack_of,
    values_of,
)
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.stack import LOOPS, Fusion, Kernels, Stack, Submit, parts_of, preset_of
from launchopt.streams.chain import ChainStream
from launchopt.streams.chain_table import ChainColumn
from launchopt.streams.groups import Kind, groups_of, unwritten_of
from launchopt.streams.model import ModelShape
from launchopt.streams.program import Node, Program, layer_program
from launchopt.workloads.gemv import gemv

MODEL = ModelShape("all", 128, 2, 2, 1, 64, 96, norm_epsilon=0.1)
CHOICES = ("coalesce", "no coalesce", *map(str, Fusion), *map(str, Submit), "pdl", *map(str, Kernels))
PAIRS = [
    pair
    for pair in combinations(CHOICES, 2)
    if not any(set(pair) <= set(map(str, kind)) for kind in (Submit, Kernels)) and set(pair) != set(CHOICES[:2])
]


def all_rows(requests: Requests, replicas: int = 2) -> ChainStream:
    """Return a stream whose layer has rows for every fusion: a transformer's layer, then smaller ones."""
    layer = layer_program(MODEL, requests.longest, 4)
    more = (
        *(Node(name, Op.GEMM, 128, 128, "add2") for name in "qkv"),
        Node("gemm", Op.GEMM, 128, 128, "q"),
        Node("bias", Op.BIAS, 128, 128, "gemm"),
        Node("relu", Op.RELU, 128, 128, "bias"),
        Node("bias2", Op.BIAS, 128, 128, "relu"),
        Node("relu2", Op.RELU, 128, 128, "bias2"),
        Node("scale", Op.SCALE, 128, 128, "relu2"),
    )
    program = Program((*layer.layer, *more), 128, layer.prologue, layer.attention, (("q", "k", "v"),))
    return ChainStream(program, 2, requests, Dtype.bf16, replicas)


def options_of(*chosen: str) -> dict[str, Any]:
    """Return the options that make these choices."""
    options: dict[str, Any] = {"fuse": [each for each in chosen if each in list(Fusion)]}
    for each in chosen:
        options |= {"submit": each} if each in list(Submit) else {}
        options |= {"kernels": each} if each in list(Kernels) else {}
        options |= {"pdl": True} if each == "pdl" else {}
        options |= {"coalesce": each == "coalesce"} if each.endswith("coalesce") else {}
    return options


@pytest.mark.parametrize("pair", PAIRS, ids=" & ".join)
def test_a_pair_of_choices_is_refused_by_a_rule_or_runs(pair: tuple[str, str]) -> None:
    options = options_of(*pair)
    stack = stack_of("coalesced", options)
    kind, rule = mode_class("coalesced", options), conflict("coalesced", stack)
    stream = all_rows(requests_of([(0, 3), (5, 2), (0, 3)]), replicas_of(stack))
    if rule is not None:
        assert rule in RULES
        assert kind.refusal("cpu", stream) == kind.refusal("cuda", stream) == rule.reason
        named = {each for each in rule.choices if each != CHANGED}
        assert named & set(pair) or stack.kernels is Kernels.cublaslt, "the rule is about one of the two"
        return
    assert kind.refusal("cuda", stream) is None
    if stack.pdl:
        run_on_fake_gpu(options)
        return
    if stack.kernels is Kernels.triton:  # runs on a GPU only; tests/modes/test_fused_triton.py
        return
    if stack.kernels is Kernels.own:  # refused on a CPU, which yet computes the rows of its launches for the check
        assert str(kind.refusal("cpu", stream)).startswith("mode.kernels=own needs a GPU")
    else:
        assert kind.refusal("cpu", stream) is None
    run = StepRun(kind(), stream, 3)
    for seed in (None, 4):
        run.run(seed)
        run.check()
    is_graph = stack.submit in (Submit.graph, *LOOPS)
    assert (set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.graph}) == is_graph
    assert run.mode.label() == label_of("coalesced", stack)
    run.close()


def replicas_of(stack: Stack) -> int:
    """Return the number of copies of the weights: a loop reads one."""
    return 1 if stack.submit in LOOPS else 2


def run_on_fake_gpu(options: dict[str, Any]) -> None:
    """Run what a fake of CUDA can compute of a stack."""
    for program in ("qkv", "linear_epilogue", "elementwise"):
        stack = stack_of("coalesced", options)
        stream = stream_of(program, [(0, 3), (2, 2), (0, 3)], layers=2, replicas=replicas_of(stack))
        kind = mode_class("coalesced" if program != "elementwise" else "graph", options)
        if kind.refusal("cuda", stream) is None and kind.stack.kernels is not Kernels.own:
            with fake_cuda() as device:
                run = StepRun(kind(), stream, 3, device)
                run.run()
                run.check()
                run.close()


def test_every_rule_refuses_a_stack_that_differs_in_nothing_else() -> None:
    """No rule is dead: each is the first that some stack of the table meets."""
    stacks = [
        (name, stack_of(name, options_of(*preset_stack(name).choices, *pair)))
        for name in (*PRESETS, "a mode of somebody else")
        for pair in combinations(CHOICES, 2)
    ]
    met = {rule for name, stack in stacks if (rule := conflict(name, stack))}
    assert met == set(RULES)


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
        ("graph-graph", "graph is no choice; allowed: "),
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
        "mode.fuse=norm: this workload does not have a norm"
    )
    assert mode_class("graph", {"fuse": ["qkv", "gate_up"]}).refusal("cpu", linear) is None, "they are stored merged"
    alone = gemv(2, 1, 2, 4, Dtype.fp32, 4)
    why = "takes whole steps: this workload's commands are independent of each other"
    assert mode_class("graph").refusal("cpu", alone) is None
    assert mode_class("baseline", {"fuse": ["norm"]}).refusal("cpu", alone) == why
    assert str(mode_class("graph", {"fuse": ["norm"]}).refusal("cpu", alone)).startswith(why)
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


APART: list[tuple[str, dict[str, Any]]] = [
    *(("coalesced", {}), ("graph", {}), ("engine", {}), ("coalesced", {"fuse": ["qkv"]})),
    *(("coalesced", {"fuse": ["qkv", "gate_up"]}), ("graph", {"fuse": ["qkv", "gate_up", "norm"], "kernels": "own"})),
    ("coalesced", {"fuse": ["qkv", "gate_up", "norm", "silu", "epilogue"], "kernels": "own"}),
]
SAVED = {"qkv": 2, "gate_up": 1}  # launches of a layer that a fusion saves


@pytest.mark.parametrize(("name", "options"), APART, ids=str)
@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("on", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_layer_apart_gives_the_outputs_of_one_that_is_merged(
    name: str, options: dict[str, Any], dtype: Dtype, on: str
) -> None:
    """It makes three launches more a layer, or fewer where the stack merges them; the bytes of memory are alike."""
    requests, layers, left, launches = requests_of([(0, 3), (3, 2)]), 2, [], []
    for merged in (False, True):
        program = layer_program(SPLIT, requests.longest, merged=merged)
        stream = ChainStream(program, layers, requests, dtype, 1)
        run = StepRun(mode_class(name, options)(), stream, 1, cuda_device() if on == "cuda" else None)
        run.run()
        run.check()
        outputs = run.device.arenas.arrays[stream.activations].reshape(-1)
        outputs = outputs if on == "cpu" else outputs.get()
        first = int(stream.table[0, ChainColumn.LANE]) * stream.activations.cols
        left.append(to_float32(outputs[first : first + stream.hidden], dtype))
        launches.append(len(run.launches(LaunchColumn.SIZE)))
        run.close()
    assert np.isfinite(left[0]).all()
    assert np.allclose(*left, rtol=0, atol=4 * dtype.unit_roundoff * np.abs(left[1]).max() + 1e-5)
    stack, steps = stack_of(name, options), 3 + 2  # the first token of the second request is that of its prompt
    more = 3 - sum(SAVED.get(str(each), 0) for each in stack.fuse)
    if stack.submit is Submit.graph:
        steps = 1 if on == "cuda" else 0  # a GPU has no graph for the prompt, which comes once
    assert launches[0] - launches[1] == more * layers * steps


def test_a_declined_group_gives_way_to_a_smaller_one() -> None:
    stream, stack = stream_of("layer", [(0, 3)], layers=1), PRESETS["engine"]
    rows = stream.rows(0)
    found = groups_of(stream, 0, stack, lambda group: group.stop - group.first < 4)
    names = [(each.kind, rows[each.first].name) for each in found]
    assert names == [(Kind.rope_kv, "rope"), (Kind.attention, "qk"), (Kind.add_norm, "add1")]


FAULTY = {  # stack, group by the name of its first row, and the name of its last row, whose output is wrong
    "norm": ({"fuse": ["norm"]}, "add1", "norm2"),
    "attention": ({"fuse": ["attention"]}, "qk", "av"),
    "rope_kv": ({"fuse": ["rope_kv"]}, "rope", "rope"),
    "rope_kv and attention": ({"fuse": ["rope_kv", "attention"]}, "rope", "av"),
    "norm in GEMM": ({"fuse": ["norm"], "kernels": "own"}, "norm1", "qkv"),
    "norm and SiLU in GEMM": ({"fuse": ["norm", "silu"], "kernels": "own"}, "norm2", "silu_mul"),
    "add in GEMM": ({"fuse": ["epilogue"], "kernels": "own"}, "down", "add2"),
}


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("case", FAULTY)
def test_a_fault_behind_outputs_that_are_not_stored_is_found(case: str, dtype: Dtype) -> None:
    """The check computes through unwritten outputs. An error of some roundings exceeds its bound."""
    options, first, last = FAULTY[case]
    stream = stream_of("layer", [(0, 4)] * 3, dtype, layers=2)
    run = StepRun(mode_class("coalesced", options)(), stream, 3)
    run.run()
    run.check()
    steps: Any = run.prepared._launch.__self__  # type: ignore[attr-defined]
    rows = stream.rows(0)
    error = 0.1 if dtype is Dtype.bf16 else 1e-4
    for shape_of, groups in steps.kinds.values():
        for start, (stop, bind) in groups.items():
            if rows[start].name == first and rows[start].layer == 1:
                at = next(i for i in range(start, stop) if rows[i].name == last)
                view = run.device.compute.views[shape_of[at]][2]
                groups[start] = (stop, wrong(bind, at - start, view, dtype, error))
    run.run()
    with pytest.raises(AssertionError, match="of request 1"):
        run.check()
    run.close()


def wrong(bind: Any, at: int, view: Any, dtype: Dtype, error: float) -> Any:
    """Return a bind that adds `error` to one feature of request 1 in the output of row `at` of a group."""

    def bound(words: Any) -> Any:
        compute = bind(words)

        def both() -> None:
            compute()
            slots = (words[at, :, RecordWord.SLOT_C_REQUEST] & np.uint64(LOW_HALF)).tolist()
            requests = (words[at, :, RecordWord.SLOT_C_REQUEST] >> np.uint64(HALF_BITS)).tolist()
            for slot, request in zip(slots, requests, strict=True):
                if request == 1:
                    out = view[slot].reshape(-1)
                    out[5:6] = from_float32(to_float32(out[5:6], dtype) + np.float32(error), dtype)

        return both

    return bound


def test_without_coalesce_each_request_is_launched_by_itself() -> None:
    stream = stream_of("layer", [(0, 3)] * 3, layers=1)
    sizes = {}
    for coalesce in (True, False):
        run = StepRun(mode_class("engine", {"coalesce": coalesce})(), stream, 3)
        run.run()
        run.check()
        sizes[coalesce] = np.array(run.launches(LaunchColumn.SIZE))
        run.close()
    rows = 10  # of a step, of which four are groups
    assert len(sizes[False]) == rows * stream.tokens
    assert sizes[False].max() == sizes[True].max() / 3, "the largest group holds the rows of one request"
    assert sizes[True].sum() == sizes[False].sum() == stream.commands
