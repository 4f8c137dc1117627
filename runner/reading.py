"""Functions that the reading commands share: their parser, exit codes, and blocks of a page that they refresh."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from launchopt.errors import DataError, Interrupted, LaunchoptError
from launchopt.files import save_text


def command_parser(program: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m PROGRAM`.

    doc: the docstring of the program's module. Its first paragraph is the summary of --help, the rest the details.
    """
    summary, _, details = (doc or "").partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(program, None, summary, details, formatter_class=formatter)


def exit_code(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code. A LaunchoptError becomes one line on stderr and the error's exit code."""
    try:
        return work()
    except LaunchoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return Interrupted.exit_code


def read_page(page: Path) -> str:
    """Return the text of a page; DataError where it cannot be read."""
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DataError(page, None, f"cannot be read ({error})") from None


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
        print(f"{page}: out of date: run python -m {command}", file=sys.stderr)
    return 0 if is_current else 1
