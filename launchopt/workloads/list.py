"""list: the GEMMs of the user's list at workload.path, in its order or shuffled, in groups that follow one another.

The path may also be that of PyTorch's execution trace, which `launchopt.traces.execution_trace` turns into a list.

In: the options, and the size of the device's cache. Out: a `ListStream`. Wrong options raise a ConfigError, a wrong
file a DataError. `launchopt.traces.gemm_list` describes the file.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np

from launchopt.command import Dtype
from launchopt.errors import ConfigError, DataError
from launchopt.files import user_path
from launchopt.options import LARGEST, REQUIRED, option
from launchopt.streams.footprint import Cache, replicas_for
from launchopt.streams.list_stream import ListOrder, ListStream
from launchopt.streams.operands import ArenaKey
from launchopt.streams.row_stream import NO_WEIGHT, Columns, Rows
from launchopt.traces.execution_trace import is_execution_trace, read_execution_trace
from launchopt.traces.gemm_list import ListedGemm, read_gemm_list
from launchopt.traces.merged_rows import merged
from launchopt.workloads.base import Minimum, Setting, Workload

_Content: TypeAlias = tuple[Sequence[ListedGemm], Mapping[str, int]]


@dataclass(slots=True)
class GemmList(Workload):
    """The GEMMs of a user's list."""

    name: str = "list"
    dtype: Dtype | None = option(None, "null: that of the list, or fp32 if it has none")
    path: str = option(
        REQUIRED, "CSV or JSON with m, n, k (op, dtype, count, weight, group, input), or an execution trace"
    )
    repeat: int = option(1, "number of passes through the list", low=1)
    merged: bool = option(False, "merge the rows of a group that have the same input, as q, k and v, into one GEMM")
    shuffle: bool = option(False, "take the commands in a fixed random order, within their group")

    instead_of_model: ClassVar[str] = "decode or prefill"
    smallest: ClassVar[tuple[str, ...]] = ("workload.path={list}",)

    def model_name(self, model: str) -> str:
        """Return the name of the file up to its first dot."""
        return Path(self.path).name.partition(".")[0]

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.repeat, or count, m, n or k in the list"

    def count(self, device_kind: str) -> int:
        """Return the number of commands; ConfigError or DataError for more than a run can have."""
        return self._commands(self._merged(_read(user_path("workload.path", self.path))[0]))

    def minimum(self) -> Minimum:
        """Return the number of commands. Their bytes are known when the stream is laid out."""
        return Minimum(self.count("cpu"), 0)

    def stream(self, layers: int, setting: Setting) -> ListStream:
        """Return the stream. A conversion, and the number of groups, are added to the notices."""
        given, left_out = _read(user_path("workload.path", self.path))
        _read_version.cache_clear()  # 100,000 rows would slow the collector down during the run
        gemms = self._merged(given)
        commands, dtype = self._commands(gemms), self._dtype(gemms)
        if setting.due_ns is not None and len(setting.due_ns) != commands:
            raise DataError(self.path, None, "changed while it was read")
        rows = _rows(gemms)
        order = ListOrder(_groups(gemms), setting.is_ordered, self.shuffle, setting.seed, setting.due_ns)
        weights = _Weights(self, rows, dtype, setting)
        stream = ListStream(rows, dtype, weights.of_arena, self.repeat, weights.copies, order)
        setting.notices.extend(self._notices(len(given), gemms, stream))
        setting.notices.extend(f"list: left out: {count:,} GEMM operators {why}" for why, count in left_out.items())
        return stream

    def _merged(self, given: Sequence[ListedGemm]) -> Sequence[ListedGemm]:
        return merged(given) if self.merged else given

    def _commands(self, gemms: Sequence[ListedGemm]) -> int:
        a_pass = sum(gemm.count for gemm in gemms)
        if a_pass > LARGEST:
            raise DataError(self.path, None, f"{a_pass} commands; allowed: at most {LARGEST}")
        if a_pass * self.repeat > LARGEST:
            most = f"the list has {a_pass} commands, and a run at most {LARGEST}: give at most {LARGEST // a_pass}"
            raise ConfigError("workload.repeat", self.repeat, most)
        return a_pass * self.repeat

    def _dtype(self, gemms: Sequence[ListedGemm]) -> Dtype:
        given = {gemm.dtype for gemm in gemms if gemm.dtype is not None}
        if self.dtype is not None:
            return self.dtype
        if len(given) > 1:
            names = " and ".join(dtype.name for dtype in sorted(given))
            raise ConfigError("workload.dtype", "null", f"the list has {names}, and a run has one: give one of them")
        return next(iter(given), Dtype.fp32)

    def _notices(self, given: int, gemms: Sequence[ListedGemm], stream: ListStream) -> list[str]:
        """Return notices with the numbers of rows and commands. given: number of rows in the file, before merging."""
        groups = f", {stream.groups:,} {'group' if stream.groups == 1 else 'groups in order'}" if stream.groups else ""
        into = f", merged into {len(gemms):,}" if len(gemms) < given else ""
        notices = [
            f"list: {given:,} {_plural('row', given)} of {self.path}{into}: {stream.commands:,}"
            f" {_plural('command', stream.commands)} of {len(stream.shapes):,} {_plural('shape', len(stream.shapes))},"
            f" {stream.dtype.name}{groups}"
        ]
        if self.merged and not into:
            notices.append(
                "list: workload.merged=true merges nothing: it takes rows of a group with the same input, n, k and"
                " dtype, different weights and no count"
            )
        if all(gemm.n > gemm.m for gemm in gemms):
            notices.append(
                "list: every row has more columns (n, tokens) than output features (m): if your tool calls the tokens M"
                " and the output features N, swap the two names"
            )
        others = Counter(gemm.dtype.name for gemm in gemms if gemm.dtype not in (None, stream.dtype))
        if others:
            counted = ", ".join(f"{count:,} of {name}" for name, count in others.most_common())
            notices.append(f"list: rows run in {stream.dtype.name}: {counted}")
        return notices


def most_common_dtype(path: Path) -> Dtype | None:
    """Return the dtype of most commands of a list that has several; None if it has one, or none."""
    counts: Counter[Dtype] = Counter()
    for gemm in _read(path)[0]:
        if gemm.dtype is not None:
            counts[gemm.dtype] += gemm.count
    return counts.most_common(1)[0][0] if len(counts) > 1 else None


def _read(path: Path) -> _Content:
    """Return the rows of a list or of an execution trace, and the number of GEMMs left out of a trace, by reason."""
    version: tuple[int, ...] = ()
    with contextlib.suppress(OSError, ValueError):  # the reader says why it cannot be read
        found = path.stat()
        version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return _read_version(path, version)


@lru_cache(maxsize=1)
def _read_version(path: Path, version: tuple[int, ...]) -> _Content:
    """Read the file once for the plan of a run, which counts the commands before it lays out the stream."""
    if is_execution_trace(path):
        trace = read_execution_trace(path)
        return trace.gemms, trace.left_out
    return read_gemm_list(path), {}


class _Weights:
    """The number of different weights of each size, and of copies of the named weights.

    With a cold cache the weights of each size alone, and the named weights together, exceed the cache. With a hot one
    all weights fit.
    """

    def __init__(self, options: GemmList, rows: Rows, dtype: Dtype, setting: Setting) -> None:
        self._setting, self._fixed = setting, options.replicas
        sizes, is_named = rows.sizes[:, ::2], rows.weight != NO_WEIGHT
        named = np.unique(np.column_stack([sizes, rows.weight])[is_named], axis=0)[:, :2].tolist()
        others = np.unique(sizes[~is_named], axis=0).tolist()
        named_bytes, other_bytes = (sum(m * k for m, k in each) * dtype.itemsize for each in (named, others))
        if self._fixed is None and options.cache is Cache.hot:
            self._fixed = replicas_for(Cache.hot, named_bytes + other_bytes, setting.cache_bytes)
        self.copies = self._fixed or (replicas_for(Cache.cold, named_bytes, setting.cache_bytes) if named else 1)

    def of_arena(self, arena: ArenaKey, uses: int) -> int:
        """Return the number of different weights that `uses` commands without a named weight take in turn."""
        setting = self._setting
        multiple = min(setting.max_batch, uses)
        return self._fixed or replicas_for(Cache.cold, arena.slot_bytes, setting.cache_bytes, multiple)


def _rows(gemms: Sequence[ListedGemm]) -> Rows:
    """Return the rows, with the weights of each size numbered in the order of the list."""
    numbers: dict[tuple[int, int], dict[str, int]] = {}
    weight = [NO_WEIGHT] * len(gemms)
    for row, gemm in enumerate(gemms):
        if gemm.weight:
            of_size = numbers.setdefault((gemm.m, gemm.k), {})
            weight[row] = of_size.setdefault(gemm.weight, len(of_size))
    sizes = np.array([(gemm.m, gemm.n, gemm.k) for gemm in gemms], np.int64)
    return Rows(sizes, np.array([gemm.count for gemm in gemms], np.int64), np.array(weight, np.int64))


def _groups(gemms: Sequence[ListedGemm]) -> Columns | None:
    """Return the number of the group of each row, from 0; None if the list has no groups."""
    if not gemms[0].group:
        return None
    number, before, numbers = 0, gemms[0].group, []
    for gemm in gemms:
        number += gemm.group != before
        before = gemm.group
        numbers.append(number)
    return np.array(numbers, np.int64)


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
