"""What the host and the CUDA kernels share: structs, enumerations and constants, each declared once, here.

The host fills arrays of these dtypes and passes their addresses or bytes to the kernels. For the kernels,
launchopt/kernels/headers.py writes the same declarations as CUDA text. Fields are packed: C must not need gaps either.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import DTypeLike


def word_of(dtype: np.dtype[np.void], *path: str) -> int:
    """Return the place of a field in units of 8 bytes. path: the name of a field, then of fields within it."""
    place = 0
    for name in path:
        assert dtype.fields is not None
        dtype, offset = dtype.fields[name][:2]
        place += offset
    return place // 8


def _fields(kind: str, names: str) -> list[tuple[str, DTypeLike]]:
    return [(name, kind) for name in names.split()]


# -- A command's arguments (common/storage.cuh)

ARGS = np.dtype(
    [
        *_fields("<i8", "m n k"),
        *_fields("<i8", "lda ldb ldc"),  # elements from one row to the next
        *_fields("<i8", "stride_a stride_b stride_c"),  # bytes from one command of a batch to the next
        *_fields("<i8", "q_heads kv_heads head_dim ctx page_tokens pages"),
        ("positions", "<u8"),  # address of int32 start[requests], then next[requests]
        ("table", "<u8"),  # address of int32 [requests, pages]
        ("requests", "<i8"),  # of the stream
        ("theta", "<f8"),
    ]
)

# -- GEMMs of few columns (common/skinny.cuh)

GROUP_WARPS = 8  # warps that multiply a tile together
MOST_COLUMNS = 16
SHAPE = np.dtype(
    [
        *_fields("<i8", "rows columns"),  # of C; `rows` is the larger extent
        ("k", "<i8"),
        *_fields("<i8", "row_elements column_elements"),  # from one row to the next, of either operand
        *_fields("<i8", "row_step column_step"),  # elements of C from one row, or column, to the next
        ("least_rows", "<i8"),  # of a tile, so that it pays to hand it out
    ]
)

# -- Attention, an op per launch (attention/attention.cuh)

QUERIES = 8  # query heads of a kv head that a block takes at once; as many as KEY_LANES, so that each lane gets a sum
KEY_LANES = 8  # lanes that share the features of a key
KEYS = 4  # keys of a lane at once
AV_LANES = 2  # lanes that share a slice of a value's features: 32 bytes
ATTENTION_WARPS = 8  # of a block

# -- Feeding back (tokens/)

ROW_WORDS = 5  # of a row: addresses of source, target, history (or 0) and id; the number that is drawn
FEEDBACK = np.dtype(
    [
        ("arguments", "<u8"),  # address of u64 [ROW_WORDS, pitch], in pinned memory
        ("rows", "<u8"),  # number of rows that a whole step feeds back
        ("pitch", "<u8"),
        *_fields("<u8", "hidden vocab"),
        *_fields("<u8", "embedding row_bytes"),  # address of [vocab, hidden]; bytes of a row
        ("start", "<u8"),  # of the random numbers
        ("inverse_temperature", "<f8"),
        ("k", "<u8"),  # of top_k
        ("p", "<f8"),  # of top_p
        ("ns", "<u8"),  # address to which a whole step adds the time of sampling
        ("found", "<u8"),  # address of u64 [rows, blocks] of a whole step; 0 between launches
    ]
)

# -- Bulk copies, measured (copies.cu)

COPY_ROWS, COPY_ROW_BYTES = 8, 2048  # of a slot
LINE_BYTES = 128  # of a line that is loaded
MOST_COPY_SLOTS = 16  # of a block


class CopyResult(enum.IntEnum):
    """What a block of copies.cu writes."""

    BYTES = 0
    BEGIN_NS = 1
    END_NS = 2
    WRONG = 3  # slots, or lines, that do not hold what they should


COPIES = np.dtype(
    [
        ("from", "<u8"),  # address of what the first block copies
        ("share_slots", "<u8"),  # slots of a block, after which it begins again
        *_fields("<u8", "offset pitch"),  # bytes in shared memory: of the first row; from one row to the next
        ("slots", "<u8"),  # under way at most; 0: nothing is copied
        ("lines", "<u8"),  # address of [samples, 32, LINE_BYTES]
        *_fields("<u8", "samples gap"),  # loads; cycles between two
        ("waits", "<u8"),  # address of u32 [samples, blocks]: cycles
        ("results", "<u8"),  # address of u64 [blocks, CopyResult]
    ]
)

# -- The persistent kernel (persistent/)

COMMAND_WORDS = 4  # of the host's ring, per command
OUTPUT_WORDS = 16  # most outputs of a small command, which the host is sent
GROUPS = 4  # groups of GROUP_WARPS warps in a block
ENTRY_WORDS = 8  # of an entry, which is a tile
TAG_SHIFT = 48  # above it each word of a ring has the ring's lap
END = 0xFFFF  # in place of a shape: no command follows
MOST_CAPACITY = 4096  # commands of a ring
SMALL_VECTORS = 16  # most vectors of k of a small command, which one warp multiplies


class KernelState(enum.IntEnum):
    """What the persistent kernel is doing, in word STATE of `control`."""

    RUNNING = 0
    ENDED = 1  # in order: it has read END
    GAVE_UP = 2  # no command came for too long


class ControlWord(enum.IntEnum):
    """A word of `control`, in pinned memory."""

    STATE = 0  # a KernelState, written by the kernel
    ABORT = 1  # not 0: the kernel is to give up, written by the host


QUEUE = np.dtype(
    [
        # Addresses of pinned memory: [capacity, COMMAND_WORDS], [capacity], [capacity, OUTPUT_WORDS], [ControlWord].
        *_fields("<u8", "ring host_done host_outputs control"),
        # Addresses of memory of the GPU.
        *_fields("<u8", "entries done"),  # [entries, ENTRY_WORDS], [capacity]
        *_fields("<u8", "ticket gone progress"),  # next entry to take; the kernel gave up; places of ring and entries
        *_fields("<u8", "arrived shapes"),  # [capacity]: complete tiles; SHAPE [shape_count]
        # Settings.
        ("shape_count", "<u8"),
        *_fields("<u8", "capacity_bits entry_bits"),  # logarithms of the commands in the ring, and of the entries
        ("workers", "<u8"),  # groups that take tiles
        ("patience_ns", "<u8"),  # without a command, after which the kernel gives up
        ("direct_bytes", "<u8"),  # of weights: a lone command with fewer is not handed out
    ]
)

# -- The megakernel (megakernel/)

MOST_WAITS = 4  # instructions that one can wait for
JOIN = -1  # in place of an op: an instruction that only waits
TILE_ROWS, PASS_TILES = 8, 4  # rows of a tile of weights; most tiles of a pass
PIECE_BYTES, ROW_GAP_BYTES = 2048, 64  # of k, of a row of a tile in a slot; behind it (megakernel/weights.cuh)
SCRATCH_BYTES = 32 << 10  # of shared memory for inputs, or for an op
PAIRS_INPUT_BYTES, INPUT_GAP_BYTES = 64 << 10, 64  # for inputs of several columns of fp32; behind each of their rows
PART_GAP_ROWS = 8  # behind each column of a block's sums
REGISTER_PIECES = 2  # pieces of k that a warp holds in registers (megakernel/gemm_in_registers.cuh)
BOX_BYTES = 64  # of a column that lie together, in mailboxes of several columns
TAG_BITS = 16  # upper bits of the host's word, for which a launch waits
MOST_HEAD_DIM = 256  # of fused attention (attention/fused_attention.cuh)
WHOLE_TOKENS = 16  # scores are padded to a multiple of these
VALUE_QUERIES = 4  # queries for which a thread weighs a value at once, fp32


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
PROGRAM = np.dtype(
    [
        *_fields("<u8", "tasks counters weights"),  # addresses of TASK [count], u32 [count + 1], WEIGHTS
        ("count", "<u8"),  # of tasks
        ("box_bytes", "<u8"),  # from the mailboxes of one launch to those of the next
        ("stamps", "<u8"),  # address of u64 [blocks, count + 1, Stamp]
    ]
)
GATE = np.dtype(
    [
        ("word", "<u8"),  # address of the host's word; 0: the launch need not wait
        ("gave_up", "<u8"),  # address in pinned memory; a launch that waited too long writes its tag there
        ("heard", "<u8"),  # address of a copy of the word, on the GPU
        ("tag", "<u8"),
        ("patience_ns", "<u8"),
    ]
)
# The kernel's parameters in a row, padded to 8 bytes each.
LAUNCH = np.dtype([("program", PROGRAM), ("feedback", FEEDBACK), ("number", "<u8"), ("gate", GATE)])
