"""A table in Markdown, from headings with their rules and rows of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launchopt.analysis.tables.markdown import escaped

TEXT, NUMBER = "---", "---:"  # rules of a column: to the left, to the right


def pipe_table(headings: Mapping[str, str], rows: Iterable[Sequence[str]]) -> str:
    """The table; no newline at its end."""
    lines = [list(headings), list(headings.values()), *(map(escaped, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
