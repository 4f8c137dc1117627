"""Stacks of choices: every pair of choices is in the table of rules, or runs, and faults are found."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cuda import fake_cuda
from support.modes.torch_runs import cuda_device
from support.steps.programs import SPLIT, requests_of, stream_of
from support.steps.step_runs import StepRun
from support.thorough import is_thorough

from launchopt.arrivals.requests import Requests
from launchopt.command import HALF_BITS, LOW_HALF, Dtype, Op, RecordWord
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.modes import mode_class
from launchopt.modes.stack import (
    CHANGED,
    PRESETS,
    RULES,
    conflict,
    label_of,
    preset_stack,
    stack_of,
)
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.stack import EXPERT_FUSIONS, LOOPS, Fusion, Kernels, Stack, Submit
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.program import Node, Program, layer_program
from launchopt.streams.model import ModelShape

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
    if Fusion.reduce in stack.fuse:  # only a split model has all-reduces (tests/runner/run/test_split_models.py)
        why = "mode.fuse=reduce: this workload does not have an all-reduce (parallel.tensor=2 splits a model over GPUs)"
        assert str(kind.refusal("cuda", stream)).startswith(why)
        return
    if stack.fuse & set(EXPERT_FUSIONS):  # no request takes steps of a layer with experts (tests/modes/test_experts.py)
        assert "this workload does not have a layer with experts (workload=moe)" in str(kind.refusal("cuda", stream))
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
    for seed in seeds_of(pair):
        run.run(seed)
        run.check()
    is_graph = stack.submit in (Submit.graph, *LOOPS)
    assert (set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.graph}) == is_graph
    assert run.mode.label() == label_of("coalesced", stack)
    run.close()


def seeds_of(pair: tuple[str, str]) -> list[int | None]:
    """Return how the steps are composed: every other pair shuffles the requests; --thorough: each pair does both."""
    both = [None, 4]
    return both if is_thorough() else [both[PAIRS.index(pair) % 2]]


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
