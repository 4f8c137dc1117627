"""Names of streams of commands that differ from each other, for headings and links.

In: a row per stream. Out: `decode fp16, llama_3_8b, 720,896 commands of 200 requests`, with the settings that
distinguish streams of one name.
"""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.stream_rows import arrivals, counted, gpus_of, number_types
from launchopt.recording.results import Row

# Settings that distinguish streams, in the order in which they are tried, with their text.
_DISTINGUISHING = (
    *(("scheduler", "scheduler {}"), ("sampling", "sampling {}"), ("cache", "{} cache"), ("layers", "{} layers")),
    *(
        ("requests", "{:,} requests"),
        ("gpu", "{}"),
        ("gpus", "{} GPUs"),
        ("tensor", "split over {}"),
        ("device", "{}"),
        ("shapes", "shapes {}"),
    ),
)


def stream_names(rows: Sequence[Row]) -> list[str]:
    """Return a different name per stream."""
    names = [_name(row) for row in rows]
    for column, text in _DISTINGUISHING:
        for members in _groups(names):
            if len({rows[at][column] for at in members}) > 1:
                for at in members:
                    value = rows[at][column]
                    names[at] += ", " + (f"no {column}" if value is None else text.format(value))
    for members in _groups(names):
        for number, at in enumerate(members, 1):
            names[at] += f" ({number})"
    return names


def _groups(names: Sequence[str]) -> list[list[int]]:
    """Return the places of each name that occurs more than once."""
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(name, []).append(at)
    return [members for members in places.values() if len(members) > 1]


def _name(row: Row) -> str:
    requests = "" if row["tokens"] is None else f" of {counted(row['requests'], 'request')}"
    parts = [f"{row['workload']} {number_types(row)}", *([str(row["model"])] if row["model"] else [])]
    parts += [counted(row["commands"], "command") + requests]
    parts += gpus_of(row)
    parts += [arrivals(row)] if row["arrival"] != "closed" else []
    return ", ".join(parts) + (" (traced)" if row["traced"] else "")
