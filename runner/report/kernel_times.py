"""Where the time of a step goes: the kernels of traced runs beside the reads of their weights, as a table of a page.

In: kernel_times.json, `{"traces": [{"run", "modes", "first", "repeated"}, ...]}`. `run` is a folder, relative to that
file, of a run with timing=cupti. Of its two `modes` the first one launches kernels one after another, and the second
one the same kernels with programmatic dependent launch. `first` and `repeated` list the kernels of a step by start:
`first` once, then `repeated` for each layer. A kernel is `{"name", "weight", "weights"}`: `weight` is `MxK` of its
GEMMs, absent without one, and `weights` is `none` if they are never quantised. Out: Markdown.

A step is a launch call: a graph. Kernels outside it, such as those of sampling, are not in the table.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from launchopt.analysis.stream_rows import weight_bytes
from launchopt.analysis.tables.columns import NOTHING, number
from launchopt.analysis.tables.markdown import escaped, plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording import results
from launchopt.recording.results import Row
from launchopt.statistics.interval import Interval, median_interval
from launchopt.timing.activity import ActivityKind
from runner.report.step_goals import read_gb_per_s, shown, step_weight_bytes, weight_counts
from runner.report.weight_goals import work_of

FILE, KERNELS = "kernel_times.json", "kernels.parquet"
COLUMNS = ("mode", "repeat", "launch", "kind", "start_ns", "end_ns", "api_end_ns")
MOST_UNKNOWN = 0.01  # largest part of a step's weights that no kernel of the table reads
LEGEND = (
    "Times are us: the median over the steps of a repeat, then over repeats, with the range of repeats in (). CUPTI "
    "traced the runs. Kernels are those of a step that launches them one after another; with programmatic dependent "
    "launch (PDL) a kernel begins before the one in front of it has ended. Read floor: the time in which this GPU "
    "reads the weights once. A step lasts from the start of its first kernel to the end of its last one. The gap to "
    "the next step counts only steps whose launch call returned before the step in front of them ended. Every output "
    "that was compared was right."
)
_HEADINGS = {"work": "---", "kernel": "---", "in a step": "---:", "weights": "---:", "read floor": "---:"}
_HEADINGS |= {"time": "---:", "above the floor": "---:"}


class Step(NamedTuple):
    """A launch call on the GPU. starts_ns, ends_ns: of its kernels, by start; called_ns: the return of the call."""

    starts_ns: list[int]
    ends_ns: list[int]
    called_ns: int

    @property
    def ended_ns(self) -> int:
        """End of the last kernel."""
        return max(self.ends_ns)

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end."""
        return self.ended_ns - self.starts_ns[0]

    @property
    def times_ns(self) -> list[int]:
        """Time of each kernel."""
        return [end - start for start, end in zip(self.starts_ns, self.ends_ns, strict=True)]


Repeats = Sequence[Sequence[Step]]  # the steps of each repeat, in order


def markdown(path: Path) -> str:
    """Return the legend and the table; DataError for a file or a run that has none, and for a wrong output."""
    try:
        lines = [line for trace in read_json(path)["traces"] for line in _lines(path.parent, trace)]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of traces ({type(error).__name__}: {error})") from None
    return f"{LEGEND}\n\n{plain(_HEADINGS, lines)}"


def _lines(folder: Path, trace: JsonObject) -> list[list[str]]:
    """Return the lines of a run: its kernels, the time between them, and the step."""
    place = folder / trace["run"]
    serial, overlapping = map(str, trace["modes"])
    rows, rate = _verified(place, serial), read_gb_per_s(place)
    _verified(place, overlapping)
    alone, overlapped = (_steps(place, mode) for mode in (serial, overlapping))
    kernels = _in_step(place, trace, [*alone, *overlapped])
    whole, reads = step_weight_bytes(rows[0]), _reads(place, rows[0], kernels)
    lines = []
    for name in dict.fromkeys(str(kernel["name"]) for kernel in kernels):
        at = [index for index, kernel in enumerate(kernels) if kernel["name"] == name]
        found = _medians([[step.times_ns[index] for step in steps for index in at] for steps in alone])
        lines.append([escaped(name), str(len(at)), *_cells(found, reads[at[0]], rate)])
    between = _medians([[step.span_ns - sum(step.times_ns) for step in steps] for steps in alone])
    lines.append(["between kernels", str(len(kernels) - 1), *_cells(between)])
    for name, repeats in (("one after another", alone), ("with PDL", overlapped)):
        spans = _medians([[step.span_ns for step in steps] for steps in repeats])
        lines.append([f"**step, {name}**", NOTHING, *_cells(spans, whole, rate)])
    if all(gaps := _gaps_ns(overlapped)):
        lines.append(["gap to the next step", NOTHING, *_cells(_medians(gaps))])
    layers = sum(kernel == kernels[-1] for kernel in kernels)
    work = work_of(rows) + (f", {layers} layers" if layers > 1 else "")
    return [[work if index == 0 else "", *line] for index, line in enumerate(lines)]


def _cells(found: Interval, read: float = 0.0, rate: float = 1.0) -> list[str]:
    """Return the cells of a time. read: bytes of weights, at `rate` GB/s."""
    if not read:
        return [NOTHING, NOTHING, shown(found), number(found.value)]
    floor_us = read / rate / 1e3
    return [f"{number(read / 1e6)} MB", number(floor_us), shown(found), number(found.value - floor_us)]


def _medians(repeats_ns: Sequence[Sequence[int]]) -> Interval:
    """Return the median over repeats of their medians, in us, and their range: they may be of several processes."""
    return replace(median_interval([statistics.median(each) / 1e3 for each in repeats_ns]), low=None, high=None)


def _verified(place: Path, mode: str) -> list[Row]:
    """Return the rows of a traced mode; DataError if one of them is wrong, or there are none."""
    rows = [row for row in results.read_summaries([place]) if row["mode"] == mode and row["traced"]]
    if not rows:
        raise DataError(place, None, f"no traced mode {mode!r}")
    for row in rows:
        if row["status"] != "ok" or row["verified"] is not True:
            raise DataError(place, None, f"mode {mode}, repeat {row['repeat']}: failed or not verified")
    return rows


def _steps(place: Path, mode: str) -> Repeats:
    """Return the steps of each repeat, in the order of their launch calls."""
    batches = results.read_recording(place / KERNELS, COLUMNS)
    rows = [row for batch in batches for row in batch.to_pylist() if row["mode"] == mode]
    kernels = [row for row in rows if row["kind"] == ActivityKind.kernel.name and row["launch"] is not None]
    kernels.sort(key=itemgetter("repeat", "launch", "start_ns"))
    return [
        [_step([*own]) for _, own in groupby(of_repeat, itemgetter("launch"))]
        for _, of_repeat in groupby(kernels, itemgetter("repeat"))
    ]


def _step(rows: Sequence[Row]) -> Step:
    return Step(
        [row["start_ns"] for row in rows], [row["end_ns"] for row in rows], max(row["api_end_ns"] for row in rows)
    )


def _gaps_ns(repeats: Repeats) -> list[list[int]]:
    """Return, for each repeat, the times before steps whose launch call returned while the GPU was busy."""
    return [
        [after.starts_ns[0] - step.ended_ns for step, after in pairwise(steps) if after.called_ns < step.ended_ns]
        for steps in repeats
    ]


def _in_step(place: Path, trace: JsonObject, repeats: Repeats) -> list[JsonObject]:
    """Return the kernels of a step by start; DataError unless all steps have as many as the trace lists."""
    first, repeated = trace.get("first", []), trace["repeated"]
    numbers = {len(step.starts_ns) for steps in repeats for step in steps}
    if len(numbers) == 1 and (more := max(numbers) - len(first)) > 0 and more % len(repeated) == 0:
        return [*first, *repeated * (more // len(repeated))]
    listed = f"{len(first)} and a multiple of {len(repeated)}"
    raise DataError(place, None, f"steps of {sorted(numbers)} kernels, not of {listed}")


def _reads(place: Path, row: Row, kernels: Sequence[JsonObject]) -> list[float]:
    """Return the bytes of weights that each kernel of a step reads; DataError if they are not those of the run."""
    shapes = results.read_manifest(place)["stream"]["shapes"]
    names = [kernel.get("weight", "") for kernel in kernels]
    whole, counts = step_weight_bytes(row), weight_counts(row)
    found = []
    for kernel, name in zip(kernels, names, strict=True):
        m, k = map(int, name.split("x")) if name else (0, 0)
        gemms = sum(count for shape, count in shapes.items() if name and re.fullmatch(rf"{m}x\d+x{k}", shape))
        stored = row | {"weights": None} if kernel.get("weights") == "none" else row
        found.append(weight_bytes(stored, m, k) * gemms / counts / names.count(name))
    if abs(sum(found) - whole) > MOST_UNKNOWN * whole:
        raise DataError(place, None, f"kernels read {sum(found):,.0f} bytes of weights, and a step {whole:,.0f}")
    return found
