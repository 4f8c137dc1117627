"""The commands that the README and the pages of docs/ show.

A fence of the language `bash` holds commands, one per line. A comment in the first line names what the commands need,
or how long they take; tests do not run such commands. All other commands run.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.commands import main as launchopt
from support.paths import ROOT
from support.processes.ended_runs import Keeper, Ran

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w./-]+\.(?:yaml|csv|json))`[^`]*?:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page. `mark`: what it needs or how long it takes; empty if it runs in a test."""

    page: Path
    text: str
    mark: str

    @property
    def words(self) -> list[str]:
        """The words after `launchopt` or `python -m runner`; empty for another program."""
        words = shlex.split(self.text)
        if Path(words[0]).name == "launchopt":
            return words[1:]
        return ["run", *words[3:]] if words[1:3] == ["-m", "runner"] else []


def commands_of(page: Path) -> Iterator[Command]:
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "bash":
            first, _, rest = body.partition("\n")
            mark = first.removeprefix("# ") if first.startswith("# ") else ""
            for line in (rest if mark else body).replace("\\\n", " ").splitlines():
                # One line may chain commands: each is one of its own.
                yield from (Command(page, text.strip(), mark) for text in line.split(" && "))


def files_of(page: Path) -> dict[str, str]:
    """The files that a page shows, by the path that it names before them."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


class PagesFolder:
    """A folder with the files that the pages show, in which each of their commands runs once."""

    def __init__(self, folder: Path, keeper: Keeper) -> None:
        self.folder = folder
        self._keeper = keeper
        self._ended: dict[str, Ran] = {}
        for page in PAGES:
            for name, text in files_of(page).items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def run(self, command: Command) -> Ran:
        """Run a command of launchopt, after the commands before it on its page."""
        for each in commands_of(command.page):
            if each.words and not each.mark and each.text not in self._ended:
                self._ended[each.text] = self._call(each.words)
            if each == command:
                break
        return self._ended[command.text]

    def _call(self, words: list[str]) -> Ran:
        tool, *arguments = words
        if tool == "run":
            return self._keeper.run(" ".join(arguments), self.folder)
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = launchopt(words)
        return Ran(code, out.getvalue(), err.getvalue(), self.folder)
