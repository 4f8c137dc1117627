"""The page in headless Chromium: drawn without an error or a request, sorted, zoomed, restyled, and inert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from support.results.browser import DRAWN, needs_browser, opened
from support.results.recorded_runs import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
MARKS = ".mark-rect path, .mark-symbol path, .mark-line path, .mark-rule line"


def test_every_figure_is_drawn(page: Page) -> None:
    boxes = page.locator("[data-figure]")
    assert boxes.count() >= 9
    for index in range(boxes.count()):
        box = boxes.nth(index)
        assert box.locator("svg").count() == 1
        assert box.locator(MARKS).count() > 0, box.get_attribute("data-figure")
        assert box.get_attribute("aria-label"), "a figure says what it shows"
        assert box.locator(".role-axis-title").count() > 0
    assert page.get_by_role("heading", name="Stages of one launch: NVIDIA H200").count() == 1


def column(page: Page, table: int, at: int) -> list[str]:
    return page.locator("table").nth(table).locator(f"tbody tr td:nth-child({at})").all_inner_texts()


def runs_table(page: Page) -> tuple[int, int]:
    """The table of the sweep's points, and where its throughput is."""
    captions = page.locator("table caption").all_inner_texts()
    table = next(at for at, caption in enumerate(captions) if caption.startswith("Every point of the sweep"))
    heads = page.locator("table").nth(table).locator("th button").all_inner_texts()
    return table, heads.index("commands/s") + 1


def test_a_click_sorts_by_value_and_another_turns_it(page: Page) -> None:
    from playwright.sync_api import expect

    table, at = runs_table(page)
    button = page.locator("table").nth(table).locator(f"th:nth-child({at}) button")
    for order in ("descending", "ascending"):
        button.click()
        head = page.locator("table").nth(table).locator(f"th:nth-child({at})")
        expect(head).to_have_attribute("aria-sort", order)
        expected = ["1,003", "1,002", "1,001", "1,000"]
        assert column(page, table, at) == (expected if order == "descending" else expected[::-1])
    assert page.locator("table").nth(table).locator('th[aria-sort="none"]').count() > 0
    expect(page.locator("#told")).to_have_text("Sorted by commands/s, ascending.")


def test_the_keyboard_sorts_and_what_is_no_number_comes_last(page: Page) -> None:
    captions = page.locator("table caption").all_inner_texts()
    tables = [at for at, caption in enumerate(captions) if caption.startswith("All modes, medians over repeats")]
    (table,) = [at for at in tables if page.locator("table").nth(at).locator("tbody tr").count() == 2]
    page.locator("table").nth(table).evaluate("each => each.closest('.grid').querySelector('.columns').click()")
    heads = page.locator("table").nth(table).locator("th button")
    at = heads.all_inner_texts().index("break-even, tokens or commands (ms)") + 1
    before = column(page, table, at)
    assert "—" in before, "else nothing is tested"
    for key in ("Enter", "Space"):
        heads.nth(at - 1).focus()
        page.keyboard.press(key)
        assert column(page, table, at)[-1] == "—"
    assert page.locator("table").nth(table).locator(f"th:nth-child({at})").get_attribute("aria-sort") == "ascending"


def ticks(page: Page) -> list[str]:
    """Labels of the axes, sorted: Vega reuses them in any order."""
    return sorted(page.locator("figure[data-zooms] .role-axis-label text").all_text_contents())


def become(page: Page, wanted: Callable[[list[str]], bool]) -> bool:
    """Whether the labels do so within 5 s."""
    for _ in range(100):
        if wanted(ticks(page)):
            return True
        page.wait_for_timeout(50)
    return False


def test_buttons_and_keys_move_the_window_of_the_timeline(page: Page) -> None:
    figure = page.locator("figure[data-zooms]")
    assert figure.count() == 1
    home = ticks(page)
    for name in ("Zoom in (+)", "Later →", "Zoom out (−)"):
        was = ticks(page)
        figure.get_by_role("button", name=name).press("Enter")
        assert become(page, lambda now, was=was: now != was), name
    figure.get_by_role("button", name="Reset (0)").click()
    assert become(page, lambda now: now == home)
    figure.focus()
    page.keyboard.press("+")
    assert become(page, lambda now: now != home)
    page.keyboard.press("0")
    assert become(page, lambda now: now == home)


def test_the_first_stop_of_the_keyboard_skips_to_the_verdict(browser: Browser, file: Path) -> None:
    page, heard = opened(browser, file)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the verdict"
    page.keyboard.press("Enter")
    assert page.locator(":focus").get_attribute("id") == "verdict"
    assert heard == []
    page.close()


def test_figures_follow_the_scheme(browser: Browser, file: Path) -> None:
    from playwright.sync_api import expect

    page, heard = opened(browser, file, color_scheme="light")
    fill = "[data-figure] .role-axis-label text"
    light = page.locator(fill).first.get_attribute("fill")
    number = page.locator("[data-figure] svg").count()
    page.emulate_media(color_scheme="dark")
    expect(page.locator(fill).first).not_to_have_attribute("fill", light or "")
    page.wait_for_selector(DRAWN, state="attached")
    assert page.locator("[data-figure] svg").count() == number
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert heard == []
    page.close()


def test_a_hostile_name_is_inert(page: Page) -> None:
    assert page.locator("script").count() == 3
    assert page.get_by_text(HOSTILE).count() > 0


def test_no_other_script_runs_and_nothing_is_fetched(browser: Browser, file: Path) -> None:
    page, heard = opened(browser, file)
    ran = page.evaluate(
        """async () => {
          const script = document.createElement("script");
          script.textContent = "window.hacked = true";
          document.body.append(script);
          let fetched = true;
          try { await fetch("https://example.com/"); } catch { fetched = false; }
          return [window.hacked === true, fetched];
        }"""
    )
    assert ran == [False, False]
    assert sum("Content Security Policy" in each for each in heard) >= 2
    assert not [each for each in heard if each.startswith("request")]
    page.close()


def test_it_prints(browser: Browser, file: Path) -> None:
    page, heard = opened(browser, file, color_scheme="dark")
    assert page.pdf()[:5] == b"%PDF-"
    page.emulate_media(media="print")
    assert not page.locator("nav.contents").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # The ceilings of the roofline and all words, drawn for the dark, are dark on paper.
    for shown, part in (("stroke", "mark-line path"), ("fill", "role-axis-label text")):
        paint = f"element => getComputedStyle(element).{shown}"
        roofline = page.locator("figure", has=page.get_by_role("heading", name="Roofline"))
        assert roofline.locator(f".{part}").first.evaluate(paint) == "rgb(27, 31, 36)"
    assert heard == []
    page.close()
