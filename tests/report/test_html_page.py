"""The page as text: what it says, what it leaves out, and that nothing of a run can act in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.recorded_runs import (
    BATCH,
    HOSTILE,
    launch_rows,
    manifest,
    write_calibration,
    write_run,
    write_sweep,
)

from launchopt.recording import results
from launchopt.report.grids import leading_number
from launchopt.report.page import page_html
from launchopt.report.source import Source, read_source
from launchopt.statistics.histogram import LogHistogram

MISSING = [name for name in ("altair", "vl_convert", "jinja2") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs the report extra: no {', '.join(MISSING)}")


class Outline(HTMLParser):
    """Tags with their attributes, scripts with their texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("page")
    return read_source([write_run(folder / "run", HOSTILE), write_sweep(folder / "sweep")])


@pytest.fixture(scope="module")
def html(source: Source) -> str:
    return page_html(source)


@pytest.fixture(scope="module")
def outline(html: str) -> Outline:
    return Outline(html)


def specs(outline: Outline) -> dict[str, Any]:
    return dict(json.loads(outline.scripts[0]))


def test_an_answer_stands_above_the_verdict(tmp_path: Path) -> None:
    page = page_html(read_source([write_run(tmp_path)]), ["do: mode=<b>graph"])
    assert page.index("do: mode=&lt;b&gt;graph") < page.index('class="tiles"')


def test_nothing_is_loaded_from_anywhere(html: str, outline: Outline) -> None:
    for tag, attributes in outline.tags:
        assert not {"src", "srcset", "action", "style"} & attributes.keys(), tag
        assert tag not in {"link", "iframe", "img", "object", "embed", "form", "base"}
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_policy_names_exactly_the_scripts_that_are_there(outline: Outline) -> None:
    rules = next(a["content"] for _, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert rules is not None
    assert rules.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in rules
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in outline.scripts[1:]]
    assert re.findall(r"sha256-([^']+)", rules) == hashes
    assert len(outline.scripts) == 3


def test_a_hostile_name_is_shown_and_does_nothing(html: str, outline: Outline) -> None:
    assert HOSTILE not in html
    assert HOSTILE in outline.text
    assert HOSTILE not in outline.scripts[0]


def test_every_figure_that_has_data_is_there(outline: Outline) -> None:
    titles = [spec["description"].split(".")[0] for spec in specs(outline).values()]
    for title in (
        *("Roofline: NVIDIA H200", "Where the time of a command goes", "Latency of a command", "Timeline of a slice"),
        *("Commands by the size of their batch", "Throughput against tail latency"),
        *("Timeout x bucket: p99 latency, us, batched", "Timeout x bucket: throughput, commands/s, batched"),
    ):
        assert title in titles
    figures = [attributes for tag, attributes in outline.tags if tag == "figure"]
    boxes = [attributes["data-figure"] for _, attributes in outline.tags if "data-figure" in attributes]
    assert boxes == list(specs(outline))
    assert len(figures) == len(boxes)
    assert all(attributes["tabindex"] == "0" for attributes in figures)
    assert all(spec["width"] == "container" and "config" not in spec for spec in specs(outline).values())


def axis_titles(spec: Any) -> list[str]:
    """Of every axis of a specification, layers included."""
    if not isinstance(spec, dict):
        return []
    own = [
        channel.get("title")
        for name, channel in spec.get("encoding", {}).items()
        if name in {"x", "y"} and isinstance(channel, dict) and "field" in channel and channel.get("title")
    ]
    return own + [title for layer in spec.get("layer", []) for title in axis_titles(layer)]


def test_figures_have_axis_titles_and_tooltips(outline: Outline) -> None:
    for spec in specs(outline).values():
        assert axis_titles(spec), spec["description"]
        assert '"tooltip"' in json.dumps(spec)


def test_what_is_left_out_says_what_records_it(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path)
    for path in folder.rglob("histograms.parquet"):
        path.unlink()
    text = Outline(page_html(read_source([folder]))).text
    assert "Figures without data" in text
    assert "no repeat that may be compared has a histogram of latencies" in text
    assert "record.launches=all record.commands=all" in text
    assert "Nothing here was compared with a baseline" in text


def test_the_verdict_comes_first_and_failures_are_said(tmp_path: Path) -> None:
    text = Outline(page_html(read_source([write_run(tmp_path, verified=False, status="wrong <b>sums</b>")]))).text
    assert "10 repeats failed or could not be verified" in text
    assert "FAILED: wrong <b>sums</b>" in text
    assert text.index("Error:") < text.rindex("All modes") < text.index("How each run ended")


def test_traced_runs_alone_decide_nothing(tmp_path: Path) -> None:
    text = Outline(page_html(read_source([write_run(tmp_path, traced=True, kernels=True)]))).text
    assert "No verdict: only traced runs of this work" in text
    assert "Traced runs" in text
    assert "Of a traced run: the tracer makes each launch slower." in text


def test_the_timeline_is_of_the_run_that_was_traced(tmp_path: Path) -> None:
    write_run(tmp_path / "plain", "plain", kernels=False)
    traced = write_run(tmp_path / "traced", "traced", traced=True)
    for name in ("launches", "commands"):
        (traced / f"{name}.parquet").unlink()
    outline = Outline(page_html(read_source([tmp_path])))
    (timeline,) = (spec for spec in specs(outline).values() if spec["description"].startswith("Timeline"))
    (bars,) = timeline["datasets"].values()
    assert {bar["track"] for bar in bars} == {"host: launch call", "GPU"}
    assert sum(bar["what"].startswith("cuLaunchKernelEx, launch ") for bar in bars) == 48 + 8
    assert sum(bar["what"].startswith("gemv_kernel, stream 7") for bar in bars) == 2 * (48 + 8)
    assert min(bar["start"] for bar in bars) == 0


def test_each_gpu_has_lanes_of_its_own_in_the_timeline(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", kernels=False, gpus=2, routing="round_robin")
    rows = [row | {"gpu": gpu} for gpu in (4, 7) for row in launch_rows("run")]
    results.write_rows(folder / "launches.parquet", results.LAUNCHES, rows, {})
    (folder / "commands.parquet").unlink()
    outline = Outline(page_html(read_source([folder])))
    (timeline,) = (spec for spec in specs(outline).values() if spec["description"].startswith("Timeline"))
    (bars,) = timeline["datasets"].values()
    lanes = {
        f"{mode}, GPU {gpu}: {track}" for mode in BATCH for gpu in (4, 7) for track in ("host: launch call", "GPU")
    }
    assert {bar["lane"] for bar in bars} == lanes
    for lane in lanes:
        own = sorted((bar["start"], bar["end"]) for bar in bars if bar["lane"] == lane)
        if lane.endswith("launch call"):
            assert all(one[1] <= other[0] for one, other in pairwise(own)), "no launches of two GPUs in one lane"


def test_a_calibration_brings_the_stages_of_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_calibration(tmp_path / "outputs" / "calibration")
    outline = Outline(page_html(read_source([write_run(tmp_path / "run")])))
    assert any("Stages of one launch: NVIDIA H200" in spec["description"] for spec in specs(outline).values())


def test_what_runs_share_is_said_once(outline: Outline, source: Source) -> None:
    assert "What differs between the composed configurations" in outline.text
    assert "graph: needs a GPU that graphs (5 runs)" in outline.text
    assert all(run.name in outline.text for run in source.runs)


def test_a_folder_given_twice_changes_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert page_html(read_source([folder, folder])).count("<figure ") == page_html(read_source([folder])).count(
        "<figure "
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16,312.5", 16312.5),
        ("19.7x [19.7, 20.6] (1)", 19.7),
        ("229.3 (1)", 229.3),
        ("3.1e-07", 3.1e-7),
        ("-0.5", -0.5),
        ("102.6% copy", 102.6),
        ("6 / 16", 6.0),
        ("—", None),
        ("never", None),
        ("", None),
    ],
)
def test_a_cell_is_sorted_by_the_number_it_begins_with(text: str, number: float | None) -> None:
    assert leading_number(text) == number


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_json_inside_a_script_ends_no_script_and_means_the_same(value: Any) -> None:
    from launchopt.report.scripts import inline_json

    text = inline_json({"value": value, "bad": "</script><!--<script>\u2028"})
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text)["value"] == value


@given(st.text(alphabet="</!-scriptSCRIPT >\r\n"))
def test_a_script_cannot_end_its_own_tag(text: str) -> None:
    from launchopt.report.scripts import inline, policy

    assert not re.search(r"<(/script|script|!--)", inline(text), re.IGNORECASE)
    assert "\r" not in inline(text)
    assert policy("a", "b").count("sha256-") == 2


@given(st.lists(st.integers(1, 500), min_size=1, max_size=50))
def test_shares_of_commands_add_up(sizes: list[int]) -> None:
    from launchopt.report.figures.batches import shares

    histogram = LogHistogram.from_rows((size, size, 1) for size in sizes)
    found = shares(histogram)
    assert sum(each["percent"] for each in found) == pytest.approx(100)
    assert sum(each["batches"] for each in found) == len(sizes)
    for each in found:
        low, _, high = each["size"].partition("-")
        within = [size for size in sizes if int(low) <= size <= int(high or low)]
        assert each["batches"] == len(within)
        assert each["percent"] == pytest.approx(100 * sum(within) / sum(sizes))


def test_every_histogram_of_a_run_is_read(source: Source) -> None:
    rows = [row for row in source.rows if row["run_id"] == HOSTILE and row["mode"] == "baseline"]
    merged = source.histograms.merged(rows, "latency")
    assert merged is not None
    assert merged.count == 5 * 21 * 3
    lacking = [*rows, {**rows[0], "repeat": 99}]
    assert source.histograms.merged(lacking, "latency") is None


def test_factors_of_the_page_are_over_the_base_that_was_asked_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    rows = [
        {**each, "mode": {"baseline": "coalesced", "batched": "graph"}[each["mode"]]}
        for each in results.read_summaries([folder])
    ]
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    for asked, over in ((["graph"], "graph"), ([], "coalesced")):
        results.write_manifest(folder, manifest("run", config={"against": asked}))
        assert f"Over {over}" in page_html(read_source([folder]))
