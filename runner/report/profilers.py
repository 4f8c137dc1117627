"""Cost of profilers, from a folder of runs under each of them, and their agreement with this project.

In: runs below the folder, untraced, with timing=cupti or timing=torch, or under nsys; at any depth `agree_*.parquet`,
as `runner.nsys_agree --output` writes it. Out: Markdown, for a page.
"""

from __future__ import annotations

from pathlib import Path

from launchopt.analysis.profiles.overheads import overheads_markdown
from launchopt.reading.parquet import read_all
from launchopt.recording import results
from launchopt.recording.manifest import Manifest

AGREEMENTS = "agree_*.parquet"


def markdown(folder: Path) -> str:
    """Return the tables of profiler costs and of agreements, as Markdown. Raise DataError for an unreadable file."""
    manifests = results.read_manifests([folder])
    timing = {str(each.get("run_id")): _timing(each) for each in manifests}
    agreements: list[results.Row] = []
    for path in sorted(folder.rglob(AGREEMENTS)):
        agreements += read_all(path).to_pylist()
    return overheads_markdown(results.read_summaries([folder]), timing, agreements)


def _timing(manifest: Manifest) -> str:
    """Return the option of `timing` that a run had; empty if its manifest does not say."""
    config = manifest.get("config") or {}
    return str((config.get("timing") or {}).get("kind") or "")
