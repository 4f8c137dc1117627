"""The fastest mode for each number of requests, as a table of a page.

In: which_strategy.json, `{"runs": [{"requests", "run", "bases"}, ...], "notes": [...]}`. `run` is a folder, relative to
that file, with several modes in turn on the same commands. The fastest mode is compared with the second fastest and
with `bases`. `notes` are sentences for below the table. Out: Markdown.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from launchopt.analysis.stream_rows import counted, number_types
from launchopt.analysis.tables.columns import three_digits
from launchopt.analysis.tables.markdown import plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording import results
from launchopt.recording.results import Row

FILE = "which_strategy.json"
LEGEND = (
    "Fastest: the mode with the smallest median wall time of all modes in the run. Factor: median wall time of another "
    "mode / that of the fastest; in brackets the smallest and the largest factor of one repeat. The first one is over "
    "the second fastest mode. TPOT leaves out the first token; it stands where it differs by more than 1%. Tokens per "
    "s: of all requests; compare them within a row only, since runs differ in "
    "tokens a request, and can differ in revision and timing."
)
Modes = Mapping[str, Sequence[Row]]  # the rows of each mode of a run, by repeat
SAME = 0.01  # largest difference between factors in wall time and in TPOT that is not shown
NO_BREAK = "\u00a0"  # a space at which a cell does not wrap
_HEADINGS = {"requests": "---:", "work": "---", "fastest": "---", "tokens per s": "---:", "factor over": "---"}
_HEADINGS |= {"modes, repeats": "---:", "from": "---"}


def markdown(path: Path) -> str:
    """Return legend, table and notes; DataError for a file without runs, or for a run with a wrong output."""
    try:
        content = read_json(path)
        runs = sorted(content["runs"], key=lambda each: int(each["requests"]))
        lines = [_cells(path.parent, run) for run in runs]
        notes = [f"- {note}" for note in content.get("notes", [])]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of runs ({type(error).__name__}: {error})") from None
    table = f"{LEGEND}\n\n{plain(_HEADINGS, lines)}"
    return "\n".join([table, *notes, ""]) if notes else table


def _cells(folder: Path, run: JsonObject) -> list[str]:
    modes = modes_of(folder / run["run"], run["requests"])
    order = sorted(modes, key=lambda mode: _median_ms(modes[mode]))
    first = modes[order[0]]
    bases = [mode for mode in order[1:] if mode in (order[1], *run["bases"])]
    return [
        str(run["requests"]),
        _work(first[0]),
        f"**{order[0]}**{_fastest_by_tpot(modes, order[0])}",
        f"{statistics.median(1e3 * row['tokens'] / row['wall_ms'] for row in first):,.0f}",
        "<br>".join(
            f"{_factor(modes[base], first)} {base}{beside([(modes[base], first)])}".replace(" ", NO_BREAK)
            for base in bases
        ),
        f"{len(modes)}, {len(first)}",
        str(run["run"]),
    ]


def modes_of(folder: Path, requests: int | None = None) -> Modes:
    """Return the untraced rows of each mode, by repeat.

    requests: None: any number. Raises DataError unless all are verified, kept their order, and have that number of
    requests. Independent commands have no order to keep.
    """
    modes: dict[str, list[Row]] = {}
    for row in results.read_summaries([folder]):
        if row["traced"]:
            continue
        keeps_order = row["ordering"] == "per_request" or row["independent"]
        if row["status"] != "ok" or row["verified"] is not True or not keeps_order:
            raise DataError(folder, None, f"mode {row['mode']}: failed, not verified, or without order")
        if requests is not None and row["requests"] != requests:
            raise DataError(folder, None, f"{row['requests']} requests, not {requests}")
        modes.setdefault(str(row["mode"]), []).append(row)
    if len(modes) < 2:
        raise DataError(folder, None, "fewer than two modes")
    return {mode: sorted(rows, key=lambda row: int(row["repeat"])) for mode, rows in modes.items()}


def _median_ms(rows: Sequence[Row]) -> float:
    return statistics.median(float(row["wall_ms"]) for row in rows)


def factor_of(base: Sequence[Row], mode: Sequence[Row]) -> float:
    """Return median wall time of `base` / that of `mode`."""
    return _median_ms(base) / _median_ms(mode)


def tpot_factor(base: Sequence[Row], mode: Sequence[Row]) -> float | None:
    """Return the same of the median TPOT; None where a repeat has none."""
    ours, theirs = _tpot_ms(mode), _tpot_ms(base)
    return theirs / ours if ours and theirs else None


def beside(pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]]) -> str:
    """Return the factors in TPOT of bases and modes, smallest to largest, where one is not the factor in wall time."""
    factors = [found for pair in pairs if (found := tpot_factor(*pair))]
    if len(factors) < len(pairs) or all(
        abs(factor / factor_of(*pair) - 1) <= SAME for factor, pair in zip(factors, pairs, strict=True)
    ):
        return ""
    return f"; TPOT {' to '.join(dict.fromkeys(f'{three_digits(factor)}x' for factor in (min(factors), max(factors))))}"


def _tpot_ms(rows: Sequence[Row]) -> float | None:
    values = [row["tpot_p50_ms"] for row in rows]
    return None if None in values else statistics.median(values)


def _fastest_by_tpot(modes: Modes, fastest: str) -> str:
    """Return which mode has the smallest TPOT, where it is another one by more than SAME."""
    found = {mode: time for mode, rows in modes.items() if (time := _tpot_ms(rows))}
    best = min(found, key=lambda mode: found[mode], default=fastest)
    is_other = best != fastest and fastest in found and found[best] < found[fastest] * (1 - SAME)
    return f"<br>TPOT: {best}" if is_other else ""


def _factor(base: Sequence[Row], fastest: Sequence[Row]) -> str:
    """Return the factor between two modes and its spread; modes of a repeat ran one after the other."""
    each = [one["wall_ms"] / other["wall_ms"] for one, other in zip(base, fastest, strict=True)]
    low, factor, high = map(three_digits, (min(each), factor_of(base, fastest), max(each)))
    return f"{factor}x ({low} to {high})"


def _work(row: Row) -> str:
    each = int(row["tokens"]) // int(row["requests"])
    sampling = "" if row["sampling"] in (None, "none") else f", sampling={row['sampling']}"
    ahead = ", steps ahead" if "ahead" in str(row["scheduler"]) else ""
    work = f"{row['workload']} {number_types(row)}, model={row['model']}, {row['layers']} layers"
    return f"{work}, {counted(each, 'token')} a request{sampling}{ahead}"
