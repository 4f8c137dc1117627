"""Waterfalls as text: a table per order, in sets of columns as in `tables.columns`.

In: `steps.Waterfall`. Out: Markdown, or cells for a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.stream_rows import counted, stream_subtitle, stream_title
from launchopt.analysis.tables.columns import ALL, COMPACT, FULL, NOTHING, Column, number
from launchopt.analysis.tables.markdown import body, escaped
from launchopt.analysis.waterfall.steps import Step, Waterfall

LEGEND = (
    "Each row adds one choice to the stack of the row above. Before, after: mean wall time of a step, which is one "
    "token of every request, without and with the choice. Brings: before - after, paired repeat by repeat, so that the "
    "rows add up to the whole; a negative value costs time. In []: its 95% interval (Student's t); below five repeats "
    "the range in (). Share: of the whole."
)
WHOLE = "whole"


def _share(step: Step) -> str:
    return NOTHING if step.share is None else f"{100 * step.share:.1f}%"


COLUMNS: Sequence[Column[Step]] = (
    Column("choice", lambda step: step.choice, ALL, is_text=True),
    Column("mode", lambda step: step.mode, FULL | COMPACT, is_text=True),
    Column("before us", lambda step: number(step.before_us), ALL),
    Column("after us", lambda step: number(step.after_us), ALL),
    Column("brings us", lambda step: str(step.brings).replace(" us", ""), ALL),
    Column("share", _share, ALL),
)


def waterfall_grid(one: Waterfall, kind: str) -> tuple[list[Column[Step]], list[list[str]]]:
    """Return the columns of a set, and the cells of every step and of the whole."""
    columns = [column for column in COLUMNS if kind in column.sets]
    cells = [[column.cell(step) for column in columns] for step in (*one.steps, one.whole)]
    cells[-1][0] = WHOLE
    return columns, cells


def waterfall_title(one: Waterfall) -> str:
    """Return the ends of an order, its number, and the repeats: `baseline to megakernel, order 1 of 2, 5 repeats`."""
    order = f", order {one.number} of {one.orders}" if one.orders > 1 else ""
    return f"{one.first} to {one.whole.mode}{order}, {counted(one.repeats, 'repeat')}"


def waterfall_sentence(one: Waterfall) -> str:
    """Return the whole and the two choices that bring most, in one or two sentences.

    A choice whose interval contains 0 is not named.
    """
    whole = one.whole
    start = f"From {number(whole.before_us)} to {number(whole.after_us)} {one.unit}: {whole.brings} in all."
    most = sorted(one.steps, key=lambda step: -step.brings.value)[:2]
    named = [f"{step.choice} {step.brings}" for step in most if step.brings.value > 0 and step.sign != 0]
    return f"{start} Most by {' and '.join(named)}." if named else start


def waterfall_notes(one: Waterfall) -> list[str]:
    """Return a line per reason for which arms are left out, and one on arms of which a repeat was far off."""
    modes: dict[str, list[str]] = {}
    for mode, reason in one.left_out.items():
        modes.setdefault(reason, []).append(mode)
    notes = [f"Left out: {', '.join(names)} ({reason})" for reason, names in modes.items()]
    far = [f"{mode} {ratio:.1f}x" for mode, ratio in one.outliers.items()]
    return [*notes, f"Slowest repeat over median: {', '.join(far)}. It moves the mean."] if far else notes


def waterfalls_markdown(found: Sequence[Waterfall], kind: str) -> str:
    """Return a table per order, `full` under a heading or `compact` for a page; ends with a newline."""
    parts = ["# Waterfall", LEGEND] if kind == "full" else [LEGEND]
    subject, runs = None, {one.stream["run_id"] for one in found}
    for one in found:
        title, subtitle = escaped(stream_title(one.stream)), escaped(stream_subtitle(one.stream))
        if subject != (key := (title, subtitle)):
            parts += [f"## {title}" if kind == "full" else f"**{title}**", subtitle]
            subject = key
        run = f"{one.stream['run_id']}: " if len(runs) > 1 else ""
        name = escaped(f"{run}{waterfall_title(one)}")
        parts += [f"### {name}" if kind == "full" else f"{name}:", escaped(waterfall_sentence(one))]
        parts.append(body(*waterfall_grid(one, kind)))
        if notes := waterfall_notes(one):
            parts.append("\n".join(f"- {escaped(note)}" for note in notes))
    return "\n\n".join(parts) + "\n"
