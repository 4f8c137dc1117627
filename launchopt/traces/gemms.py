"""Read the GEMMs of a Kineto trace: their sizes, times and threads.

The trace must be recorded with `record_shapes=True`, so that operator events have `Input Dims` and `Input type`.

Sizes are those of a linear layer, C[m, n] = A[m, k] @ B[k, n], where A is the weight. A trace does not say which
operand is the weight. It is assumed to be the second factor of mm, addmm, bmm and linear, as in x[n, k] @ W[k, m], and
the matrix of mv. A batched operator is one `Gemm` with a `batch` above 1.

Operators nest: aten::linear calls aten::addmm. An outer operator (`OUTER`) counts only if no other GEMM operator starts
within it. In a trace with whole us both may begin and end at once. GEMMs that a CUDA graph replays, or that a compiler
fused, have no operator events. They are not found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from launchopt.command import Dtype
from launchopt.errors import DataError
from launchopt.traces.chrome_events import Clock, Spans, category_of, is_operator
from launchopt.traces.events import FAR_NS, is_sqlite, without_time
from launchopt.traces.json_events import events

LARGEST = 2**31 - 1  # largest size, since sizes are int32 in cuBLASLt
SINCE_1970_NS = 3 * 10**17  # a time of 1979; times since the start of a machine or a profile are smaller
NO_TYPE = "no type"
DTYPES = {
    "float": Dtype.fp32,
    "double": Dtype.fp32,
    "c10::Half": Dtype.fp16,
    "c10::BFloat16": Dtype.bf16,
}
EXACT_TYPES = frozenset(DTYPES) - {"double"}  # element types that a replay keeps; it replaces double by fp32
RECORD_SHAPES = "record one with torch.profiler.profile(..., record_shapes=True) and export_chrome_trace"

Dims = Sequence[tuple[int, ...]]
Sizes = tuple[int, int, int, int]  # m, n, k, batch


@dataclass(frozen=True, slots=True)
class Gemm:
    """One operator: `batch` GEMMs of m x n x k."""

    start_ns: int  # ns after the start of the first GEMM
    end_ns: int
    thread: int  # number of the thread in order of appearance, from 0
    m: int
    n: int
    k: int
    batch: int
    type: str  # PyTorch's name of the element type


@dataclass(frozen=True, slots=True)
class TraceGemms:
    """All GEMMs of a trace, sorted by start. left_out: number of GEMM operators left out, by reason."""

    gemms: tuple[Gemm, ...]
    left_out: Mapping[str, int]

    @property
    def commands(self) -> int:
        """Number of GEMMs; a batched operator counts as `batch` GEMMs."""
        return sum(gemm.batch for gemm in self.gemms)

    @property
    def types(self) -> Counter[str]:
        """Number of operators by element type."""
        return Counter(gemm.type for gemm in self.gemms)


def _of_mm(dims: Dims) -> Sizes:
    """Return the sizes of x[n, k] @ W[k, m]."""
    (n, k), (inner, m) = dims[:2]
    return m, n, _same(k, inner), 1


def _of_bmm(dims: Dims) -> Sizes:
    """Return the sizes of x[batch, n, k] @ y[batch, k, m]."""
    (batch, n, k), (other, inner, m) = dims[:2]
    return m, n, _same(k, inner), _same(batch, other)


def _of_mv(dims: Dims) -> Sizes:
    """Return the sizes of W[m, k] @ x[k]."""
    (m, k), (inner,) = dims[:2]
    return m, 1, _same(k, inner), 1


def _of_linear(dims: Dims) -> Sizes:
    """Return the sizes of x[..., k] @ W[m, k].T."""
    (*rows, k), (m, inner) = dims[:2]
    return m, math.prod(rows), _same(k, inner), 1


def _of_matmul(dims: Dims) -> Sizes:
    """Return the sizes of x[..., n, k] @ y[..., k, m]. Leading dimensions are broadcast.

    If y has no leading dimensions, all rows of x form one GEMM.
    """
    x, y = dims[:2]
    if len(y) == 1:
        (*rows, k), (inner,) = x, y
        return math.prod(rows), 1, _same(k, inner), 1  # y is a vector, and x is the weight
    *rows, k = x
    *others, inner, m = y
    if not others:
        return m, math.prod(rows), _same(k, inner), 1
    *rows, n = rows or [1]
    widest = max(len(rows), len(others))
    padded = [[1] * (widest - len(each)) + list(each) for each in (rows, others)]
    return m, n, _same(k, inner), math.prod(map(_broadcast, *padded))


def _broadcast(size: int, other: int) -> int:
    """Return the size of a leading dimension: a 1 takes the other's size, which may be 0."""
    return other if size == 1 else size if other == 1 else _same(size, other)


def _same(size: int, other: int) -> int:
    if size != other:
        raise ValueError(f"{size} is not {other}")
    return size


class Operator(NamedTuple):
    """The way to read the arguments of an operator."""

    first: int  # index of the first factor among the arguments
    sizes: Callable[[Dims], Sizes]  # returns the sizes of the GEMM for the dimensions of both factors
    is_k_last: bool = False  # of the second factor, as in linear


# Operators by name, without the underscore at the end of the names of in-place operators.
INNER = {
    "aten::mm": Operator(0, _of_mm),
    "aten::_scaled_mm": Operator(0, _of_mm),
    "aten::_int_mm": Operator(0, _of_mm),
    "aten::addmm": Operator(1, _of_mm),
    "aten::_addmm_activation": Operator(1, _of_mm),
    "aten::addmv": Operator(1, _of_mv),
    "aten::bmm": Operator(0, _of_bmm),
    "aten::baddbmm": Operator(1, _of_bmm),
}
OUTER = {
    "aten::linear": Operator(0, _of_linear, is_k_last=True),
    "aten::matmul": Operator(0, _of_matmul),
    "aten::mv": Operator(0, _of_mv),
}
_NO_SHAPES = "without shapes"
_NOT_UNDERSTOOD = "with shapes that are not understood"
_EMPTY = "of no elements"
_NO_TIME = "without a usable time"
_TOO_LARGE = f"of sizes over {LARGEST}"


class _Call(NamedTuple):
    """An operator event."""

    thread: tuple[str, str]
    start_ns: int
    end_ns: int
    is_inner: bool
    name: str
    sizes: Sizes | str  # sizes of the GEMM, or the reason why they are unknown
    type: str  # PyTorch's name of the element type

    @property
    def order(self) -> tuple[tuple[str, str], int, bool, int, str]:
        """The key by which an outer operator precedes those within it, also with the same start."""
        return self.thread, self.start_ns, self.is_inner, self.end_ns if self.is_inner else -self.end_ns, self.name

    def holds(self, other: _Call) -> bool:
        """Return whether `other`, which comes later in that order, ran within this outer operator."""
        if self.thread != other.thread or (self.name == other.name and self[1:3] == other[1:3]):
            return False
        return other.start_ns < self.end_ns or other.end_ns <= self.end_ns


def read_gemms(path: Path) -> TraceGemms:
    """Return the GEMMs of the trace at `path`. DataError: it is no JSON trace, or has no GEMM that can be replayed."""
    if is_sqlite(path):
        raise DataError(path, None, f"an nsys export, which holds no shapes: {RECORD_SHAPES}")
    for sorts in (False, True):
        spans, clock, left_out = Spans(sorts=sorts), Clock(), Counter[str]()
        every = [call for event in spans.complete(events(path)) if (call := _call(event, clock, left_out)) is not None]
        if not spans.is_unordered:
            break
    unknown = _without_time(every)
    left_out[_NO_TIME] += sum(unknown)
    calls = _leaves(call for call, is_unknown in zip(every, unknown, strict=True) if not is_unknown)
    left_out = +left_out
    if not calls and not left_out:
        raise DataError(
            path, None, f"a trace without GEMMs (aten::mm, addmm, bmm and similar operators): {RECORD_SHAPES}"
        )
    left_out.update(call.sizes for call in calls if isinstance(call.sizes, str))
    if calls and left_out[_NO_SHAPES] == len(calls):
        raise DataError(path, None, f"a trace without shapes of its {len(calls)} GEMMs: {RECORD_SHAPES}")
    found = [call for call in calls if not isinstance(call.sizes, str)]
    if not found:
        reasons = ", ".join(f"{count} {why}" for why, count in left_out.items())
        raise DataError(path, None, f"a trace without GEMMs that can be replayed ({reasons})")
    return TraceGemms(tuple(_gemms(found)), left_out)


def _call(event: Mapping[str, Any], clock: Clock, left_out: Counter[str]) -> _Call | None:
    """Return the operator of an event if it is a GEMM with a usable time, else None."""
    if not is_operator(category_of(event)):
        return None
    times = clock.times(event)  # also of other operators, which show the unit
    name = str(event.get("name")).removesuffix("_")
    operator = INNER.get(name) or OUTER.get(name)
    if operator is None:
        return None
    if times is None:
        left_out[_NO_TIME] += 1
        return None
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    thread = str(event.get("pid")), str(event.get("tid"))
    sizes = sizes_of(arguments.get("Input Dims", arguments.get("Input dims")), operator)
    kind = _type(arguments.get("Input type"), operator.first)
    return _Call(thread, *times, name in INNER, name, sizes, kind)


def _without_time(calls: Sequence[_Call]) -> list[bool]:
    """Return which calls the profiler had no time for, as the function `without_time`.

    With a clock that does not count from 1970, a call from 0 on that lasts for some time is genuine.
    """
    starts_ns, ends_ns = (np.array([call[at] for call in calls], np.int64) for at in (1, 2))
    unknown = without_time(starts_ns)
    if starts_ns.max(initial=0) < SINCE_1970_NS:
        unknown &= (starts_ns < 0) | (ends_ns <= starts_ns) | (ends_ns > starts_ns + FAR_NS)
    return [bool(each) for each in unknown]


def sizes_of(dims: object, operator: Operator) -> Sizes | str:
    """Return the sizes of the GEMM for the dimensions of all arguments, or the reason why they are unknown."""
    if not isinstance(dims, list) or not any(dims):
        return _NO_SHAPES
    try:
        sizes = operator.sizes([tuple(map(_size, each)) for each in dims[operator.first : operator.first + 2]])
    except (TypeError, ValueError):
        return _NOT_UNDERSTOOD
    if 0 in sizes:
        return _EMPTY
    return sizes if max(sizes) <= LARGEST else _TOO_LARGE


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value} is no size")
    return value


def _type(types: object, index: int) -> str:
    if not isinstance(types, list) or len(types) <= index:
        return NO_TYPE
    return str(types[index]) or NO_TYPE


def _leaves(calls: Iterable[_Call]) -> list[_Call]:
    """Return the calls that compute GEMMs, in order of time: inner calls, and outer calls without a call in them."""
    leaves: list[_Call] = []
    lone: list[_Call] = []  # outer calls that contain no other call so far, the shortest last
    for call in sorted(calls, key=lambda call: call.order):
        while lone and not lone[-1].holds(call) and lone[-1][:3] != call[:3]:
            leaves.append(lone.pop())
        if lone and lone[-1].holds(call):
            lone.pop()
        (leaves if call.is_inner else lone).append(call)
    return sorted([*leaves, *lone], key=lambda call: (call.start_ns, call.thread))


def _gemms(calls: Sequence[_Call]) -> Iterable[Gemm]:
    zero_ns = calls[0].start_ns
    threads: dict[tuple[str, str], int] = {}
    for call in calls:
        assert not isinstance(call.sizes, str)
        thread = threads.setdefault(call.thread, len(threads))
        yield Gemm(call.start_ns - zero_ns, call.end_ns - zero_ns, thread, *call.sizes, call.type)
