"""Structs, enumerations and constants that the host and the kernels of GPUs that split a model share (all_reduce.cu).

The rules of launchopt/kernels/shared.py hold here too.
"""

from __future__ import annotations

import enum

import numpy as np

from launchopt.kernels.shared import fields

MOST_RANKS = 8  # most GPUs that split a model
ALL_REDUCE_BLOCKS = 64  # most blocks of a launch; all must run at the same time
ALL_REDUCE_THREADS = 512
PUSH_BLOCKS = 16  # most blocks of a launch whose sums are pushed: up to 128 KB, a vector of 16 bytes for each thread


# Words of the lines of a rank: [2 generations in turn, PUSH_BLOCKS, 2 halves of a vector, ALL_REDUCE_THREADS, 2 words].
LINE_WORDS = 2 * PUSH_BLOCKS * 2 * ALL_REDUCE_THREADS * 2


class AllReduceAccount(enum.IntEnum):
    """Words of a rank's account of all-reduces, uint64."""

    CALLS = 0
    TOTAL_NS = 1  # time within them
    WAIT_NS = 2  # part of this time in which the first block waited for other ranks
    GAVE_UP = 3  # 1: a wait took longer than the limit


PEERS = np.dtype(
    [
        ("size", "<i8"),  # number of ranks
        ("rank", "<i8"),
        ("limit_ns", "<u8"),  # longest wait for another rank
        ("arrived", "<u8"),  # address of the flags that all ranks write here, u64 [ranks, ALL_REDUCE_BLOCKS]
        ("generations", "<u8"),  # address of the all-reduces of each block, u64 [ALL_REDUCE_BLOCKS]
        ("account", "<u8"),  # address of the account, u64 [AllReduceAccount]
        ("parts", "<u8", (MOST_RANKS,)),  # addresses of the activations of each rank, as this GPU sees them
        ("flags", "<u8", (MOST_RANKS,)),  # address, in the memory of each rank, of the flags that this rank writes
        ("pushed", "<u8"),  # address of the lines that all ranks write here, u64 [ranks, LINE_WORDS]
        ("lines", "<u8", (MOST_RANKS,)),  # address, in the memory of each rank, of the lines that this rank writes
    ]
)
ALL_REDUCE = np.dtype(
    [
        *fields("<i8", "m n commands"),  # features of a part, columns of a command, and the number of commands
        *fields("<i8", "ldb ldc"),  # elements from one row to the next
        *fields("<i8", "stride_b stride_c"),  # bytes from one command to the next
        ("peers", "<u8"),  # address of struct Peers in the GPU's memory
    ]
)
REDUCE_ADD = np.dtype(  # an all-reduce, the residual add behind it, and perhaps the norm of their output
    [
        *fields("<i8", "m n commands"),  # as in ALL_REDUCE
        # Elements from one row to the next: of the residual, of the part, of the sum, and of the norm.
        *fields("<i8", "lda ldb ldc ldn"),
        *fields("<i8", "stride_a stride_b stride_c"),  # bytes from one command to the next; the norm's are the sum's
        ("to_norm", "<i8"),  # bytes from the sum of a command to its norm
        ("peers", "<u8"),  # address of struct Peers in the GPU's memory
    ]
)
