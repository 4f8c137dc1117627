"""Figures of other programs: they come from one file, with their sources; ratios are computed from it."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest

from launchopt.analysis.tables import reference

PACKAGE = resources.files("launchopt.analysis.tables")
PROGRAMS = json.loads(PACKAGE.joinpath(reference.FILE).read_text(encoding="utf-8"))


def test_the_code_holds_no_measured_figure() -> None:
    code = PACKAGE.joinpath("reference.py").read_text(encoding="utf-8").partition("FILE = ")[2]
    code = re.sub(r'"""[^"]*"""', "", code)
    assert not re.findall(r"\d[\d_]*\.\d", code)


@pytest.mark.parametrize("program", PROGRAMS.values())
def test_every_program_names_its_source(program: dict[str, str]) -> None:
    assert len(program["source"]) > 20


@pytest.mark.parametrize("shape", PROGRAMS["cpp_loop"]["shapes"])
def test_the_shown_ratio_is_that_of_the_file(shape: dict[str, object]) -> None:
    work = f"{shape['m']}x{shape['n']}x{shape['k']}"
    found = reference.peer(str(shape["workload"]), work, str(shape["dtype"]), "NVIDIA H200")
    assert found is not None
    assert float(found.loop_us.split("-")[0]) == pytest.approx(min(shape["loop_us"]), rel=1e-3)
    low = found.loop[0] / max(found.batches.values())
    assert float(found.ratio.rstrip("x").split("-")[0]) == pytest.approx(low, rel=0.05)
