"""The GEMMs of a Kineto trace: which GEMMs PyTorch asked for, when, and from which thread.

The trace is recorded with `record_shapes=True`, so that operator events hold `Input Dims` and `Input type`.
`TraceGemms` has the GEMMs in order of time. DataError: the file is no such trace, or has no GEMM.

Sizes are those of a linear layer, C[m, n] = A[m, k] @ B[k, n], with A the weight. A trace does not say which operand is
the weight. The second factor of mm, addmm, bmm and linear is taken for it, as in x[n, k] @ W[k, m]; of mv, the matrix.
A batched operator is one `Gemm` with a `batch` above 1.

Operators nest: aten::linear calls aten::addmm. An outer operator (`OUTER`) counts only if no other GEMM operator starts
within it. GEMMs that a CUDA graph replays, or that a compiler fused, ran without operators and are missing here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from launchopt.command import Dtype
from launchopt.errors import DataError
from launchopt.traces.events import is_sqlite
from launchopt.traces.kineto import events

LARGEST = 2**31 - 1  # sizes are int32 in cuBLASLt
CATEGORIES = ("cpu_op", "Operator")  # of operators; the second in the first versions of Kineto
MOST_US = 2**62 // 1000  # so that ns fit into int64
NO_TYPE = "no type"
DTYPES = {
    "float": Dtype.fp32,
    "double": Dtype.fp32,
    "c10::Half": Dtype.fp16,
    "c10::BFloat16": Dtype.bf16,
}
EXACT_TYPES = frozenset(DTYPES) - {"double"}  # replayed in their own type
RECORD_SHAPES = "record one with torch.profiler.profile(..., record_shapes=True) and export_chrome_trace"

Dims = Sequence[tuple[int, ...]]
Sizes = tuple[int, int, int, int]  # m, n, k, batch


@dataclass(frozen=True, slots=True)
class Gemm:
    """One operator: `batch` GEMMs of m x n x k."""

    start_ns: int  # since the first GEMM's start
    end_ns: int
    thread: int  # by order of appearance, from 0
    m: int
    n: int
    k: int
    batch: int
    type: str  # of the elements, as PyTorch names it


@dataclass(frozen=True, slots=True)
class TraceGemms:
    """All GEMMs of a trace, by start. left_out: number of GEMMs that were not taken, by reason."""

    gemms: tuple[Gemm, ...]
    left_out: Mapping[str, int]

    @property
    def commands(self) -> int:
        """Number of GEMMs, counting each of a batch."""
        return sum(gemm.batch for gemm in self.gemms)

    @property
    def types(self) -> Counter[str]:
        """Number of operators by the type of their elements."""
        return Counter(gemm.type for gemm in self.gemms)


def _of_mm(dims: Dims) -> Sizes:
    """x[n, k] @ W[k, m]."""
    (n, k), (inner, m) = dims[:2]
    return m, n, _same(k, inner), 1


def _of_bmm(dims: Dims) -> Sizes:
    """x[b, n, k] @ y[b, k, m]."""
    (batch, n, k), (other, inner, m) = dims[:2]
    return m, n, _same(k, inner), _same(batch, other)


def _of_mv(dims: Dims) -> Sizes:
    """W[m, k] @ x[k]."""
    (m, k), (inner,) = dims[:2]
    return m, 1, _same(k, inner), 1


def _of_linear(dims: Dims) -> Sizes:
    """x[..., k] @ W[m, k].T."""
    (*rows, k), (m, inner) = dims[:2]
    return m, math.prod(rows), _same(k, inner), 1


def _of_matmul(dims: Dims) -> Sizes:
    """x[..., n, k] @ y[..., k, m]. Leading dimensions are broadcast. Rows of several x with one y are one GEMM."""
    x, y = dims[:2]
    if len(y) == 1:
        (*rows, k), (inner,) = x, y
        return math.prod(rows), 1, _same(k, inner), 1  # x is the matrix, if it is one
    *rows, k = x
    *others, inner, m = y
    if not others:
        return m, math.prod(rows), _same(k, inner), 1
    *rows, n = rows or [1]
    widest = max(len(rows), len(others))
    padded = [[1] * (widest - len(each)) + list(each) for each in (rows, others)]
    return m, n, _same(k, inner), math.prod(map(max, *padded))


def _same(size: int, other: int) -> int:
    if size != other:
        raise ValueError(f"{size} is not {other}")
    return size


class _Operator(NamedTuple):
    """How to read an operator's arguments: the index of its first factor, and a function of the sizes."""

    first: int
    sizes: Callable[[Dims], Sizes]


# By name, without the underscore of operators that work in place.
INNER = {
    "aten::mm": _Operator(0, _of_mm),
    "aten::_scaled_mm": _Operator(0, _of_mm),
    "aten::_int_mm": _Operator(0, _of_mm),
    "aten::addmm": _Operator(1, _of_mm),
    "aten::_addmm_activation": _Operator(1, _of_mm),
    "aten::addmv": _Operator(1, _of_mv),
    "aten::bmm": _Operator(0, _of_bmm),
    "aten::baddbmm": _Operator(1, _of_bmm),
}
OUTER = {
    "aten::linear": _Operator(0, _of_linear),
    "aten::matmul": _Operator(0, _of_matmul),
    "aten::mv": _Operator(0, _of_mv),
}
_NO_SHAPES = "without shapes"
_NOT_UNDERSTOOD = "with shapes that are not understood"
_EMPTY = "of no elements"
_TOO_LARGE = f"of sizes over {LARGEST}"


class _Call(NamedTuple):
    """An operator event. Sorted by its first four fields, a caller precedes operators that start with it."""

    thread: tuple[str, str]
    start_ns: int
    is_inner: bool
    name: str
    end_ns: int
    sizes: Sizes | str  # or why it has none
    type: str


def read_gemms(path: Path) -> TraceGemms:
    """Return the GEMMs of the trace at `path`; DataError if there are none."""
    if is_sqlite(path):
        raise DataError(path, None, f"an nsys export, which holds no shapes: {RECORD_SHAPES}")
    calls = _leaves(call for event in events(path) if (call := _call(event)) is not None)
    if not calls:
        raise DataError(path, None, f"a trace without GEMMs (aten::mm, addmm, bmm and their kin): {RECORD_SHAPES}")
    left_out = Counter(call.sizes for call in calls if isinstance(call.sizes, str))
    if left_out[_NO_SHAPES] == len(calls):
        raise DataError(path, None, f"a trace without shapes of its {len(calls)} GEMMs: {RECORD_SHAPES}")
    found = [call for call in calls if not isinstance(call.sizes, str)]
    if not found:
        reasons = ", ".join(f"{count} {why}" for why, count in left_out.items())
        raise DataError(path, None, f"a trace without GEMMs that can be replayed ({reasons})")
    return TraceGemms(tuple(_gemms(found)), left_out)


def _call(event: Mapping[str, Any]) -> _Call | None:
    """Return the operator of an event if it is a GEMM."""
    if event.get("ph") != "X" or event.get("cat") not in CATEGORIES:
        return None
    name = str(event.get("name")).removesuffix("_")
    operator = INNER.get(name) or OUTER.get(name)
    start_ns, duration_ns = _ns(event.get("ts")), _ns(event.get("dur"))
    if operator is None or start_ns is None or duration_ns is None:
        return None
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    thread = str(event.get("pid")), str(event.get("tid"))
    sizes = _sizes(arguments.get("Input Dims", arguments.get("Input dims")), operator)
    kind = _type(arguments.get("Input type"), operator.first)
    return _Call(thread, start_ns, name in INNER, name, start_ns + duration_ns, sizes, kind)


def _ns(value_us: object) -> int | None:
    """Return ns, exact if the value is exact; None if it is no time."""
    if not isinstance(value_us, int | float | Decimal) or not -MOST_US < value_us < MOST_US:
        return None
    return round(value_us * 1000)


def _sizes(dims: object, operator: _Operator) -> Sizes | str:
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
    """Return the calls that do the work, in order of time: inner ones, and outer ones within which no other starts."""
    leaves: list[_Call] = []
    lone: _Call | None = None  # an outer call within which no other has started so far
    for call in sorted(calls, key=lambda call: call[:4]):
        if lone and not (lone.thread == call.thread and call.start_ns < lone.end_ns):
            leaves.append(lone)
        lone = None if call.is_inner else call
        if call.is_inner:
            leaves.append(call)
    if lone:
        leaves.append(lone)
    return sorted(leaves, key=lambda call: (call.start_ns, call.thread))


def _gemms(calls: Sequence[_Call]) -> Iterable[Gemm]:
    zero_ns = calls[0].start_ns
    threads: dict[tuple[str, str], int] = {}
    for call in calls:
        assert not isinstance(call.sizes, str)
        thread = threads.setdefault(call.thread, len(threads))
        yield Gemm(call.start_ns - zero_ns, call.end_ns - zero_ns, thread, *call.sizes, call.type)
