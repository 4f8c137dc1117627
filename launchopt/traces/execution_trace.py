"""Read the GEMMs of an execution trace, which PyTorch's `ExecutionTraceObserver` writes.

In: a JSON file, plain or gzip, with a list `nodes`: a node per operator, in the order in which operators end. A node
names the storages that it reads and writes. Out: rows of a list of GEMMs, with groups in the order of the program.

Weights. A factor is a weight if no GEMM of the trace wrote to it or to what it was made from. Factors have the same
weight if they are the same part of a storage with the same strides, and nothing wrote to it in between. So a matrix and
its transpose are two weights. If both factors qualify, the weight is that of `traces.gemms`: the second factor of mm
and linear. A batched operator is a row with a count and no weight. Products of sparse matrices are left out.

Groups. A GEMM begins a new group if it reads what a GEMM of the current group wrote, also through other operators. Each
storage has a level: the number of the last group that it depends on. An operator that writes to all that it was given,
or does not say where it writes, raises the level of all its tensors. Whatever the program does after it has read a
number, such as the next token, depends on that number. The levels are never too low, so no order is lost, unless the
program reads memory of the host without an operator (`numpy`).

Compiled code does not say what it reads, and its own kernels are in the trace only beside a profiler on a GPU. A trace
with it is refused.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ijson

from launchopt.arrivals.lines import unreadable
from launchopt.errors import DataError, one_line
from launchopt.files import open_regular
from launchopt.traces.gemm_list import MOST_ROWS, MOST_SHAPES, ListedGemm, begins_list
from launchopt.traces.gemms import DTYPES, INNER, OUTER, Operator, Sizes, sizes_of
from launchopt.traces.json_stream import CHUNK_BYTES, GZIP_MAGIC, JsonStream

MOST_NODES = 5_000_000  # about 5 GB of JSON
NO_GEMM = -1  # level of a storage that depends on no GEMM
HOST, TO_HOST = "cpu", "aten::_local_scalar_dense"  # a device; the operator of `item`
COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph")
COMPILED_CODE = "compiled code does not say what it reads: set TORCH_COMPILE_DISABLE=1, and record again"
CUT = "its process was killed, or the disk is full"
SPARSE = "of a sparse matrix"
HEAD_BYTES = 4096
_NO_TRACE = "a JSON object without nodes; expected a list of GEMMs, or what PyTorch's ExecutionTraceObserver writes"


class _Tensor(NamedTuple):
    """A tensor. strides: of a factor, that of k last, and 0 for a size of 1. Older versions of PyTorch write none."""

    storage: int
    offset: int
    is_on_host: bool
    is_sparse: bool  # without storage and device
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The rows of a trace. left_out: number of GEMM operators left out, by reason. cut: why it ends early, or empty."""

    gemms: tuple[ListedGemm, ...]
    left_out: Mapping[str, int]
    cut: str = ""


class NoGemmsError(DataError):
    """A trace without GEMMs that can be replayed."""


class _LimitError(ValueError): ...  # the trace is longer than a list may be


class _CompiledError(ValueError): ...  # the trace has compiled code


def is_execution_trace(path: Path) -> bool:
    """Return whether a file may be an execution trace: a JSON object, also within gzip, or damaged gzip.

    DataError if it cannot be read.
    """
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    if head.startswith(GZIP_MAGIC):
        with contextlib.suppress(zlib.error):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    return head.startswith(GZIP_MAGIC) or not begins_list(head)


def read_execution_trace(path: Path, *, may_end_early: bool = False) -> ExecutionTrace:
    """Return the GEMMs of the trace at `path`. DataError: it is no such trace, or has no GEMM that can be replayed.

    may_end_early: read what is there of a trace that was cut short, or that is over a limit.
    """
    reader, nodes, cut = _Reader(), 0, ""
    try:
        for nodes, node in enumerate(_nodes(path), 1):
            try:
                if nodes > MOST_NODES:
                    raise _LimitError(f"over {MOST_NODES:,} operators")
                reader.add(_Node(node))
            except _LimitError as error:
                raise DataError(path, None, f"{error}: record fewer steps") from error
            except ValueError as error:
                raise DataError(path, None, f"node {nodes:,}: {error}") from error
    except DataError as error:
        if not may_end_early or isinstance(error.__cause__, _CompiledError):
            raise
        cut = error.problem if isinstance(error.__cause__, _LimitError) else CUT
    if not nodes:
        raise (NoGemmsError if may_end_early else DataError)(path, None, _NO_TRACE)
    if not reader.gemms:
        reasons = ", ".join(f"{count:,} {why}" for why, count in reader.left_out.items())
        problem = "a trace without GEMMs that can be replayed" + (reasons and f" ({reasons})")
        raise NoGemmsError(path, None, problem)
    return ExecutionTrace(tuple(_together(reader.gemms)), reader.left_out, cut)


def _together(gemms: Sequence[ListedGemm]) -> list[ListedGemm]:
    """Return the rows with those of a group that share a weight next to each other, as `mode=coalesced` joins them."""
    first: dict[tuple[str, str], int] = {}
    keys = [first.setdefault((each.group, each.weight), at) if each.weight else at for at, each in enumerate(gemms)]
    return [gemms[at] for at in sorted(range(len(gemms)), key=lambda at: keys[at])]


def _nodes(path: Path) -> Iterator[object]:
    with JsonStream(path) as stream:
        try:
            yield from ijson.items(stream, "nodes.item", buf_size=CHUNK_BYTES)
        except (ijson.JSONError, ArithmeticError, ValueError):
            raise stream.error("not JSON, or cut short") from None


class _Node:
    """One operator that ended. ValueError if a field that is needed has another type."""

    def __init__(self, given: object) -> None:
        node = _object(given, "node")
        inputs, outputs = _object(node.get("inputs"), "inputs"), _object(node.get("outputs"), "outputs")
        self.id, self.parent = _number(node.get("id"), "id"), _number(node.get("ctrl_deps"), "ctrl_deps")
        self.name = str(node.get("name"))
        self.values, self.shapes, self.types = (_list(inputs.get(each), each) for each in ("values", "shapes", "types"))
        self._strides = _list(inputs.get("strides", []), "strides")
        read, written = list(_tensors(self.values)), list(_tensors(_list(outputs.get("values"), "values")))
        self.read, self.written = {each.storage for each in read}, {each.storage for each in written}
        is_copy = any(each.is_on_host for each in written) and not all(each.is_on_host for each in read)
        self.is_for_host = is_copy or self.name == TO_HOST
        attributes = [each for each in _list(node.get("attrs"), "attrs") if isinstance(each, dict)]
        self.schema = next((str(each.get("value")) for each in attributes if each.get("name") == "op_schema"), "")
        self.is_in_place = "!" in self.schema

    def factors(self, operator: Operator) -> list[_Tensor]:
        """Return the two factors of a GEMM; ValueError if it has fewer."""
        at = operator.first
        found = [tensor for value in self.values[at : at + 2] for tensor in _tensors(value)]
        if len(found) != 2:
            raise ValueError(f"{one_line(self.name, 40)}: expected two tensors, got {len(found)}")
        first, second = (self._strides_of(each) for each in (at, at + 1))
        second = second if operator.is_k_last else second[::-1]
        return [found[0]._replace(strides=first), found[1]._replace(strides=second)]

    def _strides_of(self, index: int) -> tuple[int, ...]:
        given, sizes = (each[index] if index < len(each) else None for each in (self._strides, self.shapes))
        if not (isinstance(given, list) and isinstance(sizes, list) and all(isinstance(each, int) for each in given)):
            return ()
        return tuple(0 if size == 1 else stride for size, stride in zip(sizes, given, strict=False))

    def type(self, index: int) -> str:
        """Return PyTorch's name of the element type of an argument."""
        return str(self.types[index]).removeprefix("Tensor(").removesuffix(")") if index < len(self.types) else ""


class _Reader:
    """Turns nodes, in the order in which they end, into rows."""

    def __init__(self) -> None:
        self.gemms: list[ListedGemm] = []
        self.left_out: Counter[str] = Counter()
        self._group = 0
        self._host_level = NO_GEMM  # the highest level of a result that the program itself has read
        self._level: dict[int, int] = {}  # of each storage that was written to
        self._writer: dict[int, int] = {}  # node that last wrote to a storage
        self._parents: set[int] = set()  # nodes that have inner ones
        self._gemm_parents: set[int] = set()  # nodes within which a GEMM was found
        self._weights: dict[tuple[int, ...], str] = {}
        self._inputs: dict[tuple[int, ...], str] = {}
        self._shapes: set[tuple[int, int, int]] = set()

    def add(self, node: _Node) -> None:
        """Add the next node. ValueError if the trace cannot be used."""
        if node.name.startswith(COMPILED):
            raise _CompiledError(COMPILED_CODE)
        has_gemm, is_leaf = node.id in self._gemm_parents, node.id not in self._parents
        self._gemm_parents.discard(node.id)
        self._parents.discard(node.id)
        self._parents.add(node.parent)
        name = node.name.removesuffix("_")
        operator = INNER.get(name) or OUTER.get(name)
        level = self._highest(node.read)
        if node.is_for_host:
            self._host_level = max(level, self._host_level)
        if operator is not None and not has_gemm:
            has_gemm = is_leaf = True
            level = self._gemm(node, operator, level)
        if has_gemm:
            self._gemm_parents.add(node.parent)
        self._write(node, level, is_leaf)

    def _highest(self, storages: set[int]) -> int:
        return max((self._level.get(each, NO_GEMM) for each in storages), default=NO_GEMM)

    def _write(self, node: _Node, level: int, is_leaf: bool) -> None:
        """Set the level of the storages that a node wrote to. What inner nodes wrote keeps at least its level."""
        new = node.written - node.read
        for storage in new:
            before = NO_GEMM if is_leaf else self._level.get(storage, NO_GEMM)
            self._level[storage] = max(level, before)
        changed = node.written if node.is_in_place else new
        if not node.written and (node.is_in_place or (is_leaf and not node.schema)):
            changed = node.read
        for storage in changed:
            self._level[storage] = max(level, self._level.get(storage, NO_GEMM))
            if is_leaf or storage not in self._writer:
                self._writer[storage] = node.id

    def _gemm(self, node: _Node, operator: Operator, level: int) -> int:
        """Add the row of a GEMM, unless it is left out. Return the level of its output."""
        sizes, kind = sizes_of(node.shapes, operator), node.type(operator.first)
        if isinstance(sizes, str) or kind not in DTYPES:
            self.left_out[sizes if isinstance(sizes, str) else f"of type {one_line(kind, 40)}"] += 1
            return level
        first, second = node.factors(operator)
        if first.is_sparse or second.is_sparse:
            self.left_out[SPARSE] += 1
            return level
        self._group += bool(self.gemms) and max(level, self._host_level) == self._group
        if len(node.shapes[operator.first + 1]) == 1:
            first, second = second, first  # of a matrix and a vector, the matrix is the weight
        (m, n, k, batch), weight, given = self._operands(sizes, first, second)
        self.gemms.append(ListedGemm(m, n, k, batch, DTYPES[kind], weight, str(self._group), given))
        self._shapes.add((m, n, k))
        if len(self.gemms) > MOST_ROWS or len(self._shapes) > MOST_SHAPES:
            self.gemms.pop()
            raise _LimitError(f"over {MOST_ROWS:,} GEMMs, or {MOST_SHAPES:,} different sizes")
        return self._group

    def _operands(self, sizes: Sizes, first: _Tensor, second: _Tensor) -> tuple[Sizes, str, str]:
        """Return the sizes with the weight as A, and names of weight and input; empty if there is no weight.

        The second factor goes first.
        """
        m, n, k, batch = sizes
        if batch > 1:
            return sizes, "", ""
        if self._level.get(second.storage, NO_GEMM) != NO_GEMM:
            if first.storage in self._level:  # an input that the program made would look like a weight
                return sizes, "", ""
            m, n, first, second = n, m, second, first
        weight, given = (self._part(each, rows, k) for each, rows in ((second, m), (first, n)))
        name = self._weights.setdefault(weight, f"w{len(self._weights)}")
        return (m, n, k, batch), name, self._inputs.setdefault(given, f"x{len(self._inputs)}")

    def _part(self, tensor: _Tensor, rows: int, columns: int) -> tuple[int, ...]:
        """Return what tells a matrix from others: its place in a storage, and who last wrote to that."""
        return tensor.storage, self._writer.get(tensor.storage, 0), tensor.offset, rows, columns, *tensor.strides


def _tensors(value: object) -> Iterator[_Tensor]:
    """Yield the tensors of an argument: [tensor, storage, offset, elements, bytes an element, device], or lists."""
    if not isinstance(value, list):
        return
    if len(value) == 6 and isinstance(value[5], str) and all(isinstance(each, int) for each in value[:5]):
        yield _Tensor(value[1], value[2], value[5] == HOST, not (value[1] or value[5]))
        return
    for each in value:
        yield from _tensors(each)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what}: expected an object")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: expected a list")
    return value


def _number(value: object, what: str) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{what}: expected a whole number")
    return value
