"""Account of a decode step in one launch: megakernel.parquet with a row per op of a case, and its tables.

In: measurements of a case by `runner.bench megakernel`. Out: rows; from a folder with them Markdown, or cells for a
terminal. Figures of a whole case repeat in each of its rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from launchopt.analysis.tables.columns import Column, count, number
from launchopt.analysis.tables.markdown import body
from launchopt.devices.megakernel.step_account import Part, WeightsFloor
from launchopt.errors import DataError
from launchopt.reading.parquet import Rules, checked
from launchopt.recording.columns import schema
from launchopt.recording.manifest import device_name, usable_manifest
from launchopt.recording.results import Row

FILE = "megakernel.parquet"
_MOST_ROWS = 10_000
CASE, NVML = "case", "nvml_clock_mhz"
ABOUT = (
    "A decode step in one launch, without sampling (`launchopt bench megakernel`). Times of the kernel alone: "
    "medians of {launches} launches of the last token's step, queued ahead, each between two CUDA events, after a run "
    "of the same kernel whose every output was compared with float64. Least: the weights, each read once, at the "
    "larger of the measured read and copy bandwidths. Two kernels lack a stage, and their outputs are wrong. The one "
    "without weights shows the chain of instructions; the one without waits shows weights and arithmetic."
)
LEGEND = (
    "Wait: from the begin of an instruction on a block until its inputs are there. Work: from then to its end. Each "
    "instruction counts with the median, or the most, over its blocks; each op with the mean over its instructions; "
    "`all` is the sum. Blocks wait for each other's work, so these sums differ from the whole. On block 0 the waits, "
    "the work and the time between two instructions add up."
)
_TEXT, _I64, _F64, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
ACCOUNT = schema(
    (CASE, _TEXT, "workload, dtype and requests; with op, the key of a row"),
    ("op", _TEXT, "a GEMM with its m x k; JOIN: only waits"),
    ("instructions", _I64, "of this op in the step's list"),
    ("blocks", _F64, "blocks that take part in an instruction; mean over instructions"),
    (
        "wait_us",
        _F64,
        "time from an instruction's begin until its inputs are there; median over its blocks, mean over instructions",
    ),
    ("wait_most_us", _F64, "the same, with the maximum over its blocks"),
    ("work_us", _F64, "time from then to the instruction's end; median over its blocks, mean over instructions"),
    ("work_most_us", _F64, "the same, with the maximum over its blocks"),
    ("wait_sum_us", _F64, "sum over instructions of the median wait"),
    ("work_sum_us", _F64, "sum over instructions of the median work"),
    ("own_wait_us", _F64, "sum over instructions of the wait of block 0"),
    ("own_work_us", _F64, "sum over instructions of the work of block 0"),
    ("own_between_us", _F64, "sum of the times from an instruction's end to the begin of the next, on block 0"),
    ("launches", _I64, "number of timed launches of each kernel"),
    ("kernel_us", _F64, "time of the kernel as the mode launches it, by CUDA events; median"),
    ("without_weights_us", _F64, "the same of a kernel that fetches no weights: its outputs are wrong"),
    ("without_waits_us", _F64, "the same of a kernel that does not wait for inputs: its outputs are wrong"),
    ("stamped_us", _F64, "time of the launch with time stamps, from which the times of ops come, by CUDA events"),
    ("weight_bytes", _I64, "bytes of the distinct weights of the step's GEMMs"),
    ("ceiling_gb_per_s", _F64, "the larger of the measured read and copy bandwidths"),
    ("ceiling", _TEXT, "which of the two"),
    ("clock_mhz", _F64, "clock of the multiprocessors in the launch with time stamps, by the GPU's timer; median"),
    (NVML, _F64, "SM clock by NVML during the launches; null if NVML gave none"),
    (
        "verified",
        _BOOL,
        "every output of a run of the kernel was right, and the kernel with time stamps has the same outputs",
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one case: us per launch of the kernel and of two kernels that lack a stage, and its parts."""

    kernel_us: Sequence[float]
    without_weights_us: Sequence[float]
    without_waits_us: Sequence[float]
    stamped_us: float
    clock_mhz: float
    nvml_clock_mhz: float | None
    floor: WeightsFloor
    parts: Sequence[Part]


def rows_of(case: str, found: Measured) -> list[Row]:
    """Return the rows of a case, in the columns of ACCOUNT. A run with wrong outputs has none."""
    names = ("kernel_us", "without_weights_us", "without_waits_us")
    whole = {name: statistics.median(getattr(found, name)) for name in names} | {
        "launches": len(found.kernel_us),
        "stamped_us": found.stamped_us,
        "weight_bytes": found.floor.weight_bytes,
        "ceiling_gb_per_s": found.floor.gb_per_s,
        "ceiling": found.floor.ceiling,
        "clock_mhz": found.clock_mhz,
        NVML: found.nvml_clock_mhz,
        "verified": True,
    }
    return [{CASE: case, **asdict(part), **whole} for part in found.parts]


def read(folder: Path) -> list[Row]:
    """Return the rows of a result; DataError if there is none."""
    path = folder / FILE
    rules = Rules(ACCOUNT, ACCOUNT.names, is_signed=True, most_rows=_MOST_ROWS, what="an account of launchopt bench")
    rows: list[Row] = [row for batch in checked(path, rules) for row in batch.to_pylist()]
    if not rows or any(value is None for row in rows for name, value in row.items() if name != NVML):
        raise DataError(path, None, "not an account of launchopt bench: it has no rows, or gaps in them")
    return rows


def by_case(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each case, in order."""
    return [list(own) for _, own in groupby(rows, lambda row: row[CASE])]


def _floor(row: Row) -> WeightsFloor:
    return WeightsFloor(row["weight_bytes"], row["ceiling_gb_per_s"], row["ceiling"])


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: number(row[name])


_SETS: frozenset[str] = frozenset()  # no named sets: each table has all of its columns
CASES: Sequence[Column[Row]] = (
    Column("step", lambda row: str(row[CASE]), _SETS, is_text=True),
    Column("weights MB", lambda row: number(row["weight_bytes"] / 1e6), _SETS),
    Column("least us", lambda row: number(_floor(row).us), _SETS),
    Column("kernel us", _number("kernel_us"), _SETS),
    Column("GB/s", lambda row: count(_floor(row).achieved_gb_per_s(row["kernel_us"])), _SETS),
    Column("of bandwidth", lambda row: f"{100 * _floor(row).us / row['kernel_us']:.1f}% {row['ceiling']}", _SETS),
    Column("no weights us", _number("without_weights_us"), _SETS),
    Column("no waits us", _number("without_waits_us"), _SETS),
    Column("verified", lambda row: "yes" if row["verified"] else "NO", _SETS, is_text=True),
)
MEANS: Sequence[Column[Row]] = (  # means over the instructions of an op, without a sum over ops
    Column("blocks", lambda row: count(row["blocks"]), _SETS),
    Column("wait us", _number("wait_us"), _SETS),
    Column("most", _number("wait_most_us"), _SETS),
    Column("work us", _number("work_us"), _SETS),
    Column("most", _number("work_most_us"), _SETS),
)
OPS: Sequence[Column[Row]] = (
    Column("op", lambda row: str(row["op"]), _SETS, is_text=True),
    Column("instructions", lambda row: count(row["instructions"]), _SETS),
    *MEANS,
    Column("wait, all us", _number("wait_sum_us"), _SETS),
    Column("work, all us", _number("work_sum_us"), _SETS),
    Column("block 0: wait us", _number("own_wait_us"), _SETS),
    Column("work us", _number("own_work_us"), _SETS),
    Column("between us", _number("own_between_us"), _SETS),
)


def title(own: Sequence[Row]) -> str:
    """Return the name of a case."""
    return str(own[0][CASE])


def case_cells(cases: Sequence[Sequence[Row]]) -> list[list[str]]:
    """Return the cells of all cases."""
    return [[column.cell(own[0]) for column in CASES] for own in cases]


def op_cells(own: Sequence[Row]) -> list[list[str]]:
    """Return the cells of a case's ops, and of their sum."""
    sums = {"op": "all"} | {
        field.name: sum(row[field.name] for row in own) for field in fields(Part) if field.name != "op"
    }
    last = ["" if column in MEANS else column.cell(sums) for column in OPS]
    return [*([column.cell(row) for column in OPS] for row in own), last]


def clock_line(own: Sequence[Row]) -> str:
    """Return a sentence on the launch that a case's account describes, and on the times that it leaves out."""
    row = own[0]
    listed_us = sum(each[f"own_{name}_us"] for each in own for name in ("wait", "work", "between"))
    launch, listed = (number(value) for value in (row["stamped_us"], listed_us))
    nvml = "nothing" if row[NVML] is None else f"{count(row[NVML])} MHz"
    return (
        f"The kernel that writes its clock down took {launch} us by events; on block 0, from the begin of the first "
        f"instruction to the end of the last, {listed} us. The rest is the launch, and what comes before and after. "
        f"Its clock ran at {count(row['clock_mhz'])} MHz by the GPU's timer (NVML: {nvml})."
    )


def markdown(folder: Path) -> str:
    """Return a table of the cases, then one of each case's ops; ends with a newline."""
    cases = by_case(read(folder))
    parts = [f"{device_name(usable_manifest(folder))}. {ABOUT.format(launches=cases[0][0]['launches'])}"]
    parts += [body(CASES, case_cells(cases)), LEGEND]
    for own in cases:
        parts += [f"**{title(own)}**", clock_line(own), body(OPS, op_cells(own))]
    return "\n\n".join(parts) + "\n"
