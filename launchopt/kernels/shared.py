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


def fields(kind: str, names: str) -> list[tuple[str, DTypeLike]]:
    """Return fields of one type. names: their names, separated by blanks."""
    return [(name, kind) for name in names.split()]


# -- A command's arguments (common/storage.cuh)

ARGS = np.dtype(
    [
        # C is [n, m]. For a GEMM B is [n, k] and A is [m, k].
        *fields("<i8", "m n k"),
        # Elements from one row of an operand to the next.
        *fields("<i8", "lda ldb ldc"),
        # Bytes from an operand of one command of a batch to that of the next command.
        *fields("<i8", "stride_a stride_b stride_c"),
        # The shape of attention. ctx: most tokens of a request. page_tokens: tokens of a page of the KV cache.
        # pages: pages of a request.
        *fields("<i8", "q_heads kv_heads head_dim ctx page_tokens pages"),
        ("qk_norm", "<i8"),  # ROPE: whether A has gains with which it normalizes queries and keys
        ("positions", "<u8"),  # address of int32 start[requests], then int32 next[requests] (attention/kv_cache.cuh)
        ("table", "<u8"),  # address of the page table, int32 [requests, pages]
        ("requests", "<i8"),  # number of requests of the workload stream
        ("theta", "<f8"),  # base of the angles of the rotary embedding (ROPE)
    ]
)

# -- The residual add with a norm (step_elementwise.cu)

ADD_NORM = np.dtype(
    [
        ("m", "<i8"),  # features
        # Elements from one row to the next: of the two operands, of their sum, and of the norm.
        *fields("<i8", "lda ldb ldc ldn"),
        *fields("<i8", "stride_a stride_b stride_c"),  # bytes from one command to the next; the norm's are the sum's
        ("to_norm", "<i8"),  # bytes from the sum of a command to its norm
    ]
)

# -- GEMMs of few columns (common/skinny.cuh)

GROUP_WARPS = 8  # warps that multiply a tile together
MOST_COLUMNS = 16  # most columns of B and C of a GEMM that the persistent kernel and the megakernel multiply at once
SHAPE = np.dtype(
    [
        # Extents of C. `rows` is the larger one: the host exchanges A and B if B has more rows.
        *fields("<i8", "rows columns"),
        ("k", "<i8"),  # length of the products
        # Elements from one row of the weights, or from one column of the inputs, to the next.
        *fields("<i8", "row_elements column_elements"),
        # Elements of C from one row, or from one column, to the next.
        *fields("<i8", "row_step column_step"),
        ("least_rows", "<i8"),  # fewest rows of a tile; handing out a smaller one costs more than it saves
    ]
)

# -- GEMMs of a decode step (step_gemm.cu)

STEP_COPIERS = 2  # warps of a block that copy weights; one could not issue the copies as fast as memory reads
STEP_ROWS = 8  # rows of half of a tile
STEP_GAP_BYTES = 64  # bytes of the gap behind each row of a slot: a quarter of a warp reads 64 bytes of two rows
STEP_PART_BYTES = 32 << 10  # most bytes of the sums that warps exchange at once
STEP_GEMM = np.dtype(
    [
        # Rows of C, and of A; if A has gates and ups, rows of the gates, and rows from a gate to its up (else 0).
        *fields("<u8", "rows pair_rows"),
        *fields("<u8", "k_bytes columns"),
        # Bytes from a row of A to the next; from one request's B, C and R to the next request's.
        *fields("<u8", "a_step b_step c_step r_step"),
        # Halves of tiles (pairs of them, with gates) of each block; number of blocks that have one more.
        *fields("<u8", "each more"),
        ("gain", "<u8"),  # address of the weights of the fused norm
        # Of quantised weights: bytes from A to its scales, and scales of a row of blocks.
        *fields("<u8", "scales_at across"),
    ]
)

# -- Attention with one op per launch (attention/attention.cuh)

QUERIES = 8  # queries of a kv head that a block multiplies at once: KEY_LANES, so that each of these lanes gets one sum
KEY_LANES = 8  # lanes that share the features of a key
KEYS = 4  # keys that a lane multiplies at once
AV_LANES = 2  # lanes that share a slice of a value's features: 32 bytes
ATTENTION_WARPS = 8  # warps of a block

# -- Attention of a decode step in one launch (step_attention.cu)

MOST_SPLITS = 64  # most splits of the tokens of a request
STEP_ATTENTION = np.dtype(
    [
        # Bytes from one request's row to the next: of queries, keys and values; of results.
        *fields("<i8", "stride_in stride_out"),
        # ctx: most tokens of a request. pages: pages of a request. requests: number of requests of the workload stream.
        *fields("<i8", "kv_heads ctx pages requests"),
        # Blocks that share the tokens of a request and kv head; fewest tokens of such a block.
        *fields("<i8", "splits least_tokens"),
        # Addresses: of int32 start[requests]; of the page table, int32 [requests, pages].
        *fields("<u8", "positions table"),
        # With ROPE: address of the cosines, then sines, of each position, float32 [ctx, head_dim].
        # With QK_NORM: address of the gains of queries, then of keys, [2, head_dim].
        *fields("<u8", "turns gains"),
        # Addresses of sums of blocks: float32 mixed[request, kv head, split, query, head_dim]; float32 weights[request,
        # kv head, split, query, 2], a largest score and a sum of powers; u32 arrived[request, kv head], which is 0
        # between launches.
        *fields("<u8", "mixed weights arrived"),
    ]
)

# -- Feeding back (tokens/)

# Words of a row: addresses of its source, target, history (or 0) and token id; then the counter that selects its random
# numbers.
ROW_WORDS = 5
ROW_HISTORY, ROW_ID, ROW_DRAW = 2, 3, 4  # numbers of the words that differ from one token to the next
FEEDBACK = np.dtype(
    [
        ("arguments", "<u8"),  # address of u64 [ROW_WORDS, pitch], in pinned memory
        ("rows", "<u8"),  # number of rows that a whole step feeds back
        ("pitch", "<u8"),  # u64 words from one word of all rows to the next
        # Elements of an input of the first layer; number of logits of a row.
        *fields("<u8", "hidden vocab"),
        # Address of the embedding, [vocab, hidden]; bytes of one of its rows.
        *fields("<u8", "embedding row_bytes"),
        ("start", "<u8"),  # seed of the random numbers
        ("inverse_temperature", "<f8"),  # factor of the logits before sampling
        ("k", "<u8"),  # parameter of top_k: number of logits that are kept
        ("p", "<f8"),  # parameter of top_p: share of the probability that is kept
        ("ns", "<u8"),  # address to which a whole step adds the time of sampling, in ns
        ("found", "<u8"),  # address of u64 [rows, blocks]: largest logit that each block found; 0 between launches
    ]
)

# -- Loops of steps (step_loop.cu)

STEP_LOOP = np.dtype(
    [
        ("arguments", "<u8"),  # address of the words of the present step's rows, u64 [ROW_WORDS, pitch], on the GPU
        ("words", "<u8"),  # number of these words
        ("left", "<u8"),  # address of the number of steps that have not ended, u64 on the GPU
        ("handle", "<u8"),  # handle of the conditional node; 0: the graph launches itself
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
        *fields("<u8", "offset pitch"),
        ("slots", "<u8"),  # most slots whose copies are in flight; 0: nothing is copied
        ("lines", "<u8"),  # address of the lines that are loaded, [samples, 32, LINE_BYTES]
        # Number of loads of a lane; clock cycles between two loads.
        *fields("<u8", "samples gap"),
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
        # Addresses of pinned memory, all u64: ring[capacity, COMMAND_WORDS]; host_done[capacity];
        # host_outputs[capacity, OUTPUT_WORDS]; control[ControlWord].
        *fields("<u8", "ring host_done host_outputs control"),
        # Addresses of memory of the GPU from here on. u64: entries[number of entries, ENTRY_WORDS]; done[capacity].
        *fields("<u8", "entries done"),
        # u64: ticket, the number of the next entry to take; gone, not 0 if the kernel gave up; progress[2], the numbers
        # of commands and tiles so far.
        *fields("<u8", "ticket gone progress"),
        # u32 arrived[capacity]: complete tiles of the command in each slot. SHAPE shapes[shape_count].
        *fields("<u8", "arrived shapes"),
        # Settings from here on.
        ("shape_count", "<u8"),
        # Binary logarithms of the number of commands in the ring, and of the number of entries.
        *fields("<u8", "capacity_bits entry_bits"),
        ("workers", "<u8"),  # groups of warps that take tiles
        ("patience_ns", "<u8"),  # time without a command after which the kernel gives up
        # Most bytes of weights of a command that came alone and is multiplied by the dispatcher's group itself.
        ("direct_bytes", "<u8"),
    ]
)

# -- Rows of experts in blocks of one expert each (expert_align.cu), as GEMMs in Triton read them

ALIGN_THREADS = 1024  # threads of the only block
BLOCK_WORDS = 4  # int32 words before the rows of a block, and before the first block
EXPERT_ALIGN = np.dtype(
    [
        *fields("<i8", "top_k columns experts"),
        ("pitch", "<i8"),  # bytes from one column's experts to the next column's
        ("rows", "<i8"),  # most rows of a block
    ]
)
