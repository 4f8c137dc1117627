"""The stack of every mode, and the table of choices that cannot be combined.

`PRESETS` has the stack that each mode is. `RULES` is the only list of what cannot be combined: a stack is refused if it
has all choices of a rule. The name of a mode whose way of batching is no choice of a stack is such a choice, too, once
the user changes its stack: `mode=batched mode.pdl=true` has the choice `mode=batched`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from launchopt.errors import ConfigError, explained, nearest
from launchopt.errors import choices as listed
from launchopt.stack import COALESCE, EXPERT_FUSIONS, LOOPS, PDL, Fusion, Kernels, Stack, Submit, preset_of

CHOICES = ("coalesce", "fuse", "submit", "pdl", "kernels")  # the options that make up a stack
_WORD = re.compile(r"([+-])(\w+)")  # a choice in a label
AS_VLLM = frozenset({Fusion.qkv, Fusion.gate_up, Fusion.norm, Fusion.rope_kv, Fusion.attention})

PRESETS: Mapping[str, Stack] = {
    "baseline": Stack(),
    "batched": Stack(),
    "coalesced": Stack(coalesce=True),
    "cublaslt_fp8": Stack(),
    "engine": Stack(coalesce=True, fuse=AS_VLLM),
    "expert_kernel": Stack(kernels=Kernels.own),
    "fused_elementwise": Stack(coalesce=True, fuse=frozenset({Fusion.epilogue})),
    "fused_epilogue": Stack(coalesce=True, fuse=frozenset({Fusion.epilogue})),
    "fused_qkv": Stack(coalesce=True, fuse=frozenset({Fusion.qkv})),
    "fused_triton": Stack(coalesce=True, fuse=frozenset({Fusion.epilogue}), kernels=Kernels.triton),
    "graph": Stack(coalesce=True, submit=Submit.graph),
    "graph_device": Stack(coalesce=True, submit=Submit.graph_device),
    "graph_loop": Stack(coalesce=True, submit=Submit.graph_loop),
    "grouped": Stack(),
    "kernel": Stack(kernels=Kernels.own),
    "megakernel": Stack(coalesce=True, submit=Submit.megakernel, kernels=Kernels.own),
    "multistream": Stack(),
    "pdl": Stack(pdl=True, kernels=Kernels.own),
    "persistent": Stack(submit=Submit.persistent, kernels=Kernels.own),
    "pointer_array": Stack(),
    "torch_compile": Stack(coalesce=True, submit=Submit.graph, kernels=Kernels.torch),
    "torch_eager": Stack(coalesce=True, kernels=Kernels.torch),
    "torch_graph": Stack(coalesce=True, submit=Submit.graph, kernels=Kernels.torch),
    "triton_batched": Stack(kernels=Kernels.triton),
    "triton_experts": Stack(kernels=Kernels.triton),
}


def preset_stack(name: str) -> Stack:
    """Return the stack of a mode. A mode that PRESETS lacks is launched in its own way, and its stack is fixed."""
    return PRESETS.get(name, Stack())


def shown_on(kind: str, stack: Stack) -> str:
    """Return a stack as results have it. On a CPU, NumPy stands for cuBLASLt's kernels and for our own."""
    return str(stack) if kind == "cuda" else re.sub("kernels=(cublaslt|own)", "kernels=numpy", str(stack))


class Rule(NamedTuple):
    """Choices that cannot be combined, and the reason. A stack that has all of them is refused.

    `no NAME` is the choice to leave out a fusion, `coalesce` or `pdl`. CHANGED: the stack is not its mode's preset.
    """

    choices: frozenset[str]
    reason: str


def _rule(reason: str, *choices: str) -> Rule:
    return Rule(frozenset(map(str, choices)), reason)


CHANGED, OTHER = "changed", "a mode without a preset"
_BATCHES = "takes commands of one shape, and only whole steps can be stacked: begin with baseline, coalesced or graph"
_TORCH = "PyTorch's modes are torch_eager, torch_compile and torch_graph as they are: PyTorch chooses its own fusions"
_MEGAKERNEL = "a megakernel is one launch for a whole step, with fusions of its own: use mode=megakernel as it is"
_PERSISTENT = "a persistent kernel takes single commands, without launches to change: use mode=persistent as it is"
_TRITON = "our Triton kernel for steps computes bias, ReLU and scale only, and waits for no earlier launch"
_SILU = "cuBLASLt has no epilogue for SiLU(gate) * up, which stays a launch of its own: use mode.kernels=own, on a GPU"
_STREAMS = "spreads single commands over CUDA streams, and a stack has one stream: begin with baseline"
_FP8 = "makes two launches per independent command, and only whole steps can be stacked: begin with baseline or graph"
_EXPERTS = (
    "launches a step of a layer with experts by kernels of our own, and its only choices are "
    f"mode.fuse=[{','.join(EXPERT_FUSIONS)}]: use mode=graph for a graph of them"
)

_TRITON_EXPERTS = "launches a step of a layer with experts, and can change mode.submit=graph and mode.pdl only"
NOT_EXPERTS = "no mode=triton_experts"  # a choice of every other mode

_OTHER = "has launches of its own, which are no stack of choices: begin with baseline, coalesced or graph"

RULES: tuple[Rule, ...] = (
    _rule(_OTHER, CHANGED, OTHER),
    *(_rule(_BATCHES, CHANGED, f"mode={name}") for name in ("batched", "grouped", "pointer_array", "triton_batched")),
    _rule(_FP8, CHANGED, "mode=cublaslt_fp8"),
    _rule(_STREAMS, CHANGED, "mode=multistream"),
    *(
        _rule(_EXPERTS, "mode=expert_kernel", each)
        for each in (*Fusion, COALESCE, PDL, *Submit, *Kernels)
        if each not in {*EXPERT_FUSIONS, Submit.stream, Kernels.own}
    ),
    *(_rule(_TORCH, CHANGED, f"mode={name}") for name in ("torch_compile", "torch_eager", "torch_graph")),
    _rule(_TORCH, CHANGED, Kernels.torch),
    *(_rule(_MEGAKERNEL, CHANGED, choice) for choice in ("mode=megakernel", Submit.megakernel)),
    *(_rule(_PERSISTENT, CHANGED, choice) for choice in ("mode=persistent", Submit.persistent)),
    *(
        _rule(_TRITON_EXPERTS, "mode=triton_experts", each)
        for each in (*Fusion, COALESCE, *LOOPS, *Kernels)
        if each not in (Kernels.triton, Kernels.torch)
    ),
    *(_rule(_TRITON, NOT_EXPERTS, Kernels.triton, each) for each in (*Fusion, PDL) if each != Fusion.epilogue),
    _rule(_TRITON, NOT_EXPERTS, CHANGED, Kernels.triton, f"no {Fusion.epilogue}"),
    _rule(_SILU, Fusion.silu, Kernels.cublaslt),
)


_WITHIN = "has no all-reduce within a launch"
SPLIT_RULES: tuple[Rule, ...] = (  # choices that cannot execute a model that several GPUs split
    _rule(f"a megakernel {_WITHIN}: use mode=graph", Submit.megakernel),
    _rule(f"a persistent kernel {_WITHIN}: use mode=graph", Submit.persistent),
    *(_rule(f"mode.submit={each} repeats steps in one launch: use mode.submit=graph", each) for each in sorted(LOOPS)),
    _rule("PyTorch's modes have no all-reduce: use mode.kernels=cublaslt or own", Kernels.torch),
    _rule("our Triton kernels have no all-reduce: use mode.kernels=cublaslt or own", Kernels.triton),
)
QUANTISED_BY: Mapping[str, str] = {  # what runs quantised weights, by kind of device
    "cpu": "mode=baseline, batched, coalesced, engine or graph",
    "cuda": "mode=baseline, batched, multistream, kernel, pdl or triton_batched, for independent commands in fp8 "
    "cublaslt_fp8, for decode steps mode.kernels=own, for workload=moe mode=graph or expert_kernel",
}
SAME_BATCHES = "forms batches of one shape as commands come, so that GPUs may form different ones: use mode=coalesced"


def split_conflict(stack: Stack) -> Rule | None:
    """Return the rule by which a stack cannot execute a model that several GPUs split; None if it can."""
    return next((rule for rule in SPLIT_RULES if rule.choices <= stack.choices), None)


def stack_of(name: str, options: Mapping[str, object]) -> Stack:
    """Return the stack of a mode with these options; an option that is absent or None has the preset's value."""
    return preset_stack(name).replaced({key: value for key, value in options.items() if value is not None})


def label_of(name: str, stack: Stack) -> str:
    """Return the label of an arm: the mode's name, and how its stack differs, such as `graph+norm+pdl`."""
    return name + stack.over(preset_stack(name))


def conflict(name: str, stack: Stack) -> Rule | None:
    """Return the rule that refuses a stack which began as the mode `name`; None if its choices can be combined."""
    own = stack.choices | {f"no {each}" for each in (*Fusion, COALESCE, PDL) if each not in stack.choices}
    own |= {NOT_EXPERTS} if name != "triton_experts" else set()
    if stack != preset_stack(name):
        own |= {f"mode={name}", CHANGED, *([] if name in PRESETS else [OTHER])}
    return next((rule for rule in RULES if rule.choices <= own), None)


def values_of(stack: Stack) -> dict[str, bool | str | list[str]]:
    """Return the choices of a stack as values of the options."""
    fuse = [str(each) for each in Fusion if each in stack.fuse]
    return {
        "coalesce": stack.coalesce,
        "fuse": fuse,
        "submit": str(stack.submit),
        "pdl": stack.pdl,
        "kernels": str(stack.kernels),
    }


def choices_of(label: str, key: str = "against") -> tuple[str, dict[str, bool | str | list[str]]]:
    """Return the mode and the choices that a label stands for, such as `graph+norm-coalesce`.

    key: the setting that names the label. ConfigError if the label has a word that is no choice, or choices that cannot
    be combined.
    """
    name = preset_of(label)
    words = list(_WORD.finditer(label, len(name)))
    if name + "".join(each[0] for each in words) != label:
        wanted = "the name of a mode with its other choices, such as graph+norm+pdl or engine-attention"
        raise ConfigError(key, label, explained("+ and - come before the name of a choice", wanted))
    stack = preset_stack(name)
    for each in words:
        stack = _with(stack, each, key)
    options = values_of(stack)
    check_stack(key, name, options)
    return name, options


def _with(stack: Stack, written: re.Match[str], key: str) -> Stack:
    """Return a stack with a choice, or without it, as `written` in a label. key: for an error."""
    word, is_on, label = written[2], written[1] == "+", written.string
    switched = (*map(str, Fusion), COALESCE, PDL)
    if not is_on and word in switched and word not in stack.choices:
        without = label[: written.start()] + label[written.end() :]
        meant = _proposed(key, without)
        raise ConfigError(key, label, explained(f"{label[: written.start()]} has no {word} to leave out", meant=meant))
    if word == COALESCE:
        return replace(stack, coalesce=is_on)
    if word == PDL:
        return replace(stack, pdl=is_on)
    if word in list(Fusion):
        fuse = stack.fuse | {Fusion(word)} if is_on else stack.fuse - {Fusion(word)}
        return replace(stack, fuse=fuse)
    if is_on and word in list(Submit):
        return replace(stack, submit=Submit(word))
    if is_on and word in list(Kernels):
        return replace(stack, kernels=Kernels(word))
    allowed = (*switched, *map(str, Submit), *map(str, Kernels)) if is_on else switched
    before, after = label[: written.start(2)], label[written.end() :]
    meant = [each for near in nearest(word, allowed) for each in _proposed(key, f"{before}{near}{after}")]
    no_choice = f"{word} is no choice" if is_on or word not in {*Submit, *Kernels} else f"{word} cannot be left out"
    raise ConfigError(key, label, explained(no_choice, listed(allowed), meant))


def _proposed(key: str, label: str) -> list[str]:
    """Return what to type for a label. `mode` takes the name of a preset, and its choices as settings beside it."""
    if key != "mode":
        return [f"{key}={label}"]
    try:
        return [options_in(label)]
    except ConfigError:  # the label has a second mistake
        return []


def options_in(label: str) -> str:
    """Return a label as settings of the command line: `mode=graph 'mode.fuse=[norm]'` for graph+norm."""
    name, options = choices_of(label, "mode")
    changed = [(key, value) for key, value in options.items() if not is_preset(name, key, value)]
    return " ".join([f"mode={name}", *(_setting(key, value) for key, value in changed)])


def _setting(key: str, value: bool | str | list[str]) -> str:
    if isinstance(value, list):
        return f"'mode.{key}=[{','.join(value)}]'"
    return f"mode.{key}={str(value).lower()}"


def is_preset(name: str, key: str, value: object) -> bool:
    """Return whether the value of a choice is that of a mode's preset; None is."""
    own = values_of(preset_stack(name))[key]
    if isinstance(value, list) and isinstance(own, list):
        return set(value) == set(own)
    return value is None or value == own


def check_stack(key: str, name: str, options: Mapping[str, object]) -> None:
    """Raise ConfigError, with the reason, if the choices of a mode's stack cannot be combined.

    key: the setting to name, such as mode.
    """
    stack = stack_of(name, options)
    if (rule := conflict(name, stack)) is not None:
        raise ConfigError(key, label_of(name, stack), rule.reason)
