"""The page in headless Chromium: drawn without an error or a request, sorted, zoomed, restyled, and inert."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.results.recorded_runs import HOSTILE, write_calibration, write_run, write_sweep

from launchopt.report.page import page_html
from launchopt.report.source import read_source

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = [
    name
    for name in ("playwright", "axe_playwright_python", "altair", "vl_convert", "jinja2")
    if find_spec(name) is None
]
MISSING += [] if CHROMIUM else ["Chromium on the path"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs a browser and the report extra: no {', '.join(MISSING)}")
FLAGS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
DRAWN = "html[data-figures=drawn]"
MARKS = ".mark-rect path, .mark-symbol path, .mark-line path, .mark-rule line"


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


class Heard(list[str]):
    """What a page said or asked for that it should not have."""

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


@pytest.fixture(scope="module")
def page(browser: Browser, file: Path) -> Iterator[Page]:
    page, heard = opened(browser, file)
    yield page
    assert heard == []
    page.close()


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
    at = heads.all_inner_texts().index("break-even, commands (ms)") + 1
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


WIDTHS = [400, 1280, 1920]
# Texts of a figure that lie on each other, or outside their drawing.
COLLISIONS = """figures => figures.flatMap(figure => {
  const frame = figure.getBoundingClientRect();
  const shown = [...figure.querySelectorAll("text")].filter(text => {
    const { opacity } = getComputedStyle(text);
    return text.textContent && opacity !== "0" && text.getAttribute("opacity") !== "0";
  }).map(text => [text.textContent, text.getBoundingClientRect()]);
  const outside = shown.filter(([, box]) => box.right > frame.right + 2 || box.left < frame.left - 2);
  const pairs = shown.flatMap((one, at) => shown.slice(at + 1).map(other => [one, other]));
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  const on = pairs.filter(([[, a], [, b]]) => overlap(a, b)).map(([[a], [b]]) => `${a} on ${b}`);
  return [...outside.map(([text]) => `${text} is cut`), ...on];
})"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_never_scrolls_sideways_and_figures_and_their_texts_have_space(
    browser: Browser, file: Path, width: int
) -> None:
    page, _ = opened(browser, file, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("[data-figure]")
    for index in range(boxes.count()):
        box, drawn = boxes.nth(index).bounding_box(), boxes.nth(index).locator("svg").bounding_box()
        assert box is not None
        assert drawn is not None
        assert drawn["width"] <= box["width"] + 1
    assert page.locator("[data-figure] svg").evaluate_all(COLLISIONS) == [], "a text lies on another, or is cut"
    page.close()


def test_tables_fit_their_box_at_1280_pixels(page: Page) -> None:
    wide = """boxes => boxes.filter(box => box.offsetParent && box.closest(".few") && box.scrollWidth > box.clientWidth)
      .map(box => `${box.getAttribute("aria-label")}: ${box.scrollWidth} of ${box.clientWidth}`)"""
    assert page.locator(".few .scroll").count() > 0
    assert page.locator(".scroll").evaluate_all(wide) == []


def test_content_comes_before_navigation_on_a_narrow_page(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file, viewport={"width": 400, "height": 800})
    top = [page.locator(each).first.bounding_box() for each in ("h1", ".figures.first svg", "#verdict", "#contents")]
    heights = [box["y"] for box in top if box is not None]
    assert len(heights) == 4
    assert heights == sorted(heights)
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_axe_finds_no_serious_fault(browser: Browser, file: Path, scheme: Any, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page, _ = opened(browser, file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    page.wait_for_timeout(300)
    page.wait_for_selector(DRAWN, state="attached")
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in serious] == []
    page.close()


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 21 streams, with more figures than a page draws at once."""
    folder = tmp_path_factory.mktemp("long")
    for at in range(21):
        model = f"model_{at}"
        write_run(folder / model, model, kernels=False, model=model, dtype="fp16" if at % 2 else "fp32")
    path = folder / "report.html"
    path.write_text(page_html(read_source([folder])), encoding="utf-8")
    return path


def test_a_long_report_is_closed_and_a_link_opens_a_section(browser: Browser, long_file: Path) -> None:
    page, _ = opened(browser, long_file)
    assert page.locator("details.work[open]").count() == 0
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    page.locator(".scroll a[href='#work-3']").click()
    assert page.locator("details.work[open]").count() == 1
    page.wait_for_selector("#work-3 [data-figure] svg")
    page.close()


def test_a_search_and_a_filter_leave_the_streams_that_match(browser: Browser, long_file: Path) -> None:
    page, _ = opened(browser, long_file)
    page.locator("#find").fill("MODEL_7 batched")
    assert page.locator("details.work[data-words]:visible").count() == 1
    assert page.locator(".scroll tr[data-work]:visible").count() == 1
    assert page.locator("#found").inner_text() == "1 of 21 streams"
    page.locator("#find").fill("")
    page.locator("#dtype").select_option("fp16")
    assert page.locator("#found").inner_text() == "10 of 21 streams"
    page.close()


def test_at_most_80_figures_are_drawn_at_once(browser: Browser, long_file: Path) -> None:
    page, _ = opened(browser, long_file)
    assert page.locator("[data-figure]").count() > 100
    page.locator("#open-all").click()
    page.wait_for_timeout(300)
    page.wait_for_selector(DRAWN, state="attached", timeout=60_000)
    assert page.locator("[data-figure] svg").count() == 80
    page.locator("#work-21 [data-figure]").last.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    page.wait_for_selector(DRAWN, state="attached", timeout=60_000)
    assert page.locator("#work-21 [data-figure]").last.locator("svg").count() == 1
    assert page.locator("[data-figure] svg").count() <= 80
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
