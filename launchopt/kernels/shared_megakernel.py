"""Structs, enumerations and constants that the host and the megakernel share (megakernel.cu, megakernel/).

The rules of launchopt/kernels/shared.py hold here too.
"""

from __future__ import annotations

import enum

import numpy as np

from launchopt.kernels.shared import FEEDBACK, fields

MOST_WAITS = 4  # largest number of instructions for which an instruction can wait
JOIN = -1  # number in place of an op: the instruction only waits
TILE_ROWS, PASS_TILES = 8, 4  # rows of a tile of weights; most tiles of a pass
# Bytes of k that a slot holds of each row of a tile; bytes of the gap behind each row (megakernel/weights.cuh).
PIECE_BYTES, ROW_GAP_BYTES = 2048, 64
SCRATCH_BYTES = 32 << 10  # bytes of shared memory for a GEMM's inputs, or for an op
# Bytes of shared memory for inputs of several fp32 columns; bytes of the gap behind each row of inputs.
PAIRS_INPUT_BYTES, INPUT_GAP_BYTES = 64 << 10, 64
PART_GAP_ROWS = 8  # unused elements behind each column of a warp's sums in shared memory
REGISTER_PIECES = 2  # pieces of k that a warp holds in registers (megakernel/gemm_in_registers.cuh)
BOX_BYTES = 64  # contiguous bytes of a column, in mailboxes of several columns
TAG_BITS = 16  # upper bits of the host's word that hold the tag of the launch that waits for the word
MOST_HEAD_DIM = 256  # most elements of a head in fused attention (attention/fused_attention.cuh)
WHOLE_TOKENS = 16  # fused attention pads a query's scores to a multiple of this number of tokens
VALUE_QUERIES = 4  # queries for which a thread weights a value at once, in fused attention of fp32


class Stamp(enum.IntEnum):
    """Columns of a task's clock stamps, with STAMPS=1."""

    BEGAN = 0  # the block began the task
    READY = 1  # the inputs that the task waits for had arrived
    DONE = 2  # the block ended its share of the task


class LaunchClock(enum.IntEnum):
    """Columns of the last row of stamps: the duration of the whole launch, as the block saw it."""

    CYCLES = 0  # cycles of the multiprocessor's clock
    NS = 1  # ns of the GPU's timer


class TaskFlag(enum.IntFlag):
    """Properties of a task. SPLIT is bit 0, so that the kernel can use it as a number."""

    SPLIT = 1  # two blocks of a cluster share its tiles; each block multiplies half of k
    STREAMED = 2  # a GEMM whose weights are in the list of weights (WEIGHTS)
    MAILED = 4  # its inputs come through mailboxes
    COUNTED = 8  # another task waits for its counter
    WAITS = 16  # it waits for counters of other tasks
    ATTENDS = 32  # fused attention: `in` is its ROPE, in.c the rotated rows
    NORMED = 64  # a GEMM fused with the norm before it
    ADDS = 128  # a GEMM fused with the OP_ADD behind it
    ADDED_MAILED = 256  # the operand that OP_ADD adds comes through a mailbox
    GATED = 512  # a GEMM fused with the OP_SILU_MUL behind it
    NORMED_ODD = 1024  # the second, fourth, ... NORMED task of a list: NORMED tasks use two buffers in turn


# The columns OP to GRID_Z of a list of instructions; devices/instructions/words.py describes them.
INSTRUCTION = np.dtype(
    [
        *fields("<i8", "op m n k requests first_request"),
        *fields("<u8", "a b c"),
        *fields("<i8", "stride_a stride_b stride_c lda ldb ldc"),
        *fields("<i8", "q_heads kv_heads head_dim ctx page_tokens pages qk_norm"),
        *fields("<u8", "positions table"),
        *fields("<i8", "all_requests"),
        ("theta", "<f8"),
        *fields("<i8", "grid_x grid_y grid_z"),
    ]
)
# One instruction, or several fused ones, and how the blocks divide the work. The fields that a GEMM needs first are at
# the beginning, so that few loads fetch them.
TASK = np.dtype(
    [
        ("flags", "<u4"),  # bits of TaskFlag
        ("share", "<u4"),  # number of blocks that have a share of the task: the first blocks of the grid
        *fields("<u4", "tiles_each tiles_more bytes other_bytes"),  # see Cut in megakernel/weights.cuh
        ("round_bytes", "<u4"),  # bytes of k whose inputs are in shared memory at once; whole pieces
        ("input_row_bytes", "<u4"),  # bytes from one row of inputs to the next, in shared memory
        ("from", "<u8"),  # address of the inputs, or of their first mailbox in the first set (MAILED)
        ("from_bytes", "<u4"),  # bytes from one column of the inputs to the next
        ("requests", "<u4"),  # number of requests
        ("box", "<u8"),  # address of the first mailbox for the results, in the first set; or 0
        ("c", "<u8"),  # address of the GEMM's outputs
        ("stride_c", "<i8"),  # bytes from the outputs of one request to those of the next
        ("result_m", "<u4"),  # features of the results; the results are the outputs of the last fused instruction
        ("pair_rows", "<u4"),  # as in WEIGHTS
        ("result", "<u8"),  # address of the results
        ("result_stride", "<i8"),  # bytes from the results of one request to those of the next
        ("gain", "<u8"),  # address of the gain of the norm before a GEMM
        ("added", "<u8"),  # address, or mailbox (ADDED_MAILED), of the operand that OP_ADD adds to the GEMM's outputs
        ("added_stride", "<i8"),  # bytes from that operand of one request to that of the next
        # Fused attention: addresses, and bytes from one request to the next. `cache` is the KV cache of the layer.
        # `slots` are the outputs of SLOT_MAP.
        *(("cache", "<u8"), ("slots", "<u8"), ("slots_stride", "<i8")),
        *(("scores", "<u8"), ("scores_stride", "<i8"), ("probabilities", "<u8"), ("probabilities_stride", "<i8")),
        ("wait", "<u4", (MOST_WAITS,)),  # indices of the counters for which the task waits
        ("enough", "<u4", (MOST_WAITS,)),  # number that each launch adds to each of these counters; 0: no counter
        ("in", INSTRUCTION),
        ("unused", "<u8"),  # a task takes whole vectors of 16 bytes
    ]
)
# Weights of a streamed GEMM. An element with rows = 0 ends the list.
WEIGHTS = np.dtype(
    [
        ("a", "<u8"),  # address of the weights
        ("gain", "<u8"),  # address of the gain of the norm before the GEMM, one element per element of k; or 0
        *fields("<u4", "row_bytes rows"),  # bytes from one row to the next; number of rows
        ("groups", "<u4"),  # groups of up to COLUMNS columns; the weights are copied once for each group
        ("pieces", "<u4"),  # pieces of k that one block multiplies
        ("pair_rows", "<u4"),  # 0, or rows from the first tile of a pair to the second; OP_SILU_MUL needs both tiles
        *fields("<u4", "split tiles_each tiles_more bytes other_bytes"),  # see Cut in megakernel/weights.cuh
    ]
)
PROGRAM = np.dtype(
    [
        *fields("<u8", "tasks counters weights"),  # addresses of TASK [count], u32 [count + 1], WEIGHTS
        ("count", "<u8"),  # number of tasks
        ("box_bytes", "<u8"),  # bytes from one set of mailboxes to the other; launches use the sets in turn
        ("stamps", "<u8"),  # address of u64 [blocks, count + 1, Stamp]
    ]
)
GATE = np.dtype(
    [
        ("word", "<u8"),  # address of the host's word; 0: the launch need not wait
        ("gave_up", "<u8"),  # address in pinned memory, to which a launch that waited too long writes its tag
        ("word_copy", "<u8"),  # address of a copy of the word in the GPU's memory
        ("tag", "<u8"),  # tag of the launch, in the upper TAG_BITS bits of the host's word
        ("patience_ns", "<u8"),  # time after which a launch that waits for the word gives up
    ]
)
# The kernel's parameters one after another, each padded to 8 bytes.
LAUNCH = np.dtype([("program", PROGRAM), ("feedback", FEEDBACK), ("number", "<u8"), ("gate", GATE)])
