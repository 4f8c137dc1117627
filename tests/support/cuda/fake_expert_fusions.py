"""Stand-ins for expert_route.cu and expert_fused.cu, in NumPy: from the addresses, words and macros of a launch.

They take fp32 only, as most stand-ins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cpu.expert_ops import apply
from launchopt.devices.cpu.ops import silu_mul
from launchopt.kernels.shared_experts import EXPERT_FUSED, EXPERT_ROUTE
from support.cuda.fake_kernels import Config, Read, rows_at, words_at
from support.cuda.fake_quantised import packing_of_macros, weights_at


def _given(parameters: int, macros: Mapping[str, int], kind: np.dtype[np.void]) -> tuple[Callable[[], list[int]], Any]:
    """Return a function that finds the four operands when the kernel runs, and the words of its struct."""
    pointers = words_at(parameters, 5).tolist()
    operands = [int(words_at(pointer, 1)[0]) for pointer in pointers[:4]]
    words = words_at(pointers[4], kind.itemsize // 8).view(kind)[0]
    sizes = {name: words[name].tolist() for name in kind.names or ()}
    if macros["STEPPED"]:
        return lambda: _at_step(sizes, kind is EXPERT_ROUTE), sizes
    if not macros["INDIRECT"]:
        return lambda: operands, sizes
    return lambda: words_at(operands[0], 4).tolist(), sizes


def _at_step(p: Mapping[str, Any], is_first: bool) -> list[int]:
    """Return the operands of the step whose number is in memory. The first launch of a step advances it."""
    state = np.ctypeslib.as_array(ctypes.cast(p["state"], ctypes.POINTER(ctypes.c_int64)), (3,))
    step, apart = int(state[0 if is_first else 1]), int(state[2])
    if is_first:
        state[:2] = step + 1, step
    at = step, step % p["inputs"], step % p["copies"]
    moves = zip(p["of_step"], p["of_input"], p["of_copy"], strict=True)
    moved = [sum(x * y for x, y in zip(at, each, strict=True)) for each in moves]
    return [sum(each) + apart * out for *each, out in zip(p["address"], moved, p["is_output"], strict=True)]


def _ints(address: int, count: int) -> NDArray[np.int32]:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int32)), (count,))


def expert_route(macros: Mapping[str, int]) -> Read:
    """Return a fake of expert_route.cu."""

    def read(config: Config, parameters: int) -> Callable[[], object]:
        operands, p = _given(parameters, macros, EXPERT_ROUTE)
        assert config.grid_y == -(-p["columns"] // macros["COLUMNS"])
        return lambda: _route(operands(), p, macros["COLUMNS"])

    return read


def _route(operands: list[int], p: Mapping[str, int], piece: int) -> None:
    router, inputs, base, selection = operands
    experts, columns, top_k = p["experts"], p["columns"], p["top_k"]
    logits = rows_at(base, columns, experts, p["ldc"])
    with np.errstate(all="ignore"):  # a launch that only loads the kernel reads any values
        logits[:] = rows_at(inputs, columns, p["k"], p["ldb"]) @ rows_at(router, experts, p["k"], p["k"]).T
        table = rows_at(base + p["table_at"], columns, 2 * top_k, p["table_step"] // 4).view(np.int32)
        chosen = ShapeKey(top_k, columns, experts, Dtype.fp32, Op.TOP_K)
        apply(chosen, *(each[None] for each in (rows_at(selection, columns, experts, p["lda"]), logits, table)))
    rows = columns * top_k
    mapped = _ints(base + p["map_at"], rows + experts + 1)
    apply(ShapeKey(top_k, columns, experts, Dtype.fp32, Op.EXPERT_MAP), table[None], table[None], mapped[None])
    _ints(p["sources"], rows)[mapped[:rows]] = np.repeat(np.arange(columns), top_k)
    work = _ints(p["work"], 4 * p["most"]).reshape(-1, 4)
    found = pieces_of(mapped[rows:], piece)
    work[:] = (0, 0, 0, len(found))
    work[: len(found), :3] = found


def pieces_of(first: NDArray[np.int32], piece: int) -> list[tuple[int, int, int]]:
    """Return the pieces of work: an expert, its first column, and the number of columns."""
    return [
        (expert, column, min(piece, int(first[expert + 1]) - column))
        for expert in range(len(first) - 1)
        for column in range(int(first[expert]), int(first[expert + 1]), piece)
    ]


def expert_fused(macros: Mapping[str, int]) -> Read:
    """Return a fake of expert_fused.cu."""

    def read(_: Config, parameters: int) -> Callable[[], object]:
        operands, p = _given(parameters, macros, EXPERT_FUSED)
        return lambda: _fused(operands(), p, macros)

    return read


def _fused(operands: list[int], p: Mapping[str, int], macros: Mapping[str, int]) -> None:
    a, b, c, d = operands
    columns, m, k, packing = p["columns"], p["m"], p["k"], packing_of_macros(macros)
    rows = 2 * m if macros["GATED"] else m
    if macros["LISTED"]:
        work = _ints(p["work"], 4 * p["most"]).reshape(-1, 4)
        pieces = [tuple(each[:3]) for each in work.tolist() if each[2]]
    else:
        pieces = pieces_of(_ints(d + p["first_at"], p["experts"] + 1).clip(0, columns), macros["COLUMNS"])
    given = rows_at(b, p["tokens"] if macros["GATHERS"] else columns, k, p["ldb"])
    if macros["GATHERS"]:
        given = given[_ints(p["sources"], columns)]
        rows_at(d + p["gathered_at"], columns, k, p["ld_gathered"])[:] = given
    out = rows_at(c, columns, rows, p["ldc"])
    with np.errstate(all="ignore"):
        for expert, column, count in pieces:
            address, own = a + expert * p["stride_a"], slice(column, column + count)
            weight = weights_at(address, rows, k, packing) if packing else rows_at(address, rows, k, k)
            out[own] = given[own] @ weight.T
        if macros["GATED"]:
            rows_at(d + p["activated_at"], columns, m, p["ld_activated"])[:] = silu_mul(out.astype(np.float32))
        if macros["COMBINES"]:
            _combine(out, d, p)


def _combine(out: Any, d: int, p: Mapping[str, int]) -> None:
    tokens, top_k, rows = p["tokens"], p["top_k"], p["columns"]
    mapped = _ints(d + p["map_at"], rows).clip(0, rows - 1).reshape(tokens, top_k)
    weights = rows_at(d + p["table_at"], tokens, 2 * top_k, p["table_step"] // 4)[:, top_k:]
    sums = (weights[:, :, None] * out[mapped]).sum(axis=1)
    rows_at(d + p["out_at"], tokens, p["m"], p["ld_out"])[:] = sums
