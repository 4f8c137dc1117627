"""Results of scripts/fuzz.py and scripts/limits.py as Markdown, for the page on reliability.

In: the content of fuzz.json and limits.json, with the types that `FUZZ` and `LIMITS` name. Out: paragraphs of Markdown.
This module reads no file; `runner.reliability` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from launchopt.analysis.tables.columns import FULL, NOTHING, Column, count, number
from launchopt.analysis.tables.markdown import NUMBER, TEXT, body, escaped, pipe_table
from launchopt.reading.shapes import ANY, Shape
from launchopt.recording.manifest import Manifest

_ORIGIN = {"started_utc": str, "processor": str, "environment": dict}  # its values may be null
FUZZ: Shape = {
    **_ORIGIN,
    **{"seed": int, "next": int, "tried": {ANY: int}, "started": {ANY: int}, "counts": {ANY: int}},
    "findings": [{"what": str, "number": int, "kind": str}],
}
_TEXTS = ("limit", "value", "command", "last_line", "not_tried")
LIMITS: Shape = {
    **_ORIGIN,
    "rows": [{**dict.fromkeys(_TEXTS, str), "exit_code": int, "seconds": float, "traceback": bool}],
}
NULLABLE = ("exit_code",)  # a command that hung, or that was not tried
MOST_NAMED = 20  # findings
REVISION_DIGITS = 12
FUZZ_LEGEND = (
    "Inputs of scripts/fuzz.py. folders: folders of results in which one to five files lie, each given to every "
    "command that reads results or files of a user. overrides, configs: words and config files, most of them invalid. "
    "Others: damaged files for one reader. Kinds of harm: traceback; hang; memory: 300 MiB more; outside: a file "
    "beside the folder changed; escape: a raw control or bidirectional character in the output; code: an exit code "
    "that the output contradicts; message: an error of more than one short line."
)
LIMITS_LEGEND = (
    "Commands of scripts/limits.py below limits of the system. Exit codes: 0, the command works; 1, it finished or "
    "reports a fault of the machine; 2, it refuses in one line; 141, the reader of its output went away."
)


def section(about: Manifest | None, shown: Callable[[Manifest], list[str]], command: str) -> list[str]:
    """Return the paragraphs of a file, and where it was made; or that there is none."""
    if about is None:
        return [f"Not measured: `{command}` does it."]
    facts = {
        "measured": f"started {about['started_utc']}",
        **place(about["processor"], about["environment"]),
    }
    return [*shown(about), "Where it ran:", facts_table(facts)]


def fuzz_markdown(about: Manifest) -> list[str]:
    """Return the paragraphs on hostile input."""
    harmed = {(each["what"], each["number"]) for each in about["findings"]}
    kinds = ", ".join(f"{times:,} {escaped(kind)}" for kind, times in about["counts"].items())
    tried = sum(about["tried"].values())
    rows = [
        [name, count(times), count(sum(what == name for what, _ in harmed)), _kinds(about["findings"], name)]
        for name, times in about["tried"].items()
    ]
    started = ", ".join(f"{escaped(name)} {times:,}" for name, times in sorted(about["started"].items()))
    named = [escaped(f"{each['what']} {each['number']}: {each['kind']}") for each in about["findings"][:MOST_NAMED]]
    return [
        f"**{tried:,} hostile inputs: {kinds}.** {FUZZ_LEGEND}",
        pipe_table({"input": TEXT, "tried": NUMBER, "did harm": NUMBER, "kinds": TEXT}, rows),
        f"Commands started: {started or NOTHING}.",
        *(
            [f"Findings: {'; '.join(named)}{', and more' if len(about['findings']) > MOST_NAMED else ''}."]
            if named
            else []
        ),
    ]


def _kinds(findings: Iterable[Mapping[str, Any]], name: str) -> str:
    kinds = Counter(each["kind"] for each in findings if each["what"] == name)
    return ", ".join(f"{kind} ({times:,})" for kind, times in sorted(kinds.items())) or NOTHING


def limits_markdown(about: Manifest) -> list[str]:
    """Return the paragraphs on limits of the system."""
    rows: Sequence[Mapping[str, Any]] = about["rows"]
    tried = [row for row in rows if not row["not_tried"]]
    faults = {
        "tracebacks": sum(row["traceback"] for row in tried),
        "hung": sum(row["exit_code"] is None for row in tried),
        "ended by a signal": sum((row["exit_code"] or 0) < 0 for row in tried),
    }
    skipped = f"; {len(rows) - len(tried):,} not tried" if len(tried) < len(rows) else ""
    found = ", ".join(f"{times:,} {name}" for name, times in faults.items())
    headings = {
        "limit": TEXT,
        "value": TEXT,
        "command": TEXT,
        "exit code": NUMBER,
        "traceback": TEXT,
        "seconds": NUMBER,
    }
    return [
        f"**{len(tried):,} commands below a limit: {found}{skipped}.** {LIMITS_LEGEND}",
        pipe_table({**headings, "last line on standard error": TEXT}, map(_limit_cells, rows)),
    ]


def _limit_cells(row: Mapping[str, Any]) -> list[str]:
    where = [row["limit"], row["value"], row["command"]]
    if row["not_tried"]:
        return [*where, NOTHING, NOTHING, NOTHING, f"not tried: {row['not_tried']}"]
    code = "none: hung" if row["exit_code"] is None else str(row["exit_code"])
    return [*where, code, "yes" if row["traceback"] else "no", number(row["seconds"]), row["last_line"] or NOTHING]


def facts_table(facts: Mapping[str, str]) -> str:
    """Return a table of two columns."""
    heads: list[Column[str]] = [Column(name, str, FULL, is_text=True) for name in ("what", "which")]
    return body(heads, facts.items())


def place(processor: str, environment: Manifest) -> dict[str, str]:
    """Return machine and revision."""
    memory_bytes = environment.get("memory_bytes")
    cores = f"{environment.get('cores') or NOTHING} cores"
    memory = "" if memory_bytes is None else f", {memory_bytes / 1e9:,.1f} GB of memory"
    kind = f" ({environment['processor']})" if environment.get("processor") else ""
    return {
        "host": f"{environment.get('platform') or NOTHING}, Python {environment.get('python') or NOTHING}",
        "processor": f"{f'{processor}{kind}; ' if processor else ''}{cores} to use{memory}",
        "revision": _revision(environment),
    }


def _revision(environment: Manifest) -> str:
    revision = str(environment.get("git_revision") or NOTHING)[:REVISION_DIGITS]
    states = {"True": "with changes that were not committed", "False": "as committed"}
    return f"{revision}, {states.get(str(environment.get('git_dirty')), 'unknown whether it was changed')}"
