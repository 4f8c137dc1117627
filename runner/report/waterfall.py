"""The waterfalls of folders: read, printed, and written as Markdown, JSON and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launchopt.analysis.waterfall.markdown import waterfalls_markdown
from launchopt.analysis.waterfall.steps import Waterfall, build_waterfalls, orders_of, waterfalls_json
from launchopt.errors import DataError
from launchopt.recording import results
from runner.output_names import STDOUT
from runner.provenance import sentences
from runner.reading import put_json
from runner.report.page import DEFAULT_FILES, publish
from runner.report.pictures import draw_waterfalls
from runner.report.screen import print_waterfalls
from runner.report.tables import folder_of

FILE = DEFAULT_FILES["waterfall"]


def waterfall(folders: Sequence[Path], output: Path | None, plot: Path | None, as_json: Path | None) -> None:
    """Print what each choice brings in the runs of `folders`; write Markdown, and a picture and JSON where asked for.

    as_json: STDOUT prints JSON instead. Raises DataError if no run has a waterfall, or for a file that cannot
    be read or written.
    """
    found = read_waterfalls(folders)
    if as_json != STDOUT:
        shown = f"{waterfalls_markdown(found, 'full')}\n{sentences.line(folders)}"
        publish(shown, output or folder_of(folders[0]) / FILE, lambda screen: print_waterfalls(found, screen))
    put_json(as_json, waterfalls_json(found))
    if plot is not None:
        draw_waterfalls(found, plot)


def read_waterfalls(folders: Sequence[Path]) -> list[Waterfall]:
    """Return the waterfalls of folders; DataError if there is none."""
    rows = results.read_summaries(folders)
    manifests = results.read_manifests(folders)
    orders = orders_of(manifests)
    refusals = {str(each.get("run_id")): each.get("refused") or {} for each in manifests}
    found = build_waterfalls(rows, orders, refusals) if orders else []
    if not found:
        raise DataError(
            folders[0],
            None,
            "no waterfall: no untraced run has the same repeats of two verified modes of waterfall=[[...]]",
        )
    return found


def is_waterfall(folder: Path) -> bool:
    """Return whether a run in the folder has a waterfall."""
    return bool(orders_of(results.read_manifests([folder])))


def compact(folder: Path) -> str:
    """Return the waterfalls of a folder for a page."""
    return waterfalls_markdown(read_waterfalls([folder]), "compact")
