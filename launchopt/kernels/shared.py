"""What the host and the CUDA kernels share: structs, enumerations and constants, each declared once, here.

`HEADERS` holds the declarations as CUDA text. A kernel includes them by name, as in `#include "shared/feedback.cuh"`.
The host fills arrays of the dtypes below and passes their addresses or bytes to the kernels.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import DTypeLike


def word_of(dtype: np.dtype[np.void], *path: str) -> int:
    """Return the place of a field in units of 8 bytes; `path`: the names of a struct's field, and of fields within
    it."""
    place = 0
    for name in path:
        assert dtype.fields is not None
        dtype, offset = dtype.fields[name][:2]
        place += offset
    return place // 8


def _fields(kind: str, names: str) -> list[tuple[str, DTypeLike]]:
    return [(name, kind) for name in names.split()]


# -- A command's arguments (common/storage.cuh)

# Rows lie lda, ldb, ldc elements apart; the commands of a batch stride_a, stride_b, stride_c bytes. positions: address
# of int32 start[requests] and next[requests]. table: address of int32 [requests, pages].
ARGS = np.dtype(
    [
        *_fields("<i8", "m n k lda ldb ldc stride_a stride_b stride_c"),
        *_fields("<i8", "q_heads kv_heads head_dim ctx page_tokens pages"),
        *_fields("<u8", "positions table"),
        *_fields("<i8", "requests"),
        ("theta", "<f8"),
    ]
)

# -- GEMMs of few columns (common/skinny.cuh)

GROUP_WARPS, MOST_COLUMNS = 8, 16
# rows, columns: of C; the larger extent is `rows`. row_elements, column_elements: from one row to the next, of either
# operand. row_step, column_step: elements of C from one row, or column, to the next. least_rows: of a tile, so that it
# pays to hand it out.
SHAPE = np.dtype(_fields("<i8", "rows columns k row_elements column_elements row_step column_step least_rows"))

# -- Attention as one op a launch (attention/attention.cuh)

QUERIES, KEY_LANES, KEYS, AV_LANES = (
    8,
    8,
    4,
    2,
)  # query heads of a kv head at once; lanes a key; keys a lane; lanes a value
ATTENTION_WARPS = 8

# -- Feeding back (tokens/)

ROW_WORDS = (
    5  # of a row that is fed back: addresses of source, target, history (or 0) and id; and the number that is drawn
)
# arguments: address of u64 [ROW_WORDS, pitch] in pinned memory. rows: how many a whole step feeds back at its end. ns:
# address to which a whole step adds the time of sampling. found: address of u64 [rows, blocks] of a whole step, 0
# between launches.
FEEDBACK = np.dtype(
    [
        *_fields("<u8", "arguments rows pitch hidden vocab embedding row_bytes start"),
        ("inverse_temperature", "<f8"),
        ("k", "<u8"),
        ("p", "<f8"),
        *_fields("<u8", "ns found"),
    ]
)

# -- Bulk copies, measured (copies.cu)

COPY_ROWS, COPY_ROW_BYTES, LINE_BYTES, MOST_COPY_SLOTS = 8, 2048, 128, 16  # of a slot; of a line that loads read


class CopyResult(enum.IntEnum):
    """What a block of copies.cu writes."""

    BYTES = 0
    BEGIN_NS = 1
    END_NS = 2
    WRONG = 3  # slots, or lines, that do not hold what they should


# from: address of what the first block copies. share_slots: slots of a block, after which it begins again. offset,
# pitch: bytes in shared memory, of the first row, and from one row to the next. slots: under way at most; 0: nothing is
# copied. lines: address of [samples, 32, LINE_BYTES]. gap: cycles between two samples. waits: address of u32 [samples,
# blocks], cycles. results: address of u64 [blocks, len(CopyResult)].
COPIES = np.dtype(_fields("<u8", "from share_slots offset pitch slots lines samples gap waits results"))

# -- The persistent kernel (persistent/)

COMMAND_WORDS, OUTPUT_WORDS = 4, 16  # of the host's ring, a command; outputs of a small command that the host is sent
GROUPS, ENTRY_WORDS = 4, 8  # groups of GROUP_WARPS warps in a block; words of an entry, a tile
TAG_SHIFT = 48  # the lap of a ring, in the upper bits of each of its words
END = 0xFFFF  # in place of a shape: no command follows
MOST_CAPACITY = 4096  # commands of a ring
SMALL_VECTORS = 16  # of k, of a command that one warp multiplies


class KernelState(enum.IntEnum):
    """What the persistent kernel is doing, in word STATE of `control`."""

    RUNNING = 0
    ENDED = 1  # in order: it has read END
    GAVE_UP = 2  # no command came for too long


class ControlWord(enum.IntEnum):
    """A word of `control`, in pinned memory."""

    STATE = 0  # a KernelState, written by the kernel
    ABORT = 1  # not 0: the kernel is to give up, written by the host


# ring, host_done, host_outputs, control: pinned memory of the host; the others: memory of the GPU. shape_count ..
# direct_bytes: settings. workers: groups that take tiles. direct_bytes: of weights; a lone command with fewer is not
# handed out.
QUEUE = np.dtype(
    _fields(
        "<u8",
        "ring host_done host_outputs control entries done ticket gone progress arrived shapes "
        "shape_count capacity_bits entry_bits workers patience_ns direct_bytes",
    )
)

# -- The megakernel (megakernel/)

MOST_WAITS = 4  # instructions that one can wait for
JOIN = -1  # in place of an op: an instruction that only waits
TILE_ROWS, PASS_TILES, PIECE_BYTES, ROW_GAP_BYTES = 8, 4, 2048, 64  # of weights, see megakernel/weights.cuh
SCRATCH_BYTES, PAIRS_INPUT_BYTES, INPUT_GAP_BYTES = 32 << 10, 64 << 10, 64  # of shared memory (megakernel/tiles.cuh)
PART_GAP_ROWS = 8  # behind each column of a block's sums
REGISTER_PIECES = 2  # pieces of k that a warp holds in registers (megakernel/gemm_in_registers.cuh)
BOX_BYTES = 64  # of a column, that lie together in mailboxes of several columns
TAG_BITS = 16  # of the host's word, for which a launch waits
MOST_HEAD_DIM, WHOLE_TOKENS, VALUE_QUERIES = 256, 16, 4  # of fused attention (attention/fused_attention.cuh)


class Stamp(enum.IntEnum):
    """Columns of an instruction's clock stamps, with STAMPS=1."""

    BEGAN = 0
    READY = 1  # all that it waits for is complete
    DONE = 2


class LaunchClock(enum.IntEnum):
    """Columns of the last row of stamps: the clock of the multiprocessor over the whole launch."""

    CYCLES = 0
    NS = 1


class TaskFlag(enum.IntFlag):
    """What a task is. SPLIT is bit 0, so that the kernel can use it as a number."""

    SPLIT = 1  # two blocks of a cluster share its tiles; each has half of k
    STREAMED = 2  # a GEMM whose weights are in the list of weights
    MAILED = 4  # its inputs come through mailboxes
    COUNTED = 8  # another task waits for its counter
    WAITS = 16  # it waits for counters of others
    ATTENDS = 32  # fused attention: `in` is its ROPE, in.c its rotated rows
    NORMED = 64  # a GEMM with a norm before it
    ADDS = 128  # a GEMM with OP_ADD behind it
    ADDED_MAILED = 256  # what OP_ADD adds comes through a mailbox
    GATED = 512  # a GEMM with OP_SILU_MUL behind it
    NORMED_ODD = 1024  # every other one of the NORMED tasks of a list


# The first columns of a list of instructions (devices/instructions/words.py), up to those about waits.
INSTRUCTION = np.dtype(
    [
        *_fields("<i8", "op m n k requests first_request"),
        *_fields("<u8", "a b c"),
        *_fields("<i8", "stride_a stride_b stride_c lda ldb ldc"),
        *_fields("<i8", "q_heads kv_heads head_dim ctx page_tokens pages"),
        *_fields("<u8", "positions table"),
        *_fields("<i8", "all_requests"),
        ("theta", "<f8"),
        *_fields("<i8", "grid_x grid_y grid_z"),
    ]
)
# An instruction, or several that are fused, and how the grid divides it. What a GEMM needs first comes first, in few
# loads.
TASK = np.dtype(
    [
        ("flags", "<u4"),  # of TaskFlag
        ("share", "<u4"),  # number of blocks that have a share, the first ones
        *_fields("<u4", "tiles_each tiles_more bytes other_bytes"),  # see Cut in megakernel/weights.cuh
        ("round_bytes", "<u4"),  # of k at once, in whole pieces, where inputs pass shared memory
        ("input_row_bytes", "<u4"),  # from one row of inputs to the next, in shared memory
        ("from", "<u8"),  # address of the inputs, or of the first mailbox that has them
        ("from_bytes", "<u4"),  # from one column of the inputs to the next
        ("requests", "<u4"),
        ("box", "<u8"),  # first mailbox for the results, or 0
        ("c", "<u8"),  # outputs of the GEMM
        ("stride_c", "<i8"),
        ("result_m", "<u4"),  # features of the results: the outputs of the last fused instruction
        ("pair_rows", "<u4"),  # see WEIGHTS
        ("result", "<u8"),
        ("result_stride", "<i8"),
        ("gain", "<u8"),  # of the norm before a GEMM
        ("added", "<u8"),  # what OP_ADD adds to the GEMM's outputs
        ("added_stride", "<i8"),
        *(("cache", "<u8"), ("slots", "<u8"), ("slots_stride", "<i8")),  # of attention
        *(("scores", "<u8"), ("scores_stride", "<i8"), ("probabilities", "<u8"), ("probabilities_stride", "<i8")),
        ("wait", "<u4", (MOST_WAITS,)),  # counters to wait for
        ("enough", "<u4", (MOST_WAITS,)),  # what a launch adds to each of them; 0: no counter
        ("in", INSTRUCTION),
    ]
)
# Weights of a streamed GEMM. The list ends with one of no rows.
WEIGHTS = np.dtype(
    [
        ("a", "<u8"),
        ("gain", "<u8"),  # of a norm before the GEMM, as many bytes as k; or 0
        *_fields("<u4", "row_bytes rows"),
        ("groups", "<u4"),  # of COLUMNS columns
        ("pieces", "<u4"),  # of k, of one block
        ("pair_rows", "<u4"),  # 0, or the rows between two tiles that belong together; then tiles come in pairs
        *_fields("<u4", "split tiles_each tiles_more bytes other_bytes"),  # see Cut in megakernel/weights.cuh
    ]
)
# counters: u32, one per task and one behind them. box_bytes: from the boxes of one launch to those of the next.
# stamps: u64 [blocks, tasks + 1, len(Stamp)].
PROGRAM = np.dtype(_fields("<u8", "tasks counters weights count box_bytes stamps"))
# word: address of the host's word, or 0: the launch need not wait. gave_up: address in pinned memory, to which a launch
# that waited for too long writes its tag. heard: address of a copy of the word on the GPU.
GATE = np.dtype(_fields("<u8", "word gave_up heard tag patience_ns"))
# The kernel's parameters in a row, padded to 8 bytes each.
LAUNCH = np.dtype([("program", PROGRAM), ("feedback", FEEDBACK), ("number", "<u8"), ("gate", GATE)])
