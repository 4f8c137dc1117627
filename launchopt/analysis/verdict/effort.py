"""The effort that a strategy takes in an engine: the place of its mode, or of the hardest choice of a changed stack."""

from __future__ import annotations

from launchopt.analysis.stack_choices import choices_of
from launchopt.analysis.tables.rows import Line
from launchopt.stack import preset_of

# Modes by their effort for an engine, least first: another library call, a captured step, own kernels, a framework.
EFFORT = (
    *("batched", "coalesced", "pointer_array", "grouped", "multistream", "fused_epilogue", "fused_qkv", "engine"),
    *("graph", "graph_loop", "graph_device", "kernel", "pdl", "fused_elementwise", "triton_batched", "fused_triton"),
    *("expert_kernel", "triton_experts", "torch_graph", "torch_eager"),
)
# A mode that is a choice of a stack; a choice that is the name of a mode stands for that mode.
PRESET_OF_CHOICE = {"coalesce": "coalesced", "own": "kernel", "triton": "triton_batched", "torch": "torch_graph"} | {
    **dict.fromkeys(("qkv", "gate_up", "norm", "rope_kv", "attention"), "engine"),
    **{"silu": "kernel", "epilogue": "fused_epilogue"},
    **dict.fromkeys(("route", "activate", "combine"), "expert_kernel"),
}


def effort(line: Line) -> tuple[int, int]:
    """Return the place of a mode in EFFORT, and the number of choices of its stack.

    A changed stack has the place of the choice that takes the most effort.
    """
    mode = str(line["mode"])
    choices = choices_of(line)
    if mode == preset_of(mode):
        alike = [mode]
    else:
        known = [PRESET_OF_CHOICE.get(each, each) for each in choices]
        alike = [each for each in known if each in EFFORT] or [preset_of(mode)]
    return max(EFFORT.index(each) if each in EFFORT else len(EFFORT) for each in alike), len(choices)
