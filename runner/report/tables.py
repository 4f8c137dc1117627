"""The reports of folders with results: tables of modes, frontiers, and strategies side by side.

In: folders with runs. Out: tables on the screen, their Markdown, and pictures and JSON where asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from launchopt.analysis.frontier.markdown import frontier_markdown
from launchopt.analysis.frontier.points import HISTOGRAMS_USED, Frontier, build_frontiers
from launchopt.analysis.stream_rows import counted
from launchopt.analysis.tables.as_json import tables_json
from launchopt.analysis.tables.markdown import report_markdown
from launchopt.analysis.tables.rows import build_tables, own_bases
from launchopt.analysis.tables.strategies import StrategyTable, build_strategies
from launchopt.analysis.tables.strategies_markdown import strategies_markdown
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json, save_text
from launchopt.reading.ownership import MANIFEST, SWEEP
from launchopt.recording import results
from runner.output_names import STDOUT
from runner.provenance import sentences
from runner.reading import positive, put_json
from runner.report.page import publish
from runner.report.pictures import draw_frontiers, draw_speedups, draw_strategies
from runner.report.screen import print_frontiers, print_strategies, print_tables

FRONTIER_FILE = "frontier.json"
STRATEGIES_FILE = "strategies.md"
INTERRUPTED = ("interrupted", "killed")  # status of a run that ended before its last repeat


def report(
    folders: Sequence[Path], output: Path | None = None, plot: Path | None = None, as_json: Path | None = None
) -> None:
    """Print the tables of `folders`, write their Markdown, and a plot and JSON where asked for.

    as_json: STDOUT prints JSON instead of the tables. Raises DataError for folders that cannot be read and files that
    cannot be written.
    """
    rows = results.read_summaries(folders)
    tables = build_tables(rows, own_bases(results.read_manifests(folders)))
    if as_json != STDOUT:
        shown, piped = (report_markdown(tables, kind) for kind in ("full", "piped"))
        path = output or folder_of(folders[0]) / "report.md"
        publish(shown, path, lambda screen: print_tables(tables, screen), piped)
    put_json(as_json, tables_json(tables))
    if plot is not None:
        draw_speedups(tables, plot)


def frontier(
    folders: Sequence[Path], slo_p99_us: float | None = None, output: Path | None = None, plot: Path | None = None
) -> None:
    """Print the frontiers of `folders`; write their Markdown, the objective, and a plot where asked for.

    Without an objective, that of the first folder's frontier.json holds. A new one is saved there, unless `output`
    keeps the folder unchanged. Raises DataError as `report` does.
    """
    kept = folder_of(folders[0]) / FRONTIER_FILE
    slo_p99_us = slo_p99_us or kept_slo(kept)
    frontiers = frontiers_of(folders, slo_p99_us)
    shown = f"{frontier_markdown(frontiers, 'full')}\n{sentences.line(folders)}"
    publish(shown, output or kept.with_name("frontier.md"), lambda screen: print_frontiers(frontiers, screen))
    if slo_p99_us is not None and output is None:
        save_text(kept, json.dumps({"slo_p99_us": slo_p99_us}) + "\n")
    if plot is not None:
        draw_frontiers(frontiers, plot)


def strategies(folders: Sequence[Path], output: Path | None = None, plot: Path | None = None) -> None:
    """Print a table of all modes per workload of `folders`; write their Markdown, and a plot where asked for.

    Raises DataError as `report` does.
    """
    tables = strategy_tables(folders)
    shown = f"{strategies_markdown(tables, 'full')}\n{sentences.line(folders)}"
    publish(shown, output or folder_of(folders[0]) / STRATEGIES_FILE, lambda screen: print_strategies(tables, screen))
    if plot is not None:
        draw_strategies(tables, plot)


def strategy_tables(folders: Sequence[Path]) -> list[StrategyTable]:
    """Return the tables of all modes per workload; DataError if no run is untraced."""
    manifests = results.read_manifests(folders)
    refusals = {str(each.get("run_id")): each.get("refused") or {} for each in manifests}
    tables = build_strategies(results.read_summaries(folders), refusals, own_bases(manifests))
    if not tables:
        raise DataError(folders[0], None, "no untraced run: the times of a traced one decide nothing")
    return tables


def frontiers_of(folders: Sequence[Path], slo_p99_us: float | None) -> list[Frontier]:
    """Return the frontiers of folders; DataError if no run is untraced."""
    rows, histograms = results.read_summaries(folders), results.read_histograms(folders, HISTOGRAMS_USED)
    frontiers = build_frontiers(rows, histograms, slo_p99_us)
    if not frontiers:
        raise DataError(folders[0], None, "no untraced run: the times of a traced one decide nothing")
    return frontiers


def unfinished(folders: Sequence[Path]) -> list[str]:
    """Return a line for each run that was interrupted, and for each sweep with jobs that did not run."""
    found: list[str] = []
    for path in sorted(path for folder in folders for path in folder.rglob(MANIFEST)):
        about: JsonObject = _readable(path)
        if about.get("status") in INTERRUPTED:
            found.append(f"{path.parent}: {about['status']} after {counted(about.get('repeats_done') or 0, 'repeat')}")
    for path in sorted(path for folder in folders for path in folder.rglob(SWEEP)):
        counts = _readable(path).get("counts")
        if isinstance(counts, dict) and counts.get("not run"):
            found.append(f"{path.parent}: {counted(counts['not run'], 'job')} not run (resume=true runs them)")
    return found


def _readable(path: Path) -> JsonObject:
    """Return the content of a file; nothing if it cannot be read: the reader of results names such files."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def folder_of(path: Path) -> Path:
    """Return a folder, or that of a file."""
    return path if path.is_dir() else path.parent


def kept_slo(path: Path) -> float | None:
    """Return the objective that is saved in a file, in us; None if there is no file."""
    return read_slo(path) if path.is_file() else None


def read_slo(path: Path) -> float | None:
    """Return the objective in a file, in us; DataError if it is none."""
    try:
        slo_p99_us = read_json(path)["slo_p99_us"]
        return None if slo_p99_us is None else positive(str(slo_p99_us))
    except (OSError, ValueError, TypeError, KeyError, argparse.ArgumentTypeError) as error:
        raise DataError(path, None, f'not an objective like {{"slo_p99_us": 500}} ({error})') from None
