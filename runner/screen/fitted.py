"""Output on a terminal: a console for any text, and a table that fits the width it is drawn in.

`FittedTable` wraps texts between words. If its columns are still too wide, it leaves out those that matter least and
names them below the table. If the others do not fit either, each row becomes a block with a line for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from launchopt.errors import printable

LABEL_WIDTH = 24  # a column of texts becomes no narrower than this, unless its texts are shorter
HEADING_WIDTH = 14  # a column of numbers becomes no wider for its heading, which is wrapped
LONGEST_WORD = 40  # a longer one is the name of a kernel or a file, and is folded


class SafeConsole(Console):
    """A console that escapes control characters of every text. A name in a file could move the cursor with them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable. Rich's own styles are no part of their texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its heading, and how its cells are treated."""

    text: str
    is_text: bool = False  # True: wrapped between words and flush left; False: a number, always whole
    drops: int = 0  # 0: always shown; else the order in which columns are left out, 1 first


@dataclass(slots=True)
class FittedTable:
    """A renderable of rich. `rows` have a cell for each heading."""

    headings: Sequence[Heading]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        """Escape control characters first: they have no width, so the columns would be too narrow for them."""
        self.headings = [replace(each, text=printable(each.text)) for each in self.headings]
        self.rows = [list(map(printable, row)) for row in self.rows]
        self.title, self.caption = printable(self.title), printable(self.caption)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield title, table, caption and the names of the columns that are left out."""
        if self.title:
            yield Text(self.title, style="bold")
        shown = self._fitting(options.max_width)
        if shown is None:
            yield from self._blocks()
        else:
            yield self._table(shown, options.max_width)
        if self.caption:
            yield Text(self.caption, style="dim")
        left_out = [each.text for index, each in enumerate(self.headings) if shown is not None and index not in shown]
        if left_out:
            yield Text(f"A wider terminal also shows: {', '.join(left_out)}.", style="dim")

    def _fitting(self, width: int) -> list[int] | None:
        """Return the indices of the columns that fit into `width`; None if those always shown do not fit."""
        shown = list(range(len(self.headings)))
        while _table_width(map(self._minimum, shown)) > width:
            droppable = [each for each in shown if self.headings[each].drops]
            if not droppable:
                return None
            shown.remove(min(droppable, key=lambda each: self.headings[each].drops))
        return shown

    def _minimum_width(self) -> int:
        return _table_width(map(self._minimum, range(len(self.headings))))

    def _cells(self, column: int) -> list[str]:
        return [row[column] for row in self.rows]

    def _minimum(self, column: int) -> int:
        """Return the width below which a number or a word of the column would be cut."""
        heading, cells = self.headings[column], self._cells(column)
        head = _longest_word([heading.text])
        if not heading.is_text:
            return max([head, *map(cell_len, cells)])
        return max(head, _longest_word(cells), min(LABEL_WIDTH, max(map(cell_len, cells), default=0)))

    def _natural(self, column: int) -> int:
        heading, cells = self.headings[column], [cell_len(cell) for cell in self._cells(column)]
        return max([cell_len(heading.text) if heading.is_text else min(HEADING_WIDTH, cell_len(heading.text)), *cells])

    def _table(self, shown: Sequence[int], width: int) -> Table:
        widths = [self._minimum(each) for each in shown]
        spare = width - _table_width(widths)
        for index, each in enumerate(shown):
            more = min(spare, max(0, self._natural(each) - widths[index]))
            widths[index] += more
            spare -= more
        table = Table(box=box.SIMPLE_HEAD)
        for each, wide in zip(shown, widths, strict=True):
            head = self.headings[each]
            table.add_column(Text(head.text), justify="left" if head.is_text else "right", width=wide, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(row[each]) for each in shown))
        return table

    def _blocks(self) -> Iterator[RenderableType]:
        """Yield a block for each row: its first cell, and below it a line for each other column."""
        for row in self.rows:
            yield Text(row[0], style="bold")
            for heading, cell in zip(self.headings[1:], row[1:], strict=True):
                yield Padding(Text(f"{heading.text}: {cell}"), (0, 0, 0, 2), expand=False)
        yield Text()


def in_groups(
    first: Heading, others: Sequence[Heading], rows: Sequence[Sequence[str]], width: int
) -> list[FittedTable]:
    """Return tables that fit into `width`, each with the first column and with as many of the others as fit."""
    groups: list[list[int]] = [[]]
    for index in range(1, len(others) + 1):
        wider = _chosen(first, others, rows, [*groups[-1], index])
        if groups[-1] and wider._minimum_width() > width:
            groups.append([])
        groups[-1].append(index)
    return [_chosen(first, others, rows, group) for group in groups]


def _chosen(
    first: Heading, others: Sequence[Heading], rows: Sequence[Sequence[str]], group: Sequence[int]
) -> FittedTable:
    headings = [first, *(others[index - 1] for index in group)]
    return FittedTable(headings, [[row[0], *(row[index] for index in group)] for row in rows])


def _table_width(widths: Iterable[int]) -> int:
    """Return the width of a table of box.SIMPLE_HEAD, which puts a blank before and two after each column."""
    found = list(widths)
    return sum(found) + 3 * len(found) + 1


def _longest_word(texts: Iterable[str]) -> int:
    return min(LONGEST_WORD, max((cell_len(word) for text in texts for word in text.split()), default=0))
