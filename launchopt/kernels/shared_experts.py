"""Structs and constants that the host and the kernels of a layer with experts share, as those of shared.py."""

from __future__ import annotations

import numpy as np

from launchopt.kernels.shared import fields

# -- A layer with experts (experts/routing.cuh, expert_gemm.cu)

MAP_THREADS = 1024  # threads of the only block of EXPERT_MAP
EXPERT_WARPS = 8  # warps of a block, which share k
EXPERT_ROWS = 32  # rows of an expert's weight that a block multiplies
EXPERT_COLUMNS = 16  # most columns that it multiplies them by
EXPERT_GEMM = np.dtype(
    [
        *fields("<i8", "m k"),  # rows of an expert's weight, and the length of the products
        *fields("<i8", "experts columns"),  # number of experts, and of the columns of all of them
        *fields("<i8", "ldb ldc"),  # elements from one column of B, or of C, to the next
        ("stride_a", "<i8"),  # bytes from one expert's weight to the next
    ]
)

# -- Fused launches of a layer with experts (expert_route.cu, expert_fused.cu)

STEPPED_WORDS = 3  # the step that begins next, the present step, and bytes that outputs are apart
STEPPED: list[tuple[str, str, tuple[int, ...]]] = [
    # How a launch finds its four operands (-DSTEPPED=1): their addresses of step 0; bytes that each moves by from one
    # step, slot of inputs, and copy of the weights to the next; 1 for outputs of a step.
    *((name, "<i8", (4,)) for name in ("address", "of_step", "of_input", "of_copy", "is_output")),
    *((name, "<i8", ()) for name in ("inputs", "copies")),  # slots of inputs; copies of the weights
    ("state", "<u8", ()),  # address of STEPPED_WORDS
]
ROUTE_WARPS = 16  # warps of a block, which share k; then each chooses the experts of a column
ROUTE_ROWS = 16  # experts whose logits a block computes
ROUTE_EXPERTS = 128  # experts whose logits a warp loads at once, to choose from them
EXPERT_ROUTE = np.dtype(
    [
        *fields("<i8", "experts k columns top_k"),  # k: length of the products. columns: tokens of the step
        *fields("<i8", "ldb lda ldc"),  # elements from one column to the next: of inputs, of biases, of logits
        # Bytes from the logits of a step to its table, from a column's row of the table to the next, and to the map.
        *fields("<i8", "table_at table_step map_at"),
        ("ids_at", "<i8"),  # words of shared memory before the experts of all columns
        ("most", "<i8"),  # entries of the list of work
        # Addresses: of the list, u32 [most, 4]; of the column that each row is a copy of, u32 [rows]; of counters of
        # finished blocks, which are 0 between launches: groups of columns, then blocks of each group.
        *fields("<u8", "work sources counters"),
        *STEPPED,
    ]
)
EXPERT_FUSED = np.dtype(
    [
        *fields("<i8", "m k"),  # rows of an expert's weight, or of its gates; length of the products
        *fields("<i8", "experts columns"),  # number of experts, and of the columns of all of them
        *fields("<i8", "ldb ldc"),  # elements from one column of B, or of C, to the next
        ("stride_a", "<i8"),  # bytes from one expert's weight to the next
        ("tiles", "<i8"),  # items of a piece of work
        # Bytes from the logits of a step to: the first column of each expert; SiLU(gate) * up; the permuted columns.
        *fields("<i8", "first_at activated_at ld_activated gathered_at ld_gathered"),
        # The weighted sum: tokens and experts of a token; bytes from the logits to the table, the map and the outputs.
        *fields("<i8", "tokens top_k table_at table_step map_at out_at ld_out"),
        ("most", "<i8"),  # entries of the list of work
        # Addresses: as of EXPERT_ROUTE; the counters are those of finished blocks of each tile of rows.
        *fields("<u8", "work sources counters"),
        *STEPPED,
    ]
)
