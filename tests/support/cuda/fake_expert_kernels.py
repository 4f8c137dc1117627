"""Stand-ins for expert_gemm.cu, expert_align.cu and experts/routing.cuh, in NumPy. fp32 only, as all stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cpu.expert_ops import apply
from launchopt.kernels.shared import BLOCK_WORDS, EXPERT_ALIGN
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
    return of_struct(is_indirect, EXPERT_GEMM.itemsize // 8, _gemms)


def expert_align(is_indirect: bool) -> Read:
    """Return a fake of expert_align.cu."""
    return of_struct(is_indirect, EXPERT_ALIGN.itemsize // 8, _align)


def next_operands(_: Config, parameters: int) -> Callable[[], object]:
    """Do as next_operands.cu."""
    tables, number, words, count = (int(words_at(pointer, 1)[0]) for pointer in words_at(parameters, 4).tolist())

    def run() -> None:
        step = _words(number, 1, 2, 0)[0]
        row = tables + 8 * count * int(step[0])
        _words(words, 1, 2 * count, 0)[:] = _words(row, 1, 2 * count, 0)
        step[0] += 1

    return run


def of_struct(is_indirect: bool, words: int, compute: Callable[..., None]) -> Read:
    """Return a fake of a kernel of four addresses and a struct of `words` words: `compute(addresses, *words)`."""

    def read(_: Config, parameters: int) -> Callable[[], object]:
        pointers = words_at(parameters, 5 if words else 4).tolist()
        operands = [int(words_at(pointer, 1)[0]) for pointer in pointers[:4]]
        sizes = words_at(pointers[4], words).tolist() if words else []
        return lambda: compute(words_at(operands[0], 4).tolist() if is_indirect else operands, *sizes)

    return read


def _align(operands: list[int], top_k: int, columns: int, experts: int, pitch: int, most: int) -> None:
    _, b, c, at = operands
    total, word = columns * top_k, pitch // 4
    table, mapped = _words(b, columns, 2 * top_k, word), _words(c, 1, total + experts + 1, 0)
    shape = ShapeKey(top_k, columns, experts, Dtype.fp32, Op.EXPERT_MAP)
    apply(shape, table[None], table[None], mapped)
    order, firsts, count = np.argsort(mapped[0, :total]), mapped[0, total:].tolist(), 0
    for expert, (first, end) in enumerate(pairwise(firsts)):
        for row in range(first, end, most):
            own = order[row : min(row + most, end)]
            head = _words(at + 4 * (BLOCK_WORDS + count * (BLOCK_WORDS + most)), 1, BLOCK_WORDS + most, 0)[0]
            head[:3], head[BLOCK_WORDS : BLOCK_WORDS + len(own)] = (expert, row, len(own)), own
            count += 1
    _words(at, 1, 1, 0)[0, 0] = count


def _gemms(operands: list[int], m: int, k: int, experts: int, columns: int, ldb: int, ldc: int, stride_a: int) -> None:
    a, b, c, first = operands
    given, out = rows_at(b, columns, k, ldb), rows_at(c, columns, m, ldc)
    firsts = rows_at(first, 1, experts + 1, 0)[0].view(np.int32).clip(0, columns)
    with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads any values
        for expert in range(experts):
            own = slice(firsts[expert], firsts[expert + 1])
            out[own] = given[own] @ rows_at(a + expert * stride_a, m, k, k).T
