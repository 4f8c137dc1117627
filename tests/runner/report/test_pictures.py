"""Pictures of a report are complete files, equal in each run, with every text. A bad request is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.results.summary_rows import everything, repeats, row, write

from launchopt.analysis.frontier.points import build_frontiers
from launchopt.analysis.tables.rows import build_tables
from launchopt.analysis.tables.strategies import build_strategies
from launchopt.errors import ConfigError, DataError
from launchopt.recording.results import Row
from runner.report import __main__ as report
from runner.report import pictures

KINDS = {"speedups": [], "strategies": ["--strategies"], "frontiers": ["--frontier", "--slo-p99-us", "200"]}
needs_extra = pytest.mark.skipif(bool(pictures.lacking()), reason="needs the report extra")


def sweep() -> list[Row]:
    """Closed and open, two modes, an overload, a failure."""
    rows = []
    for rate in (None, 1000.0):
        stream = {
            "mode": "batched",
            "arrival": "poisson" if rate else "closed",
            "arrival_rate_per_s": rate,
            "run_id": str(rate),
        }
        for max_batch in (1, 8, 64):
            for timeout_us in (20.0, 500.0):
                own = {"commands_per_s": rate or 900.0 * max_batch, "latency_p99_us": 30 + timeout_us + max_batch}
                flushes = {"flush_full": max_batch, "flush_deadline": 3}
                rows.append(row(**stream, max_batch=max_batch, timeout_us=timeout_us, **own, **flushes))
        slow = {"mode": "baseline", "commands_per_s": 700.0, "latency_p99_us": 4e4, "overloaded": bool(rate)}
        rows += [row(**{**stream, **slow}), row(**{**stream, "mode": "graph", "verified": False})]
    return rows


def texts(path: Path) -> list[str]:
    """All that an SVG shows as text."""
    return ["".join(each.itertext()) for each in ElementTree.parse(path).iter() if each.tag.endswith("}text")]


@needs_extra
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_one_whole_svg_and_the_same_each_time(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "runs", sweep() if kind == "frontiers" else everything())
    found = []
    for name in ("a.svg", "b.svg"):
        assert report.main([str(folder), *KINDS[kind], "--plot", str(tmp_path / name)]) == 0
        found.append((tmp_path / name).read_bytes())
        assert f"wrote {tmp_path / name}" in capsys.readouterr().err
    assert found[0] == found[1]
    assert ElementTree.fromstring(found[0]).tag.endswith("svg")
    assert b'href="http' not in found[0]
    assert {path.name for path in tmp_path.iterdir()} == {"a.svg", "b.svg", "runs"}


REFUSED = {"run": {"fused_qkv": "no q, k and v to merge", "torch_eager": "needs torch: pip install torch"}}


@needs_extra
def test_bars_have_their_speedup_and_panels_name_what_is_left_out(tmp_path: Path) -> None:
    path, failed = tmp_path / "x.svg", row(mode="graph", verified=False)
    rows = [*repeats(9, 9, 9), *repeats(3, 3, 3, mode="batched"), failed]
    pictures.draw_strategies(build_strategies(rows, REFUSED), path)
    shown = texts(path)
    for text in (
        "3.00x",
        "batched",
        "failed: graph",
        "not applicable: fused_qkv",
        "not installed: torch_eager",
        "Speed-up over the baseline, NVIDIA H200",
    ):
        assert any(text in each for each in shown), text
    assert "graph" not in shown


@needs_extra
def test_each_panel_names_its_base(tmp_path: Path) -> None:
    path, steps = tmp_path / "x.svg", {"workload": "decode", "independent": False}
    rows = [*repeats(9, 9, 9), *repeats(3, 3, 3, mode="batched")]
    rows += [*repeats(4, 4, 4, mode="engine", **steps), *repeats(2, 2, 2, mode="graph", **steps)]
    pictures.draw_strategies(build_strategies(rows), path)
    axes = [each for each in texts(path) if "log scale" in each]
    assert axes == [f"wall time of {base} / wall time (x, log scale)" for base in ("baseline", "engine")]


@needs_extra
def test_a_picture_of_many_panels_keeps_the_width_of_a_readme(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    rows = [each for work in ("decode", "layer", "qkv") for each in repeats(9, 9, 9, workload=work)]
    rows += [each for work in ("decode", "layer", "qkv") for each in repeats(3, 3, 3, mode="batched", workload=work)]
    pictures.draw_strategies(build_strategies(rows), path)
    assert 0 < float(ElementTree.parse(path).getroot().attrib["width"]) <= 860


@needs_extra
@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.4, 3), (0.5, 90), (0.99, 1.02), (0.001, 1e6)])
def test_an_axis_has_a_few_round_ticks_and_one_at_1(low: float, high: float) -> None:
    from launchopt.analysis.tables.speedup_plot import ticks

    found = ticks(low, high)
    assert 3 <= len(found) <= 8
    assert 1 in found
    assert all(low <= each <= high for each in found)


@needs_extra
def test_a_frontier_names_its_choice_and_leaves_out_what_failed(tmp_path: Path) -> None:
    frontiers, path = build_frontiers(sweep(), slo_p99_us=200), tmp_path / "x.svg"
    pictures.draw_frontiers(frontiers, path)
    shown = texts(path)
    wanted = ("batched, 64 / 20 us", "poisson 1,000/s", "8/500", "1 overloaded", "flush: full", "p99 of 200 us")
    for text in wanted:
        assert any(text in each for each in shown), text
    assert not any("graph" in each for each in shown)
    for frontier in frontiers:
        pictures.draw_frontiers([frontier], path)


@needs_extra
@pytest.mark.parametrize("suffix", ["", ".svg", ".png", ".pdf"])
def test_what_has_no_interval_is_drawn_in_each_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    pictures.draw_speedups(build_tables([row(), row(mode="graph", wall_ms=50.0)]), path)
    begin = {".png": b"\x89PNG", ".pdf": b"%PDF"}.get(suffix, b"<svg")
    assert path.read_bytes().startswith(begin)


DRAWERS: Sequence[tuple[Callable[[Path], None], str]] = (
    (lambda path: pictures.draw_speedups(build_tables([row()]), path), "no speed-up to draw"),
    (lambda path: pictures.draw_strategies(build_strategies([row()], {}), path), "no speed-up to draw"),
    (lambda path: pictures.draw_frontiers(build_frontiers([row(verified=False)]), path), "no frontier to draw"),
)


@needs_extra
@pytest.mark.parametrize(("draw", "why"), DRAWERS)
def test_nothing_to_draw_is_said(draw: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        draw(tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()


@needs_extra
def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    tables = build_tables([row(), row(mode="graph", wall_ms=50.0)])
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png, \.pdf"):
        pictures.draw_speedups(tables, tmp_path / "x.bmp")
    with pytest.raises(DataError, match="cannot be written"):
        pictures.draw_speedups(tables, tmp_path / "none" / "x.svg")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", ["altair", "vl_convert"])
def test_without_the_extra_it_says_what_to_install(
    library: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.svg"
    folder = write(tmp_path / "runs", sweep() if kind == "frontiers" else everything())
    monkeypatch.setitem(sys.modules, library, None)
    assert report.main([str(folder), *KINDS[kind], "--plot", str(path)]) == 2
    assert "pip install -e '.[report]'" in capsys.readouterr().err
    assert not path.exists()
