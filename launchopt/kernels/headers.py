"""The declarations of launchopt/kernels/shared.py as CUDA text, so that a kernel and the host cannot disagree.

A kernel includes a header of `HEADERS` by its name, as in `#include "shared/feedback.cuh"`; there is no such file.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from launchopt.command import Op
from launchopt.kernels.shared import (
    ARGS,
    ATTENTION_WARPS,
    AV_LANES,
    BOX_BYTES,
    COMMAND_WORDS,
    COPIES,
    COPY_ROW_BYTES,
    COPY_ROWS,
    END,
    ENTRY_WORDS,
    FEEDBACK,
    GATE,
    GROUP_WARPS,
    GROUPS,
    INPUT_GAP_BYTES,
    INSTRUCTION,
    JOIN,
    KEY_LANES,
    KEYS,
    LINE_BYTES,
    MOST_CAPACITY,
    MOST_COLUMNS,
    MOST_COPY_SLOTS,
    MOST_HEAD_DIM,
    MOST_WAITS,
    OUTPUT_WORDS,
    PAIRS_INPUT_BYTES,
    PART_GAP_ROWS,
    PASS_TILES,
    PIECE_BYTES,
    PROGRAM,
    QUERIES,
    QUEUE,
    REGISTER_PIECES,
    ROW_GAP_BYTES,
    ROW_WORDS,
    SCRATCH_BYTES,
    SHAPE,
    SMALL_VECTORS,
    TAG_BITS,
    TAG_SHIFT,
    TASK,
    TILE_ROWS,
    VALUE_QUERIES,
    WEIGHTS,
    WHOLE_TOKENS,
    ControlWord,
    CopyResult,
    KernelState,
    LaunchClock,
    Stamp,
    TaskFlag,
)
from launchopt.sampling import SamplingKind

_TYPES = {"i8": "i64", "u8": "u64", "u4": "u32", "f8": "double"}  # by NumPy's name; common/storage.cuh defines them


def struct_text(
    name: str, dtype: np.dtype[np.void], types: Mapping[str, str] = MappingProxyType({}), alignment: int = 0
) -> str:
    """Return the CUDA declaration of a struct whose fields are those of a packed `dtype`.

    types: the C type of a field, where its NumPy type does not tell it: a pointer, or another struct. alignment: in
    bytes, where it is more than that of the fields.
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


HEADERS: Mapping[str, str] = {
    "shared/args.cuh": struct_text("Args", ARGS),
    "shared/attention.cuh": constants_text(
        QUERIES=QUERIES, KEY_LANES=KEY_LANES, KEYS=KEYS, AV_LANES=AV_LANES, WARPS=ATTENTION_WARPS
    ),
    "shared/skinny.cuh": constants_text(GROUP_WARPS=GROUP_WARPS, MOST_COLUMNS=MOST_COLUMNS)
    + struct_text("Shape", SHAPE),
    "shared/sampling.cuh": constants_text(**{kind.name.upper(): i for i, kind in enumerate(SamplingKind)}),
    "shared/feedback.cuh": constants_text(ROW_WORDS=ROW_WORDS)
    + struct_text("Feedback", FEEDBACK, {"arguments": "const u64*", "ns": "u64*", "found": "u64*"}),
    "shared/copies.cuh": constants_text(
        ROWS=COPY_ROWS,
        ROW_BYTES=COPY_ROW_BYTES,
        LINE_BYTES=LINE_BYTES,
        MOST_SLOTS=MOST_COPY_SLOTS,
        RESULTS=len(CopyResult),
    )
    + enum_text(CopyResult)
    + struct_text(
        "Copies",
        COPIES,
        {"from": "const char*", "lines": "const char*", "waits": "u32*", "results": "u64*"},
    ),
    "shared/queue.cuh": constants_text(
        COMMAND_WORDS=COMMAND_WORDS,
        OUTPUT_WORDS=OUTPUT_WORDS,
        GROUPS=GROUPS,
        ENTRY_WORDS=ENTRY_WORDS,
        TAG_SHIFT=TAG_SHIFT,
        END=END,
        MOST_CAPACITY=MOST_CAPACITY,
        SMALL_VECTORS=SMALL_VECTORS,
    )
    + enum_text(KernelState)
    + enum_text(ControlWord)
    + struct_text(
        "Queue",
        QUEUE,
        {
            "ring": "const u64*",
            **dict.fromkeys(("host_done", "host_outputs", "control", "entries", "done"), "u64*"),
            **dict.fromkeys(("ticket", "gone", "progress"), "u64*"),
            "arrived": "u32*",
            "shapes": "const Shape*",
        },
    ),
    "shared/megakernel.cuh": constants_text(
        MOST_WAITS=MOST_WAITS,
        JOIN=JOIN,
        TILE_ROWS=TILE_ROWS,
        PASS_TILES=PASS_TILES,
        PIECE_BYTES=PIECE_BYTES,
        ROW_GAP_BYTES=ROW_GAP_BYTES,
        SCRATCH_BYTES=SCRATCH_BYTES,
        PAIRS_INPUT_BYTES=PAIRS_INPUT_BYTES,
        INPUT_GAP_BYTES=INPUT_GAP_BYTES,
        PART_GAP_ROWS=PART_GAP_ROWS,
        REGISTER_PIECES=REGISTER_PIECES,
        TAG_BITS=TAG_BITS,
        BOX_BYTES=BOX_BYTES,
        MOST_HEAD_DIM=MOST_HEAD_DIM,
        WHOLE_TOKENS=WHOLE_TOKENS,
        VALUE_QUERIES=VALUE_QUERIES,
    )
    + enum_text(Op, "OP_")
    + enum_text(Stamp)
    + enum_text(LaunchClock)
    + enum_text(TaskFlag)
    + struct_text("Instruction", INSTRUCTION)
    + struct_text("Task", TASK, {"in": "Instruction"}, alignment=16)
    + struct_text("Weights", WEIGHTS)
    + struct_text(
        "Program",
        PROGRAM,
        {"tasks": "const Task*", "counters": "u32*", "weights": "const Weights*", "stamps": "u64*"},
    )
    + struct_text("Gate", GATE, {"word": "const u64*", "gave_up": "u64*", "heard": "u64*"}),
}
