"""Functions that the reading commands share: their parser, exit codes, and blocks of a page that they refresh.

Types of numbers stand at the end. The error for a refused value names what is allowed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from launchopt.errors import DataError, LaunchoptError, explained, nearest, one_line
from launchopt.files import read_text, reason, save_json, save_text
from launchopt.messages import print_error, shortened
from launchopt.reading.unusable import forget, was_named
from runner.ending.signals import signals
from runner.output_names import STDOUT, clash, file_named

LEFT_OUT = "some results cannot be used and were left out: the warnings name them"


class CommandParser(argparse.ArgumentParser):
    """The parser of `launchopt NAME`.

    doc: the docstring of the program's module. Its first paragraph is the summary of --help, the rest the details.
    """

    def __init__(self, name: str, doc: str | None) -> None:
        summary, _, details = (doc or "").partition("\n\n")
        super().__init__(program(name), None, summary, details, formatter_class=argparse.RawDescriptionHelpFormatter)
        examples = [part for part in details.split("\n\n") if part.startswith("    ")]
        self._brief = "\n\n".join([summary, *examples])
        self.register("type", Path, _path)

    def parsed(self, words: Sequence[str] | None, *, needs_words: bool = True) -> argparse.Namespace:
        """Return the options in `words`, by default those of the process.

        Without words, where some are needed, the process ends with code 2 after the brief help on standard error.
        """
        given = sys.argv[1:] if words is None else list(words)
        if needs_words and not given:
            help_line = f"`{self.prog} --help` explains every option."
            self.exit(DataError.exit_code, f"{self.format_usage()}\n{self._brief}\n\n{help_line}\n")
        self._check_options(given)
        options, others = self.parse_known_args(given)
        if others:
            self.error(explained(f"{' '.join(others)}: not expected here", "", self._options_near(others[0])))
        if (mistake := clash(self._actions, options)) is not None:
            self.error(mistake)
        return options

    def option_names(self) -> list[str]:
        """Return the long options: `--json`, `--help`."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """End the process with code 2, after the mistake and one line of usage on standard error."""
        text = message.removeprefix("argument ").replace("the following arguments are required", "missing")
        words = self._get_formatter()
        words.add_usage(None, self._get_positional_actions(), [], "")
        usage = " ".join([f"usage: {self.prog} [OPTION ...]", *words.format_help().split()[len(self.prog.split()) :]])
        self.exit(
            DataError.exit_code, f"{shortened(f'error: {one_line(text)}')}\n{usage}; --help explains every option\n"
        )

    def _check_options(self, words: Sequence[str]) -> None:
        """End the process with code 2 at an unknown option, for which argparse would not propose a known one."""
        actions = self._actions
        if any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in actions):
            return
        known = [name for action in actions for name in action.option_strings]
        for word in words:
            name = word.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and not any(each.startswith(name) for each in known):
                allowed = ", ".join(sorted(each for each in known if each.startswith("--")))
                self.error(explained(f"{name}: no such option", allowed, self._options_near(name)))

    def _options_near(self, name: str) -> list[str]:
        options = [each for action in self._actions for each in action.option_strings if each.startswith("--")]
        return nearest(name, options)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is none of an option's choices, and name the nearest."""
        if action.choices is not None and value not in action.choices:
            allowed = [str(each) for each in action.choices if each != []]
            problem = f"{value}: not one of its values"
            raise argparse.ArgumentError(action, explained(problem, ", ".join(allowed), nearest(str(value), allowed)))


def _path(text: str) -> Path:
    """Return a path. Raises ArgumentTypeError for an empty one, which `Path` takes for the current folder."""
    if not text:
        raise ArgumentTypeError("empty; must name a file or a folder")
    return Path(text)


JSON_VERSION = 1  # raised when a key of any --json is renamed or removed


def add_json(parser: CommandParser) -> None:
    """Add --json, which is the same for every subcommand that has it."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        type=file_named(".json", is_optional=True),
        metavar="FILE.json",
        help="print JSON and nothing else; with FILE.json write it there, beside the usual output",
    )


def put_json(target: Path | None, content: Mapping[str, object]) -> None:
    """Print `content` as JSON, or write it to a file; nothing for None."""
    if target is None:
        return
    whole = {"schema_version": JSON_VERSION, **content}
    if target == STDOUT:
        print(json.dumps(whole, indent=2))
    else:
        save_json(target, whole)


def program(name: str) -> str:
    """Return the words that call a subcommand, as the user typed them."""
    called = Path(sys.argv[0])
    if called.parent.name == "scripts":
        return f"python scripts/{called.name}"
    if called.name == "__main__.py" and called.parent.name == "runner":
        return f"python -m runner {name}"
    return f"python -m runner.{name}" if "runner" in called.parts[-3:-1] else f"launchopt {name}"


def exit_code(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code. A LaunchoptError becomes one line on stderr and the error's exit code.

    Where `work` returns 0 and left out results that cannot be used, a line says so, and the code is a DataError's.
    """
    forget()
    try:
        code = work()
        if code == 0 and was_named():
            print_error(LEFT_OUT)
            return DataError.exit_code
        return code
    except LaunchoptError as error:
        signals.check_lost()
        print_error(error)
        return error.exit_code


def read_page(page: Path) -> str:
    """Return the text of a page; DataError if it cannot be read."""
    try:
        return read_text(page)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or too long
        raise DataError(page, None, f"cannot be read ({reason(error)})") from None


def sync_block(page: Path, name: str, text: str, *, check: bool) -> bool:
    """Put `text` between `<!-- NAME -->` and `<!-- /NAME -->` of `page`; with `check` only compare.

    Returns whether the block holds `text` afterwards. Raises DataError for a page without the block.
    """
    old = read_page(page)
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not block.search(old):
        raise DataError(page, None, f"has no <!-- {name} --> with a <!-- /{name} --> after it")
    new = block.sub(lambda match: match[1] + text + match[2], old)
    return save_page(page, old, new, check=check)


def save_page(page: Path, old: str, new: str, *, check: bool) -> bool:
    """Write `new` if it differs from `old`, unless `check`. Return whether the page holds `new` afterwards."""
    if new != old and not check:
        save_text(page, new)
    return new == old or not check


def page_code(page: Path, is_current: bool, command: str) -> int:
    """Return 0 for a current page; else 1, after a line on stderr that names the command to refresh it."""
    if not is_current:
        print(one_line(f"{page}: out of date: run launchopt {command}"), file=sys.stderr)
    return 0 if is_current else 1


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a type of whole numbers from `low` to `high`."""
    allowed = f"must be a whole number {f'of at least {low}' if high is None else f'from {low} to {high}'}"

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise ArgumentTypeError(f"{text}: {allowed}")
        return value

    return number


def positive(text: str) -> float:
    """Return a number above 0. Raises ArgumentTypeError for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and value > 0):
        raise ArgumentTypeError(f"{text}: must be a number above 0")
    return value
