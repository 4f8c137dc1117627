"""A report of a run and of a sweep, and a browser that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.results.browser import CHROMIUM, FLAGS, opened
from support.results.recorded_runs import HOSTILE, write_calibration, write_run, write_sweep

from launchopt.report.page import page_html
from launchopt.report.source import read_source

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    write_calibration(folder / "run")  # lies beside the run: looked for in the folders that are reported
    source = read_source([write_run(folder / "run", HOSTILE), write_sweep(folder / "sweep")])
    path = folder / "report.html"
    path.write_text(page_html(source), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser, file: Path) -> Iterator[Page]:
    page, heard = opened(browser, file)
    yield page
    assert heard == []
    page.close()
