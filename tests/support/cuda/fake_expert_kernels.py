"""Stand-ins for expert_gemm.cu and the kernels of experts/routing.cuh, in NumPy. fp32 only, as all stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cpu.expert_ops import apply
from launchopt.kernels.shared_experts import EXPERT_GEMM
from support.cuda.fake_kernels import Compute, Config, Launched, Read, commands_of, rows_at, words_at


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


def through_table(compute: Compute) -> Compute:
    """Return a kernel that reads the addresses of its operands from a table, when it runs (-DINDIRECT=1)."""
    return lambda launched: compute(replace(launched, operands=words_at(launched.operands[0], 4).tolist()))


def expert_gemm(is_indirect: bool) -> Read:
    """Return a fake of expert_gemm.cu."""

    def read(_: Config, parameters: int) -> Callable[[], object]:
        pointers = words_at(parameters, 5).tolist()
        operands = [int(words_at(pointer, 1)[0]) for pointer in pointers[:4]]
        sizes = words_at(pointers[4], EXPERT_GEMM.itemsize // 8).tolist()
        return lambda: _gemms(words_at(operands[0], 4).tolist() if is_indirect else operands, *sizes)

    return read


def _gemms(operands: list[int], m: int, k: int, experts: int, columns: int, ldb: int, ldc: int, stride_a: int) -> None:
    a, b, c, first = operands
    given, out = rows_at(b, columns, k, ldb), rows_at(c, columns, m, ldc)
    firsts = rows_at(first, 1, experts + 1, 0)[0].view(np.int32).clip(0, columns)
    with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads any values
        for expert in range(experts):
            own = slice(firsts[expert], firsts[expert + 1])
            out[own] = given[own] @ rows_at(a + expert * stride_a, m, k, k).T
