"""A stand-in for libnccl: ranks are threads of one process, which add fp32 in the order of the ranks."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import numpy as np

from launchopt.devices.peers.nccl_library import ID_BYTES

PATIENCE_S = 20.0
FP32 = 7
POINTERS = [ctypes.c_void_p] * 2
ADD = ctypes.CFUNCTYPE(ctypes.c_int32, *POINTERS, ctypes.c_size_t, *[ctypes.c_int32] * 2, *POINTERS)
GROUP = ctypes.CFUNCTYPE(ctypes.c_int32)


class FakeNccl:
    """The functions of the library that the product calls. fails: the name of one, and its ncclResult_t."""

    def __init__(self, ranks: int, captured: Any, fails: tuple[str, int] = ("", 0)) -> None:
        self._ranks, self._captured, self._fails = ranks, captured, fails
        self._parts: dict[int, Any] = {}
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_S)
        self._open = threading.local()
        self.counts: list[int] = []  # elements of each all-reduce of the first rank
        self.groups: list[int] = []  # all-reduces of each group of the first rank
        self.left = 0
        self.ncclAllReduce = ADD(self._all_reduce)
        self.ncclGroupStart, self.ncclGroupEnd = GROUP(self._start), GROUP(self._end)

    def _result(self, name: str) -> int:
        return self._fails[1] if name == self._fails[0] else 0

    def ncclGetUniqueId(self, unique: Any) -> int:  # noqa: N802
        ctypes.memmove(unique, bytes(range(ID_BYTES)), ID_BYTES)
        return self._result("ncclGetUniqueId")

    def ncclCommInitRank(self, handle: Any, size: int, unique: Any, rank: int) -> int:  # noqa: N802
        assert (size, bytes(unique)) == (self._ranks, bytes(range(ID_BYTES)))
        handle._obj.value = 0x100 + rank
        self._barrier.wait()
        return self._result("ncclCommInitRank")

    def ncclGetVersion(self, code: Any) -> int:  # noqa: N802
        code._obj.value = 22705
        return 0

    def ncclCommDestroy(self, handle: Any) -> int:  # noqa: N802
        self.left += 1
        return 0

    def _all_reduce(self, b: int, c: int, count: int, kind: int, op: int, handle: int, stream: int) -> int:
        assert (kind, op) == (FP32, 0)
        rank = handle - 0x100
        if rank == 0:
            self.counts.append(count)
        self._open.calls = getattr(self._open, "calls", 0) + 1
        work = functools.partial(self._add, rank, _floats(b, count), _floats(c, count))
        if self._captured.calls is None:
            work()
        else:
            self._captured.calls.append(work)
        return self._result("ncclAllReduce")

    def _add(self, rank: int, part: Any, out: Any) -> None:
        self._parts[rank] = part.copy()
        self._barrier.wait()
        total = functools.reduce(np.add, [self._parts[each] for each in range(self._ranks)], np.float32(0))
        self._barrier.wait()
        out[:] = total

    def _start(self) -> int:
        self._open.calls = 0
        return 0

    def _end(self) -> int:
        self.groups.append(self._open.calls)
        return 0


def _floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))
