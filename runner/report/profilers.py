"""Cost of profilers, from a folder of runs under each of them, and their agreement with this project.

In: runs below the folder, untraced, with timing=cupti or timing=torch, or under nsys; at any depth `agree_*.parquet`,
as `runner.nsys_agree --output` writes it. Out: Markdown, for a page.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.analysis.profiles.overheads import overheads_markdown
from launchopt.errors import DataError
from launchopt.recording import results

AGREEMENTS = "agree_*.parquet"


def markdown(folder: Path) -> str:
    """Return the tables of profiler costs and of agreements, as Markdown. Raise DataError for an unreadable file."""
    timing = {each["run_id"]: each["config"]["timing"]["kind"] for each in results.read_manifests([folder])}
    agreements: list[results.Row] = []
    for path in sorted(folder.rglob(AGREEMENTS)):
        try:
            agreements += pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise DataError(path, None, f"cannot be read as Parquet ({error})") from None
    return overheads_markdown(results.read_summaries([folder]), timing, agreements)
