"""The stacks that can run some work on a device: every mode, and changed stacks that RULES allows.

Each mode's own `refusal` decides whether it can. Of stacks with the same launches only one is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from launchopt.analysis.stream_rows import counted
from launchopt.devices.base import DeviceInfo
from launchopt.modes import MODES, broken_modes, mode_class
from launchopt.modes.stack import AS_VLLM, PRESETS, choices_of, conflict, label_of, stack_of
from launchopt.stack import Fusion, Kernels, Stack, Submit
from launchopt.streams.experts.stream import ExpertStream
from runner.config.schema import Config
from runner.plan.streams import stream_on

START = "engine"  # mode that the changed stacks begin with
ALL_FUSED = AS_VLLM | {Fusion.silu, Fusion.epilogue}
SUBMITS = (Submit.stream, Submit.graph, Submit.graph_loop, Submit.graph_device)
# Tried first, in this order. The first three are the fastest ones of steps in outputs/reference.
LIKELY = (
    "engine+silu+epilogue+graph+own+pdl",
    "engine+silu+epilogue+graph_loop+own+pdl",
    "megakernel",
    "graph",
    "engine+graph+pdl",
    "coalesced",
    "torch_graph",
)
EXPERT_STACKS = ("graph+route+activate+combine+pdl", "graph+pdl")  # of a layer with experts
LIKELY_ON_CPU = ("torch_eager", "graph", "graph_device", "engine+graph")
MOST_NAMED = 3
FIXED = ("trace", "list")  # work that is the same on a GPU; a model runs there in the dtype of its weights
LONG_SETUP = {"torch_compile": "compiling takes longer than the trials of all other modes"}
NEEDS_GPU, NEEDS_PACKAGE = "needs a GPU", "pip install"  # parts of a refusal
CHANGES_ORDER = "would change the order of its GEMMs (a list by launchopt record keeps it)"
REORDERS = "changes the order of GEMMs, and a trace does not say which of them reads the result of another one"


def changed_stacks() -> list[str]:
    """Return the labels of stacks that are no mode's preset, such as engine+graph+pdl."""
    presets = set(PRESETS.values())
    found = []
    for fuse, submit, pdl, kernels in product((AS_VLLM, ALL_FUSED), SUBMITS, (False, True), Kernels):
        stack = Stack(coalesce=True, fuse=fuse, submit=submit, pdl=pdl, kernels=kernels)
        if stack not in presets and conflict(START, stack) is None:
            found.append(label_of(START, stack))
    return found


def candidates(config: Config, info: DeviceInfo) -> tuple[list[str], dict[str, str]]:
    """Return the labels that run the work of `config` on the device, and the others with the reasons.

    Those that are likely to be good come first: there may be no time for all. Where requests share weights, stacks that
    launch each request alone come last.
    """
    stream = stream_on(config, info)
    refused = broken_modes() | LONG_SETUP
    able = []
    of_experts = EXPERT_STACKS if isinstance(stream, ExpertStream) else ()
    for label in [*of_experts, *MODES, *(changed_stacks() if stream.has_steps else [])]:
        if label in refused:
            continue
        name, options = choices_of(label)
        kind = mode_class(name, options)
        why = kind.refusal(info.kind, stream) or kind.lacks()
        if why is not None and NEEDS_GPU in why and config.workload.name in FIXED:
            why = kind.refusal("cuda", stream) or why  # a GPU alone would not help
        if why is None and info.compute_capability:
            why = kind.capability_refusal(stream, info.compute_capability)
        is_open = why is None or NEEDS_GPU in why
        if is_open and config.workload.name == "trace" and stream.ordering(False, kind.keeps_order) == "none":
            why = REORDERS
        if why is None:
            able.append(label)
        else:
            refused[label] = why
    shares = stream.has_steps and stream.requests > 1
    ranks = {label: rank for rank, label in enumerate(LIKELY if info.kind == "cuda" else LIKELY_ON_CPU)}
    return sorted(able, key=lambda label: (shares and _is_alone(label), ranks.get(label, len(ranks)))), refused


def counts(able: Sequence[str], refused: Mapping[str, str]) -> str:
    """Return how many stacks run the work, with their names if they are few, and how many do not."""
    named = f" ({', '.join(able)})" if len(able) <= MOST_NAMED else ""
    return f"{counted(len(able), 'stack')} can run this here{named}, {len(refused)} cannot: {why_not(refused)}"


def why_not(refused: Mapping[str, str]) -> str:
    """Return the number of stacks that cannot run, by reason: `26 need a GPU, 1 needs torch: pip install torch`."""
    numbers: dict[str, int] = {}
    for why in refused.values():
        if NEEDS_PACKAGE in why:
            said = why.replace("needs", "{need}", 1)
        elif NEEDS_GPU in why:
            said = "{need} a GPU"
        else:
            said = CHANGES_ORDER if why == REORDERS else "{are} not for this work"
        numbers[said] = numbers.get(said, 0) + 1
    words = {True: {"need": "needs", "are": "is"}, False: {"need": "need", "are": "are"}}
    return ", ".join(
        f"{number} {said.format(**words[number == 1])}" for said, number in sorted(numbers.items(), key=_rank)
    )


def _rank(item: tuple[str, int]) -> tuple[bool, int]:
    """Order reasons: those that the reader can change come first."""
    return "{need}" not in item[0], -item[1]


def _is_alone(label: str) -> bool:
    """Return whether a stack launches each request alone, which is slow if many share the weights."""
    return not stack_of(*choices_of(label)).coalesce
