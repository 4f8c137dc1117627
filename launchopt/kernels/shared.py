"""Structs, enumerations and constants that the host and the CUDA kernels share. Each is declared once, here.

The host fills arrays of these dtypes and passes their addresses or bytes to the kernels. For the kernels,
launchopt/kernels/headers.py writes the same declarations as CUDA text. Fields are packed and naturally aligned, so that
a C compiler adds no padding between them either.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import DTypeLike


def word_of(dtype: np.dtype[np.void], *path: str) -> int:
    """Return the offset of a field in units of 8 bytes. path: the name of a field, then the names of nested fields."""
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
        # C is [n, m]. For a GEMM B is [n, k] and A is [m, k].
        *_fields("<i8", "m n k"),
        # Elements from one row of an operand to the next.
        *_fields("<i8", "lda ldb ldc"),
        # Bytes from an operand of one command of a batch to that of the next command.
        *_fields("<i8", "stride_a stride_b stride_c"),
        # The shape of attention. ctx: most tokens of a request. page_tokens: tokens of a page of the KV cache.
        # pages: pages of a request.
        *_fields("<i8", "q_heads kv_heads head_dim ctx page_tokens pages"),
        ("positions", "<u8"),  # address of int32 start[requests], then int32 next[requests] (attention/kv_cache.cuh)
        ("table", "<u8"),  # address of the page table, int32 [requests, pages]
        ("requests", "<i8"),  # number of requests of the workload stream
        ("theta", "<f8"),  # base of the angles of the rotary embedding (ROPE)
    ]
)

# -- GEMMs of few columns (common/skinny.cuh)

GROUP_WARPS = 8  # warps that multiply a tile together
MOST_COLUMNS = 16  # most columns of B and C of a GEMM that the persistent kernel and the megakernel multiply at once
SHAPE = np.dtype(
    [
        # Extents of C. `rows` is the larger one: the host exchanges A and B if B has more rows.
        *_fields("<i8", "rows columns"),
        ("k", "<i8"),  # length of the products
        # Elements from one row of the weights, or from one column of the inputs, to the next.
        *_fields("<i8", "row_elements column_elements"),
        # Elements of C from one row, or from one column, to the next.
        *_fields("<i8", "row_step column_step"),
        ("least_rows", "<i8"),  # fewest rows of a tile for which handing out the tile pays
    ]
)

# -- Attention with one op per launch (attention/attention.cuh)

QUERIES = 8  # query heads of a kv head that a block takes at once; equal to KEY_LANES, so that each lane gets one sum
KEY_LANES = 8  # lanes that share the features of a key
KEYS = 4  # keys that a lane multiplies at once
AV_LANES = 2  # lanes that share a slice of a value's features: 32 bytes
ATTENTION_WARPS = 8  # warps of a block

# -- Feeding back (tokens/)

# Words of a row: addresses of its source, target, history (or 0) and token id; then the counter that selects its random
# numbers.
ROW_WORDS = 5
FEEDBACK = np.dtype(
    [
        ("arguments", "<u8"),  # address of u64 [ROW_WORDS, pitch], in pinned memory
        ("rows", "<u8"),  # number of rows that a whole step feeds back
        ("pitch", "<u8"),  # u64 words from one word of all rows to the next
        # Elements of an input of the first layer; number of logits of a row.
        *_fields("<u8", "hidden vocab"),
        # Address of the embedding, [vocab, hidden]; bytes of one of its rows.
        *_fields("<u8", "embedding row_bytes"),
        ("start", "<u8"),  # seed of the random numbers
        ("inverse_temperature", "<f8"),  # factor of the logits before sampling
        ("k", "<u8"),  # parameter of top_k: number of logits that are kept
        ("p", "<f8"),  # parameter of top_p: share of the probability that is kept
        ("ns", "<u8"),  # address to which a whole step adds the time of sampling, in ns
        ("found", "<u8"),  # address of u64 [rows, blocks]: largest logit that each block found; 0 between launches
    ]
)

# -- Measurement of bulk copies (copies.cu)

COPY_ROWS, COPY_ROW_BYTES = 8, 2048  # shape of a slot
LINE_BYTES = 128  # bytes of a line that a lane loads
MOST_COPY_SLOTS = 16  # most slots of a block


class CopyResult(enum.IntEnum):
    """Columns of the results that each block of copies.cu writes."""

    BYTES = 0  # bytes copied
    BEGIN_NS = 1  # time at which the first copy began
    END_NS = 2  # time at which the last copy ended
    WRONG = 3  # 1: a slot or a line held other bytes than expected


COPIES = np.dtype(
    [
        ("from", "<u8"),  # address from which the first block copies
        ("share_slots", "<u8"),  # slots of memory that a block copies before it begins again with the first
        # Bytes in shared memory to the first row; bytes from one row to the next.
        *_fields("<u8", "offset pitch"),
        ("slots", "<u8"),  # most slots whose copies are in flight; 0: nothing is copied
        ("lines", "<u8"),  # address of the lines that are loaded, [samples, 32, LINE_BYTES]
        # Number of loads of a lane; clock cycles between two loads.
        *_fields("<u8", "samples gap"),
        ("waits", "<u8"),  # address of u32 [samples, blocks]: clock cycles that each load took
        ("results", "<u8"),  # address of u64 [blocks, CopyResult]
    ]
)

# -- The persistent kernel (persistent/)

COMMAND_WORDS = 4  # words of a command in the host's ring
OUTPUT_WORDS = 16  # most outputs of a small command, whose outputs the kernel sends to the host
GROUPS = 4  # groups of GROUP_WARPS warps in a block
ENTRY_WORDS = 8  # words of an entry, which describes a tile
TAG_SHIFT = 48  # bits of a ring's word below its tag; the tag is the number of the ring's lap
END = 0xFFFF  # number in place of a shape, for the word END: no command follows
MOST_CAPACITY = 4096  # most commands of a ring
SMALL_VECTORS = 16  # most vectors (16 bytes) of k in a small command, which one warp multiplies


class KernelState(enum.IntEnum):
    """State of the persistent kernel, in word STATE of `control`."""

    RUNNING = 0
    ENDED = 1  # the kernel has read END and has executed the commands before it
    GAVE_UP = 2  # no command came within the kernel's patience


class ControlWord(enum.IntEnum):
    """Words of `control`, in pinned memory."""

    STATE = 0  # a KernelState, written by the kernel
    ABORT = 1  # written by the host; not 0: the kernel must give up


QUEUE = np.dtype(
    [
        # Addresses of pinned memory, all u64: [capacity, COMMAND_WORDS]; [capacity]; [capacity, OUTPUT_WORDS];
        # [ControlWord].
        *_fields("<u8", "ring host_done host_outputs control"),
        # Addresses of memory of the GPU from here on. u64 [entries, ENTRY_WORDS]; u64 [capacity].
        *_fields("<u8", "entries done"),
        # u64: number of the next entry to take; not 0 if the kernel gave up; [2]: commands and tiles so far.
        *_fields("<u8", "ticket gone progress"),
        # u32 [capacity]: complete tiles of the command in each slot; SHAPE [shape_count].
        *_fields("<u8", "arrived shapes"),
        # Settings from here on.
        ("shape_count", "<u8"),
        # Binary logarithms of the number of commands in the ring, and of the number of entries.
        *_fields("<u8", "capacity_bits entry_bits"),
        ("workers", "<u8"),  # groups of warps that take tiles
        ("patience_ns", "<u8"),  # time without a command after which the kernel gives up
        # Most bytes of weights of a command that came alone and is multiplied by the dispatcher's group itself.
        ("direct_bytes", "<u8"),
    ]
)

# -- The megakernel (megakernel/)

MOST_WAITS = 4  # most other instructions for which an instruction can wait
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
    NORMED_ODD = 1024  # the second, fourth, ... NORMED task of a list


# The columns OP to GRID_Z of a list of instructions; devices/instructions/words.py describes them.
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
# One instruction, or several fused ones, and how the blocks divide the work. The fields that a GEMM needs first are at
# the beginning, so that few loads fetch them.
TASK = np.dtype(
    [
        ("flags", "<u4"),  # bits of TaskFlag
        ("share", "<u4"),  # number of blocks that have a share of the task: the first blocks of the grid
        *_fields("<u4", "tiles_each tiles_more bytes other_bytes"),  # see Cut in megakernel/weights.cuh
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
    ]
)
# Weights of a streamed GEMM. An element with rows = 0 ends the list.
WEIGHTS = np.dtype(
    [
        ("a", "<u8"),  # address of the weights
        ("gain", "<u8"),  # address of the gain of the norm before the GEMM, one element per element of k; or 0
        *_fields("<u4", "row_bytes rows"),  # bytes from one row to the next; number of rows
        ("groups", "<u4"),  # groups of up to COLUMNS columns; the weights are copied once for each group
        ("pieces", "<u4"),  # pieces of k that one block multiplies
        ("pair_rows", "<u4"),  # 0, or rows from the first tile of a pair to the second; OP_SILU_MUL needs both tiles
        *_fields("<u4", "split tiles_each tiles_more bytes other_bytes"),  # see Cut in megakernel/weights.cuh
    ]
)
PROGRAM = np.dtype(
    [
        *_fields("<u8", "tasks counters weights"),  # addresses of TASK [count], u32 [count + 1], WEIGHTS
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
