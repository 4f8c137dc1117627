"""Opens a page of a report in headless Chromium, and records what it must not have: messages, dialogs, requests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launchopt.distribution import install_command
from scripts.reference_pictures import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = chromium()
MODULES = ("playwright", "axe_playwright_python", "altair", "vl_convert", "jinja2")
LACKING = [name for name in MODULES if find_spec(name) is None]
HOW = [
    *([f"{', '.join(LACKING)} not installed: {install_command('dev')}"] if LACKING else []),
    *([] if CHROMIUM else ["no Chromium on the path: apt install chromium"]),
]
needs_browser = pytest.mark.skipif(bool(HOW), reason="; ".join(HOW))
FLAGS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
DRAWN = "html[data-figures=drawn]"


class Heard(list[str]):
    """The console messages, errors, dialogs and requests of a page, which should have none."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        page.on("console", lambda message: self.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: self.append(f"request: {request.url}"))


def opened(browser: Browser, file: Path, **options: Any) -> tuple[Page, Heard]:
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    heard = Heard(page)
    page.goto(file.as_uri())
    page.wait_for_selector(DRAWN, state="attached")
    assert heard == [f"request: {file.as_uri()}"], "but for the page itself"
    heard.clear()
    return page, heard
