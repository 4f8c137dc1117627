"""Stand-ins for the kernels of experts/routing.cuh, in NumPy. fp32 only, as all stand-ins of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cpu.expert_ops import apply
from support.cuda.fake_kernels import Compute, Launched, commands_of, rows_at


def experts(op: Op) -> Compute:
    """Return a fake kernel of an op of a layer with experts."""

    def compute(launched: Launched) -> None:
        for (a, b, c), (m, n, k), (lda, ldb, ldc) in commands_of(launched):
            shape = ShapeKey(m, n, k, Dtype.fp32, op)
            if op is Op.TOP_K:
                views = rows_at(a, n, k, lda), rows_at(b, n, k, ldb), _words(c, n, 2 * m, ldc)
            elif op is Op.EXPERT_MAP:
                table = _words(b, n, 2 * m, ldb)
                views = table, table, _words(c, 1, n * m + k + 1, 0)[0]
            elif op is Op.PERMUTE:
                rows = _words(a, 1, n * (m // k), 0)[0].reshape(n, -1)
                views = rows, rows_at(b, n, k, ldb), rows_at(c, n * (m // k), k, ldc)
            else:
                table = _words(a, 1, n * lda + n * (k // m), 0)[0]
                views = table, rows_at(b, n * (k // m), m, ldb), rows_at(c, n, m, ldc)
            apply(shape, *(np.expand_dims(view, 0) for view in views))

    return compute


def _words(address: int, rows: int, words: int, row_words: int) -> Any:
    """Return a view, int32 [rows, words]."""
    return rows_at(address, rows, words, row_words).view(np.int32)
