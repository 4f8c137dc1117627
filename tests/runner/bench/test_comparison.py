"""launchopt bench --compare shows the figures that two results share, and names those that only one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launchopt.recording.results import write_manifest, write_rows
from runner.bench.__main__ import main
from runner.bench.figures import BENCH, FILE, Figure

SAMPLES = (10.0, 10.1, 11.0, 11.1, 10.5, 10.6)
Saved = Callable[..., str]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Saves figures as a result of a side; returns its folder."""

    def save(side: str, *found: Figure, status: str = "ok") -> str:
        folder = tmp_path / side
        folder.mkdir(exist_ok=True)
        write_rows(folder / FILE, BENCH, [figure.row() for figure in found], {})
        write_manifest(folder, {"status": status})
        return str(folder)

    return save


def ring(
    samples: Sequence[float] = SAMPLES, samples_of: Sequence[int] = (), case: str = "a command", unit: str = "ns"
) -> Figure:
    return Figure("ring", case, unit, samples, samples_of=samples_of)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (ring(), ring(), "1.00x (0.90 to 1.11)"),
        (ring(samples_of=[2, 2, 2]), ring(samples_of=[2, 2, 2]), "1.00x [0.90, 1.11]"),
        (ring(samples_of=[2, 2, 2]), ring(), "1.00x (0.90 to 1.11)"),
        (ring(samples_of=[3, 3]), ring(samples_of=[2, 2, 2]), "x (0.901 to 1.110)"),
        (ring(SAMPLES[::2], [1, 1, 1]), ring(SAMPLES[::2], [1, 1, 1]), "1.00x (0.91 to 1.10)"),
    ],
)
def test_an_interval_needs_three_processes_and_five_samples_a_side(
    old: Figure, new: Figure, shown: str, saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--compare", saved("old", old), saved("new", new)]) == 0
    printed = capsys.readouterr().out
    assert shown in printed
    assert "from 3 processes and 5 samples a side on" in " ".join(printed.split())


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 5e-324])
def test_values_that_allow_no_factor_show_none(value: float, saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    old = ring([1e18] * 6, [2, 2, 2])
    new = ring([value] * 2 + [1e18] * 4, [2, 2, 2])
    assert main(["--compare", saved("old", old), saved("new", new)]) == 0
    assert "\u2014" in capsys.readouterr().out


def test_what_one_side_has_alone_is_named(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    old = saved("old", ring(), ring(case="gone"), ring(case="same name", unit="ns"))
    new = saved("new", ring(), ring(case="[red]new"), ring(case="same name", unit="us"), status="interrupted")
    assert main(["--compare", old, new]) == 0
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "NEW was not measured to its end (status: interrupted)",
        "only in OLD: ring: gone, ns",
        "only in OLD: ring: same name, ns",
        "only in NEW: ring: [red]new, ns",
        "only in NEW: ring: same name, us",
    ]


def test_results_without_a_common_figure_are_refused(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compare", saved("old", ring()), saved("new", ring(case="another"))]) == 2
    assert "has no figure that" in capsys.readouterr().err
