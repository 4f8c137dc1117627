"""The launch of our own GEMM of all experts of a layer (kernels/expert_gemm.cu). This module needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.kernels.shared_experts import EXPERT_COLUMNS, EXPERT_GEMM, EXPERT_ROWS, EXPERT_WARPS

WARP = 32


@dataclass(frozen=True, slots=True)
class ExpertGemm:
    """A GEMM for each expert: its weight [m, k] by its columns.

    columns: of all experts. row_elements: from one column of B, and of C, to the next. stride_bytes: from one expert's
    weight to the next.
    """

    m: int
    k: int
    experts: int
    columns: int
    row_elements: tuple[int, int]
    stride_bytes: int

    def launch(self) -> Launch:
        """Return the launch, with a block for every piece of work that any routing can have.

        Each expert with columns has a piece, and one more for every EXPERT_COLUMNS further columns.
        """
        busy = min(self.experts, self.columns)
        pieces = busy + (self.columns - busy) // EXPERT_COLUMNS
        words = np.zeros(1, EXPERT_GEMM)
        words[0] = (self.m, self.k, self.experts, self.columns, *self.row_elements, self.stride_bytes)
        grid = -(-self.m // EXPERT_ROWS), pieces, 1
        return Launch(grid, (WARP * EXPERT_WARPS, 1, 1), 0, words.view(np.int64))
