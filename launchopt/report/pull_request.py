"""The report as a comment on a pull request: the verdict, one table, the environment folded away.

In: a `Source`. Out: Markdown of at most 60,000 bytes; GitHub takes 65,536 characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.tables.markdown import NUMBER, SHORT_LEGEND, TEXT, escaped, pipe_table
from launchopt.report.environment import environment
from launchopt.report.glance import HEADS, glances
from launchopt.report.source import Source
from launchopt.report.tiles import headline, title
from launchopt.report.warnings import warnings

MOST_BYTES = 60_000
MOST_ROWS = 12
_MOST_CHARACTERS = 600  # maximum length of one text; a status may be longer


def pull_request_markdown(source: Source) -> str:
    """Return the comment; ends with a newline. It gives the number of lines for which it has no space."""
    found, cautions = glances(source.tables), warnings(source)
    cells = [one.cells for one in found[:MOST_ROWS]]
    diagnoses = [f"- **{_short(one.title)}**: {_short(one.sentence)}" for one in source.diagnoses[:MOST_ROWS]]
    more = len(found) - len(cells)
    parts = [
        f"### {_short(title(source))}",
        _short(" ".join(headline(found))),
        *(
            ["\n>\n".join(f"> **{one.severity.capitalize()}:** {_short(one.text)}" for one in cautions)]
            if cautions
            else []
        ),
        *(["\n".join(diagnoses)] if diagnoses else []),
        _table(cells),
        *([f"{more} more streams of commands are in the HTML report."] if more > 0 else []),
        SHORT_LEGEND,
        _details(source),
    ]
    text = "\n\n".join(parts) + "\n"
    if len(text.encode("utf-8")) > MOST_BYTES:
        text = "\n\n".join([*parts[:-1], "The environment is too long for a comment; the HTML report has it."]) + "\n"
    return text


def _table(cells: Sequence[Sequence[str]]) -> str:
    headings = {head.text: TEXT if head.is_text else NUMBER for head in HEADS}
    return pipe_table(headings, ([_cut(cell) for cell in line] for line in cells))


def _details(source: Source) -> str:
    about = environment(source)
    runs = [[_cut(cell.text) for cell in row[:6]] for row in about.runs.rows[:MOST_ROWS]]
    more = len(about.runs.rows) - len(runs)
    lines = [f"- {_short(name)}: {_short(value)}" for name, value in about.machine]
    return "\n".join(
        [
            "<details><summary>Environment</summary>\n",
            *lines,
            "",
            pipe_table(dict.fromkeys((head.text for head in about.runs.heads[:6]), TEXT), runs),
            *([f"\n{more} more runs."] if more > 0 else []),
            "\n</details>",
        ]
    )


def _short(text: str) -> str:
    return escaped(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
