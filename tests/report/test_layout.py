"""The page in headless Chromium at the widths of a telephone, a laptop and a desk: what has space, and what folds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.results.browser import DRAWN, needs_browser, opened
from support.results.recorded_runs import write_run

from launchopt.report.page import page_html
from launchopt.report.source import read_source

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

REFERENCE = Path(__file__).parents[2] / "outputs" / "reference" / "gpu"
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


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of committed results: a sweep, and modes with long names."""
    path = tmp_path_factory.mktemp("committed") / "report.html"
    shown = read_source([REFERENCE / "timeout_bucket", REFERENCE / "strategies/linear_epilogue"])
    path.write_text(page_html(shown), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two committed runs whose settings differ much."""
    path = tmp_path_factory.mktemp("unlike") / "report.html"
    source = read_source([REFERENCE / "azure_llama_3_8b" / "speed_10_none", REFERENCE / "qkv" / "decode_1_folovllm"])
    path.write_text(page_html(source), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["file", "committed", "unlike"])
def test_tables_of_few_columns_fit_their_box_at_1280_pixels(
    browser: Browser, request: pytest.FixtureRequest, name: str
) -> None:
    page, _ = opened(browser, request.getfixturevalue(name))
    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
    wide = """boxes => boxes.filter(box => box.offsetParent && box.scrollWidth > box.clientWidth)
      .map(box => `${box.getAttribute("aria-label")}: ${box.scrollWidth} of ${box.clientWidth}`)"""
    assert page.locator(".few .scroll").count() > 0
    assert page.locator(".few .scroll").evaluate_all(wide) == []
    page.close()


def test_no_number_of_a_sweep_s_figures_is_cut_at_400_pixels(browser: Browser, committed: Path) -> None:
    page, _ = opened(browser, committed, viewport={"width": 400, "height": 900})
    page.locator("details.work").first.evaluate("each => { each.open = true; }")
    page.locator("details.work [data-figure] svg").first.wait_for(timeout=20_000)
    cut = """all => all.flatMap(svg => [...svg.querySelectorAll("text")]
      .filter(text => text.textContent && text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1)
      .map(text => text.textContent))"""
    assert page.locator("[data-figure] svg").evaluate_all(cut) == []
    page.close()


def test_a_long_name_without_spaces_leaves_a_narrow_page_its_width(browser: Browser, tmp_path: Path) -> None:
    model = "organisation_with_a_long_name__" + "model_of_many_parts_" * 4
    source = read_source([write_run(tmp_path / at, at, kernels=False, model=model + at) for at in ("a", "b")])
    path = tmp_path / "report.html"
    path.write_text(page_html(source), encoding="utf-8")
    page, _ = opened(browser, path, viewport={"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.close()


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
    page.wait_for_selector("details.work[open]")
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
