"""Modes are files of a folder: they are listed, described, set up from the command line, and refused with a reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.config.composing import planned
from support.steps.programs import stream_of

from launchopt import modes
from launchopt.command import Dtype, Op
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.modes import MODES, NOT_MODES, mode_class
from launchopt.modes.base import Mode, Takes
from launchopt.streams.gemm_stream import GemmStream, Segment
from launchopt.workloads.gemv import gemv
from runner import app
from runner.config.against import ALL
from runner.help.settings import mode_lines
from runner.plan import plan as plan_module
from runner.plan.left_out import left_out

FOLDER = Path(modes.__file__).parent
GEMV, CHAIN = gemv(8, 1, 8, 8, Dtype.fp32, 4), stream_of("linear", [(0, 2)] * 2)
SMALL = ("workload=gemv_256", "workload.commands=64", "workload.cache=hot")
TINY = ("workload=decode", "model=tiny", "workload.requests=3", "workload.tokens=2", "workload.cache=hot")


def test_every_file_is_a_mode() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", *NOT_MODES}
    assert list(MODES) == sorted(files)
    for name in MODES:
        kind = mode_class(name)
        assert kind.name == name
        assert Path(sys.modules[kind.__module__].__file__ or "") == FOLDER / f"{name}.py"
        assert kind.devices
        assert set(kind.devices) <= {"cpu", "cuda"}
        assert kind.extra or not kind.packages


@pytest.mark.parametrize(
    "text",
    [
        "",
        "class Other: name = 'stray'",
        "from launchopt.modes.base import Mode\nclass Named(Mode):\n    name = 'another'",
        "from launchopt.modes.baseline import Baseline",
        "from launchopt.modes.baseline import Baseline\nclass Inherits(Baseline): pass",
    ],
)
def test_a_file_without_a_mode_of_its_name_is_said_so(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.py").write_text(text)
    monkeypatch.setattr(modes, "__path__", [*modes.__path__, str(tmp_path)])
    monkeypatch.setattr(modes, "MODES", (*MODES, "stray"))
    monkeypatch.delitem(sys.modules, "launchopt.modes.stray", raising=False)
    with pytest.raises(ConfigError) as caught:
        mode_class("stray")
    assert str(caught.value) == "mode=stray: launchopt/modes/stray.py has no Mode whose name is 'stray'"
    sys.modules.pop("launchopt.modes.stray", None)


class Fussy(Mode):
    """A mode that refuses most workloads."""

    name = "fussy"
    takes = Takes.steps
    devices = ("cuda",)
    dtypes = (Dtype.fp16, Dtype.bf16)
    ops = frozenset({Op.GEMM})
    packages: ClassVar[tuple[str, ...]] = ()


@pytest.mark.parametrize(
    ("kind", "stream", "why"),
    [
        ("cpu", CHAIN, "needs a GPU: on the cpu device it has no meaning"),
        ("cuda", GEMV, "takes whole steps: this workload's commands are independent of each other"),
        ("cuda", CHAIN, "has no fp32: fp16, bf16"),
        ("cuda", stream_of("linear_epilogue", [(0, 2)], Dtype.fp16), "cannot launch BIAS, RELU"),
        ("cuda", stream_of("linear", [(0, 2)], Dtype.fp16), None),
    ],
)
def test_a_refusal_says_why(kind: str, stream: Any, why: str | None) -> None:
    assert Fussy.refusal(kind, stream) == why


@pytest.mark.parametrize(
    ("packages", "why"),
    [
        ((), None),
        (("numpy",), None),
        (("no_such_package",), "needs no_such_package: pip install -e '.[torch]'"),
        (("numpy", "nor_this", "no_such_package"), "needs nor_this and no_such_package: pip install -e '.[torch]'"),
    ],
)
def test_what_is_not_installed_is_told_with_how_to_install_it(packages: tuple[str, ...], why: str | None) -> None:
    kind = type("Needs", (Fussy,), {"packages": packages, "extra": "torch"})
    assert kind.lacks() == why


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("stream", [GEMV, CHAIN, stream_of("layer", [(2, 2)])], ids=["gemv", "chain", "layer"])
def test_asking_a_mode_answers_in_one_line(name: str, stream: Any) -> None:
    kind = mode_class(name)
    assert kind.takes_of(stream) in Takes
    for device in ("cpu", "cuda"):
        why = kind.refusal(device, stream)
        assert why is None or (why and "\n" not in why and why[0].islower() and not why.endswith("."))
        if device not in kind.devices:
            assert why is not None
    if stream is GEMV and kind.refusal("cuda", stream) is None:
        assert kind.takes_of(stream) is not Takes.steps, "there are none"


def test_one_request_has_nothing_for_several_streams() -> None:
    alone = GemmStream([(8, 8)], 1, [Segment(1, 4)], Dtype.fp32, 1)
    assert (
        mode_class("multistream").refusal("cuda", alone)
        == "needs several requests: the commands of one request stay on one CUDA stream"
    )
    assert mode_class("multistream").refusal("cuda", GEMV) is None
    two = GemmStream([(8, 8)], 1, [Segment(1, 4), Segment(1, 4, 1)], Dtype.fp32, 1)
    assert mode_class("multistream").refusal("cuda", two) is None


@pytest.mark.parametrize("name", ["kernel", "pdl"])
def test_our_own_kernel_is_for_few_columns(name: str) -> None:
    kind = mode_class(name)
    wide, none = stream_of("linear", [(9, 1)]), stream_of("elementwise", [(0, 2)])
    assert kind.refusal("cuda", wide) == "is made for up to 8 columns, and this workload has 9"
    assert kind.refusal("cuda", none) == "launches GEMVs, and this workload has none"
    assert kind.refusal("cuda", stream_of("layer", [(8, 2)])) is None


@pytest.mark.parametrize("name", MODES)
def test_a_line_says_what_one_launch_means(name: str) -> None:
    """It is the first line of the mode's file, and is short enough for a line of a screen."""
    first = (FOLDER / f"{name}.py").read_text().splitlines()[0].removeprefix('"""')
    assert re.fullmatch(rf"{name}: \S.*\.", first)
    (line,) = [line for line in mode_lines() if line.split()[0] == name]
    assert line.split(maxsplit=1)[1] == first.partition(": ")[2].rstrip(".")
    assert len({line.index(line.split(maxsplit=1)[1]) for line in mode_lines()}) == 1, "in a column"


def test_help_lists_them_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["mode=help", "workload=gemv_256"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines() == ["Modes: what one launch means.", *mode_lines()]
    assert len(mode_lines()) == len(MODES) + 1, "and auto"


def test_help_loads_neither_cuda_nor_compilers() -> None:
    code = "import sys; from runner.app import main; main(['mode=help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pointer_array" in done.stdout
    assert not {name.partition(".")[0] for name in done.stderr.split()} & {"cupy", "cuda", "nvmath", "torch", "triton"}


# -- against=[all]


def test_all_are_those_that_can_and_why_the_others_cannot() -> None:
    plan = planned("mode=baseline", f"against=[{ALL}]", *SMALL)
    ran = [arm.mode for arm in plan.arms]
    assert ran[-1] == "baseline", "what was asked for comes last"
    assert sorted([*ran, *plan.refused]) == sorted(MODES)
    for name in ran[:-1]:
        assert mode_class(name).refusal("cpu", plan.stream) is None
        assert mode_class(name).lacks() is None
    for name, why in plan.refused.items():
        kind = mode_class(name)
        assert why == (kind.refusal("cpu", plan.stream) or kind.lacks())
        assert name in left_out(plan.refused)
    assert any(notice.startswith(left_out(plan.refused)) for notice in plan.notices)
    assert {"batched", "pointer_array", "grouped", "graph"} <= set(ran)
    assert {"multistream", "fused_qkv"} <= set(plan.refused)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    info = DeviceInfo("cuda", 0, "Fake", 100 << 30, 50 << 20, "memory of Fake", 12 << 20)
    monkeypatch.setattr(plan_module, "find_device", lambda kind, index: (info, "faked"))


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_only_what_is_not_installed_or_has_no_meaning_is_left_out() -> None:
    plan = planned("mode=baseline", f"against=[{ALL}]", *TINY)
    reasons = {name: mode_class(name).refusal("cuda", plan.stream) or mode_class(name).lacks() for name in MODES}
    assert plan.refused == {name: why for name, why in reasons.items() if why is not None}
    assert {"multistream", "coalesced", "graph", "grouped", "kernel", "pdl"} <= {arm.mode for arm in plan.arms}


def test_a_mode_that_was_named_and_cannot_is_an_error() -> None:
    why = "needs a GPU: on the cpu device it has no meaning"
    with pytest.raises(ConfigError) as caught:
        planned("mode=multistream", *SMALL)
    assert str(caught.value) == f"mode=multistream: {why}"
    with pytest.raises(ConfigError) as caught:
        planned("mode=batched", "against=[multistream]", *SMALL)
    assert str(caught.value) == f"against=multistream: {why}"
    with pytest.raises(ConfigError) as caught:
        planned("mode=multistream", f"against=[{ALL}]", *SMALL)
    assert str(caught.value) == f"mode=multistream: {why}"


def test_steps_have_no_order_to_be_broken() -> None:
    why = "runs a request's steps whole: it has no order to break"
    with pytest.raises(ConfigError) as caught:
        planned("mode=coalesced", "ordering=violated", *TINY)
    assert str(caught.value) == f"mode=coalesced: {why}"
    plan = planned("mode=batched", "ordering=violated", f"against=[{ALL}]", *TINY)
    assert plan.refused["graph"] == plan.refused["coalesced"] == why
    assert "baseline" in {arm.mode for arm in plan.arms}
