"""A stand-in for the kernels of all_reduce.cu, with their flags: ranks are threads of one process. fp32 only."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from launchopt.kernels.shared_peers import ALL_REDUCE, ALL_REDUCE_BLOCKS, PEERS, REDUCE_ADD, AllReduceAccount
from support.cuda.fake_kernels import rows_at, words_at

NAP_S, PATIENCE_S = 1e-5, 20.0


def exchange(config: Any, parameters: int, *, name: str) -> Callable[[], object]:
    """Read the arguments of a launch of kernel `name`; return the work of its blocks."""
    pointers, struct = words_at(parameters, 5).tolist(), REDUCE_ADD if name == "REDUCE_ADD" else ALL_REDUCE
    a, b, c, _ = (int(words_at(pointer, 1)[0]) for pointer in pointers[:4])
    given = words_at(pointers[4], struct.itemsize // 8).view(struct)[0]
    return lambda: _exchanged(name, (a, b, c), given, config.grid_x)


def _words(address: int, count: int) -> Any:
    """Return a view of `count` words of the host's memory."""
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_uint64)), (count,))


def _exchanged(name: str, operands: tuple[int, int, int], given: Any, blocks: int) -> None:
    peers = _words(given["peers"], PEERS.itemsize // 8).view(PEERS)[0]
    size, rank = int(peers["size"]), int(peers["rank"])
    generations = _words(peers["generations"], ALL_REDUCE_BLOCKS)
    arrived = _words(peers["arrived"], size * ALL_REDUCE_BLOCKS).reshape(size, -1)
    generation = generations[:blocks] + np.uint64(1)
    for other in range(size):
        _words(peers["flags"][other], blocks)[:] = generation
    until = time.monotonic() + PATIENCE_S
    while (arrived[:, :blocks] < generation).any():
        assert time.monotonic() < until, "a rank waits for another one"
        time.sleep(NAP_S)
    (a, b, c), gathers = operands, name == "ALL_GATHER"
    m, n, commands, ldb, ldc, stride_b, stride_c = (int(given[name]) for name in ALL_REDUCE.names[:7])
    for command in range(commands):
        place = b + command * stride_b - int(peers["parts"][rank])
        parts = [rows_at(part + place, n, m, ldb) for part in peers["parts"][:size].tolist()]
        found = np.concatenate(parts, axis=1) if gathers else functools.reduce(np.add, parts, np.float32(0))
        if name == "REDUCE_ADD":
            found = found + rows_at(a + command * int(given["stride_a"]), n, m, int(given["lda"]))
        rows_at(c + command * stride_c, n, found.shape[1], ldc)[:] = found
    generations[:blocks] = generation
    _words(peers["account"], len(AllReduceAccount))[AllReduceAccount.CALLS] += np.uint64(not gathers)
