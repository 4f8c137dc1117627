"""Declarations of shared.py and its like (shared_*.py) as CUDA text, so that a kernel and the host cannot disagree.

A kernel includes a header of `HEADERS` by its name, as in `#include "shared/feedback.cuh"`. The headers exist only as
strings in `HEADERS`; `launchopt.kernels.source` puts them in place of the #include.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType, ModuleType

import numpy as np

from launchopt.command import Op
from launchopt.kernels import shared
from launchopt.kernels import shared_experts as experts
from launchopt.kernels import shared_megakernel as megakernel
from launchopt.kernels import shared_peers as peers
from launchopt.sampling import SamplingKind
from launchopt.weights.packing import BLOCK, SCALES_ALIGNMENT_BYTES, Scales, WeightFormat

_TYPES = {"i8": "i64", "u8": "u64", "u4": "u32", "f8": "double"}  # NumPy name to C type (common/storage.cuh)


def struct_text(
    name: str, dtype: np.dtype[np.void], types: Mapping[str, str] = MappingProxyType({}), alignment: int = 0
) -> str:
    """Return the CUDA declaration of a struct whose fields are those of a packed `dtype`.

    types: C types of the fields that are pointers or other structs; the NumPy type gives all others. alignment: bytes
    to which the struct is aligned; 0: the alignment of its fields.
    """
    fields = ""
    for field in dtype.names or ():
        own = dtype[field]
        kind = types.get(field) or _TYPES[own.base.str[1:]]
        fields += f"    {kind} {field}{''.join(f'[{size}]' for size in own.shape)};\n"
    return f"struct {f'alignas({alignment}) ' if alignment else ''}{name} {{\n{fields}}};\n"


def enum_text(kind: type[enum.IntEnum | enum.IntFlag], prefix: str = "") -> str:
    """Return the CUDA declaration of an anonymous enum with the members of `kind`."""
    return constants_text(**{f"{prefix}{name}": int(member) for name, member in kind.__members__.items()})


def constants_text(**values: int) -> str:
    """Return the CUDA declaration of an anonymous enum with these names and values."""
    return f"enum {{ {', '.join(f'{name} = {value}' for name, value in values.items())} }};\n"


def _constants(module: ModuleType, names: str) -> str:
    """Return the declaration of some constants of a module. names: their names, separated by blanks."""
    return constants_text(**{name: getattr(module, name) for name in names.split()})


_FEEDBACK_TYPES = {"arguments": "const u64*", "ns": "u64*", "found": "u64*"}
_PEERS_TYPES = dict.fromkeys(("flags", "arrived", "generations", "account", "pushed", "lines"), "u64*")
_COPIES_TYPES = {"from": "const char*", "lines": "const char*", "waits": "u32*", "results": "u64*"}
_QUEUE_TYPES = {
    "ring": "const u64*",
    **dict.fromkeys(("host_done", "host_outputs", "control", "entries", "done", "ticket", "gone", "progress"), "u64*"),
    "arrived": "u32*",
    "shapes": "const Shape*",
}
_PROGRAM_TYPES = {"tasks": "const Task*", "counters": "u32*", "weights": "const Weights*", "stamps": "u64*"}
_GATE_TYPES = {"word": "const u64*", "gave_up": "u64*", "word_copy": "u64*"}

_COPY_CONSTANTS = {
    "ROWS": shared.COPY_ROWS,
    "ROW_BYTES": shared.COPY_ROW_BYTES,
    "LINE_BYTES": shared.LINE_BYTES,
    "MOST_SLOTS": shared.MOST_COPY_SLOTS,
    "RESULTS": len(shared.CopyResult),
}

_WEIGHTS = {f"FORMAT_{each.name.upper()}": number for number, each in enumerate(WeightFormat)}
_SCALES = {f"PER_{each.name.upper()}": number for number, each in enumerate(Scales)}

HEADERS: Mapping[str, str] = {
    "shared/weights.cuh": constants_text(**_WEIGHTS, **_SCALES)
    + constants_text(SCALE_BLOCK=BLOCK, SCALES_ALIGNMENT=SCALES_ALIGNMENT_BYTES),
    "shared/args.cuh": struct_text("Args", shared.ARGS),
    "shared/add_norm.cuh": struct_text("AddNorm", shared.ADD_NORM),
    "shared/all_reduce.cuh": _constants(peers, "MOST_RANKS ALL_REDUCE_BLOCKS ALL_REDUCE_THREADS PUSH_BLOCKS LINE_WORDS")
    + enum_text(peers.AllReduceAccount)
    + struct_text("Peers", peers.PEERS, _PEERS_TYPES)
    + struct_text("AllReduce", peers.ALL_REDUCE)
    + struct_text("ReduceAdd", peers.REDUCE_ADD),
    "shared/experts.cuh": _constants(experts, "MAP_THREADS"),
    "shared/expert_gemm.cuh": _constants(experts, "EXPERT_WARPS EXPERT_ROWS EXPERT_COLUMNS")
    + struct_text("ExpertGemm", experts.EXPERT_GEMM),
    "shared/expert_fused.cuh": _constants(experts, "ROUTE_WARPS ROUTE_ROWS ROUTE_EXPERTS")
    + struct_text("ExpertRoute", experts.EXPERT_ROUTE)
    + struct_text("ExpertFused", experts.EXPERT_FUSED),
    "shared/skinny.cuh": _constants(shared, "GROUP_WARPS MOST_COLUMNS") + struct_text("Shape", shared.SHAPE),
    "shared/step_gemm.cuh": _constants(shared, "STEP_COPIERS STEP_ROWS STEP_GAP_BYTES STEP_PART_BYTES")
    + struct_text("StepGemm", shared.STEP_GEMM),
    "shared/attention.cuh": _constants(shared, "QUERIES KEY_LANES KEYS AV_LANES")
    + constants_text(WARPS=shared.ATTENTION_WARPS),
    "shared/step_attention.cuh": _constants(shared, "MOST_SPLITS")
    + struct_text("StepAttention", shared.STEP_ATTENTION),
    "shared/expert_align.cuh": _constants(shared, "ALIGN_THREADS BLOCK_WORDS")
    + struct_text("ExpertAlign", shared.EXPERT_ALIGN),
    "shared/sampling.cuh": constants_text(**{kind.name.upper(): i for i, kind in enumerate(SamplingKind)}),
    "shared/feedback.cuh": _constants(shared, "ROW_WORDS") + struct_text("Feedback", shared.FEEDBACK, _FEEDBACK_TYPES),
    "shared/step_loop.cuh": _constants(shared, "ROW_HISTORY ROW_ID ROW_DRAW")
    + struct_text("StepLoop", shared.STEP_LOOP, {"arguments": "u64*", "left": "u64*"}),
    "shared/copies.cuh": constants_text(**_COPY_CONSTANTS)
    + enum_text(shared.CopyResult)
    + struct_text("Copies", shared.COPIES, _COPIES_TYPES),
    "shared/queue.cuh": _constants(shared, "COMMAND_WORDS OUTPUT_WORDS GROUPS ENTRY_WORDS TAG_SHIFT END MOST_CAPACITY")
    + _constants(shared, "SMALL_VECTORS")
    + enum_text(shared.KernelState)
    + enum_text(shared.ControlWord)
    + struct_text("Queue", shared.QUEUE, _QUEUE_TYPES),
    "shared/megakernel.cuh": _constants(
        megakernel, "MOST_WAITS JOIN TILE_ROWS PASS_TILES PIECE_BYTES ROW_GAP_BYTES SCRATCH_BYTES"
    )
    + _constants(megakernel, "PAIRS_INPUT_BYTES INPUT_GAP_BYTES PART_GAP_ROWS REGISTER_PIECES BOX_BYTES TAG_BITS")
    + _constants(megakernel, "MOST_HEAD_DIM WHOLE_TOKENS VALUE_QUERIES")
    + enum_text(Op, "OP_")
    + enum_text(megakernel.Stamp)
    + enum_text(megakernel.LaunchClock)
    + enum_text(megakernel.TaskFlag)
    + struct_text("Instruction", megakernel.INSTRUCTION)
    + struct_text("Task", megakernel.TASK, {"in": "Instruction"}, alignment=16)
    + struct_text("Weights", megakernel.WEIGHTS)
    + struct_text("Program", megakernel.PROGRAM, _PROGRAM_TYPES)
    + struct_text("Gate", megakernel.GATE, _GATE_TYPES),
}
