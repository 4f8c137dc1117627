"""A slice of a run in time: waits in the queue, launch calls on the host, work on the device.

In: the recordings of a run. Out: a figure of two modes on one time scale, whose window the user can move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import altair as alt

from launchopt.analysis.stream_rows import counted
from launchopt.analysis.tables.rows import Line, Table
from launchopt.errors import DataError
from launchopt.reading.parquet import Window
from launchopt.reading.unusable import name_unusable
from launchopt.recording.results import Row, read_recording
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished, series_names, shown_lines
from launchopt.report.source import Source

TITLE = "Timeline of a slice"
_MODES = 2
_LAUNCHES = 48  # launches per mode
_MOST_ROWS = 600  # maximum bars per lane; a reader could not distinguish more
_WAIT, _TURN, _HOST, _GPU, _CPU = "queue wait: in a bucket", "queue wait: flushed", "host: launch call", "GPU", "CPU"
READING = (
    "Time 0 is the first launch call of each mode. Queue wait: first enqueue of a batch to its "
    "flush; then the batch waits for its launch call. The darker, the more batches wait. GPU: kernels by CUPTI where "
    "they were traced, else from the device reaching a launch to its results. Drag or use the buttons to move, Ctrl "
    "and the wheel to zoom."
)


def timeline_figure(tables: Sequence[Table], source: Source) -> Figure | Absent:
    """Return launches from the middle of a repeat, of the baseline and of the fastest recorded mode.

    tables: all of the same work, traced or not. The figure shows the table with the most recordings.
    """
    recorded = [[line for line in shown_lines(table) if _folder(line, source)][:_MODES] for table in tables]
    lines = max(recorded, key=lambda found: (any(_has_kernels(line, source) for line in found), len(found)), default=[])
    if not lines:
        why = "neither launches nor kernels were recorded"
        return Absent(TITLE, why, "record.launches=all record.commands=all, on a GPU also timing=cupti for kernels")
    names = series_names(lines)
    values: list[Datum] = []
    lanes: list[str] = []
    spans_us: list[float] = []
    for name, line in zip(names, lines, strict=True):
        folder = _folder(line, source)
        bars = _slice(folder, line, name) if folder else []
        values += bars
        lanes += dict.fromkeys(bar["lane"] for bar in bars)
        spans_us.append(max((bar["end"] for bar in bars), default=0.0))
    if not values:
        return Absent(TITLE, "the recording holds no launch of these modes", "record.launches=all")
    end_us = min(span for span in spans_us if span > 0)
    each = " of each GPU" if any(line.rows[0]["gpus"] for line in lines) else ""
    note = f"{_LAUNCHES} launches{each} from the middle of a repeat of {' and '.join(names)}."
    if lines[0]["traced"]:
        note = f"Of a traced run: the tracer makes each launch slower. {note}"
    height = 34 * len(lanes) + 20
    return finished(TITLE, note, _chart(values, lanes, end_us), height, reading=READING, zooms=True)


def _folder(line: Line, source: Source) -> Path | None:
    run = source.run(line["run_id"])
    return run.folder if run is not None and (run.recording("launches") or run.recording("kernels")) else None


def _has_kernels(line: Line, source: Source) -> bool:
    run = source.run(line["run_id"])
    return run is not None and run.recording("kernels") is not None


def _slice(folder: Path, line: Line, name: str) -> list[Datum]:
    """Return the bars of one mode: the launches around the middle of its first repeat."""
    row = line.rows[0]
    several = (
        1 if row["tensor"] else row["gpus"] or 1
    )  # independent GPUs number their own launches, of which a sum is known
    first = max(0, int(row["launch_calls"] or 0) // several // 2 - _LAUNCHES // 2)
    window: Window = {
        **{name: (row[name], row[name]) for name in ("mode", "repeat")},
        "launch": (first, first + _LAUNCHES - 1),
    }
    launches = _read(folder / "launches.parquet", window)
    kernels = _read(folder / "kernels.parquet", window)[:_MOST_ROWS]
    host = [
        _bar(_of(name, each), _HOST, _named(each), each["submit_start_ns"], each["submit_end_ns"]) for each in launches
    ]
    host = host or _calls(kernels, name)
    if not host:
        return []
    start_ns = min(bar["start"] for bar in host)
    bars = [*_waits(_read(folder / "commands.parquet", window), name), *host]
    for each in kernels:
        what = f"{each['name']}, stream {each['stream']}, launch {each['launch']}"
        bars.append(_bar(_of(name, each), _GPU, what, each["start_ns"], each["end_ns"]))
    if not kernels:
        timed = [each for each in launches if each["device_start_ns"] is not None and each["device_end_ns"] is not None]
        track = _GPU if row["device"] == "cuda" else _CPU
        bars += [
            _bar(_of(name, each), track, _named(each), each["device_start_ns"], each["device_end_ns"]) for each in timed
        ]
    for bar in bars:
        bar |= {"start": (bar["start"] - start_ns) / 1e3, "end": (bar["end"] - start_ns) / 1e3}
        bar["us"] = bar["end"] - bar["start"]
    return bars


def _read(path: Path, window: Window) -> list[Row]:
    """Return the rows of a recording within `window`. A file that cannot be read is named, and left out."""
    if not path.exists():
        return []
    try:
        return [row for batch in read_recording(path, window=window) for row in batch.to_pylist()]
    except DataError as error:
        name_unusable(error)
        return []


def _calls(kernels: Iterable[Row], name: str) -> list[Datum]:
    """Return API calls as CUPTI saw them, for a run without recorded launch calls."""
    seen = {(each["gpu"], each["correlation"]): each for each in kernels if each["api_start_ns"] is not None}
    return [
        _bar(
            _of(name, each), _HOST, f"{each['api']}, launch {each['launch']}", each["api_start_ns"], each["api_end_ns"]
        )
        for each in seen.values()
    ]


def _waits(commands: Iterable[Row], name: str) -> list[Datum]:
    """Return two bars per launch: from its first command's enqueue to its flush, and on to its launch call."""
    batches: dict[int, list[Row]] = {}
    for command in commands:
        batches.setdefault(command["launch"], []).append(command)
    bars = []
    for launch, of in batches.items():
        what = f"launch {launch}: {counted(len(of), 'command')}"
        flush_ns = of[0]["flush_ns"]
        bars.append(_bar(name, _WAIT, what, min(command["enqueue_ns"] for command in of), flush_ns))
        bars.append(_bar(name, _TURN, what, flush_ns, of[0]["submit_start_ns"]))
    return bars


def _of(mode: str, row: Row) -> str:
    """Return the mode, and the GPU if there were several: each has lanes of its own."""
    return mode if row["gpu"] is None else f"{mode}, GPU {row['gpu']}"


def _named(launch: Row) -> str:
    shape = "x".join(str(launch[name]) for name in ("m", "n", "k") if launch[name] is not None) or "several shapes"
    return f"launch {launch['launch']}: {launch['strategy']}, {counted(launch['batch_size'], 'command')} of {shape}"


def _bar(mode: str, track: str, what: str, start_ns: int, end_ns: int) -> Datum:
    return {"lane": f"{mode}: {track}", "track": track, "what": what, "start": start_ns, "end": end_ns}


def _chart(values: list[Datum], lanes: Sequence[str], end_us: float) -> Chart:
    """Return the chart of the window [t0, t1], which the page's script moves."""
    t0, t1 = alt.param("t0", value=-0.04 * end_us), alt.param("t1", value=1.04 * end_us)
    scale = alt.Scale(domainMin=alt.ExprRef("t0"), domainMax=alt.ExprRef("t1"), nice=False, zero=False)
    tracks = [track for track in (_WAIT, _TURN, _HOST, _GPU, _CPU) if any(value["track"] == track for value in values)]
    chart: Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(clip=True, height=18)
        .encode(
            x=alt.X("start:Q", scale=scale, title="time, us"),
            x2="end:Q",
            y=alt.Y(
                "lane:N",
                sort=list(lanes),
                title=None,
                scale=alt.Scale(domain=list(lanes)),
                axis=alt.Axis(labelLimit=190),
            ),
            color=alt.Color("track:N", scale=alt.Scale(domain=tracks), legend=None),
            opacity=alt.condition(
                f"datum.track == '{_WAIT}' || datum.track == '{_TURN}'", alt.value(0.2), alt.value(0.85)
            ),
            tooltip=[
                alt.Tooltip("lane:N"),
                alt.Tooltip("what:N"),
                alt.Tooltip("start:Q", title="from, us", format=",.3f"),
                alt.Tooltip("us:Q", title="for, us", format=",.3f"),
            ],
        )
        .add_params(t0, t1)
    )
    return chart
