"""Plugins that cannot be used: each gets one line that names its package, and everything else still works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from support.processes.plugged_site import VERSION, answers, put_launchopt, put_metadata, seeing

from launchopt.plugins.found import plugins

MODE = """
from launchopt.interface import Mode, Prepared
class Kind(Mode):
    name = "{}"
    def prepare(self, device, limits):
        return Prepared(self, device)
"""
# Module, package, entry point, source, requirement.
PACKAGES = {
    "crooked": ("mode crooked = ,,,:::", "", ""),  # no reference to an object, though the file can be read
    "unbound": (
        "mode unbound = unbound:Kind",
        MODE.format("unbound") + "    def refusal(self, kind, stream): return None",
        "",
    ),
    "good": ("mode good = good:Kind", MODE.format("good"), ""),
    "absent": ("mode absent = absent:Kind", "import no_such_module", ""),
    "leaves": ("mode leaves = leaves:Kind", "raise SystemExit(3)", ""),
    "nothing": ("mode nothing = nothing:Kind", "", ""),
    "wrong": ("mode wrong = wrong:Kind", "class Kind: pass", ""),
    "renamed": ("mode renamed = renamed:Kind", MODE.format("another"), ""),
    "idle": ("mode idle = idle:Kind", 'from launchopt.interface import Mode\nclass Kind(Mode): name = "idle"', ""),
    "older": ("mode older = older:Kind", MODE.format("older").replace("device, limits", "device"), ""),
    "pinned": ("mode pinned = pinned:Kind", MODE.format("pinned"), "launchopt<0.1"),
    "odd": (
        "mode odd = odd:Kind",
        """
        from dataclasses import dataclass, field
        from launchopt.interface import Mode, ModeOptions
        @dataclass
        class Options(ModeOptions):
            what: set[int] = field(default_factory=set)
        class Kind(Mode):
            name = "odd"
            options = Options()
            def prepare(self, device, limits): ...
        """,
        "",
    ),
    "loose": ("mode loose = loose:Kind", MODE.format("loose") + "    options = 3", ""),
    "batched-too": ("mode batched = good:Kind", "", ""),
    "gemv-too": ("workload gemv = good:Kind", "", ""),
    "tiny-too": ("model tiny = good:Kind", "", ""),
    "all-of-it": ("mode all = good:Kind", "", ""),
    "twin-a": ("mode twins = good:Kind", "", ""),
    "twin-b": ("mode twins = good:Kind", "", ""),
    "work": ("workload work = work:Work", "class Work: pass", ""),
    "when": ("arrival when = when:When", "from launchopt.interface import Arrival as When", ""),
    "figures": ("model figures = figures:NUMBERS", "NUMBERS = {'name': 'figures'}", ""),
    "raises": (
        "mode raises = raises:Kind",
        MODE.format("raises") + "    @classmethod\n    def refusal(cls, kind, stream):\n"
        "        return 1 / 0 if stream.commands == 5 else None\n",
        "",
    ),
}
Answers = dict[str, tuple[int, str, str]]
PLANNING = """
import json
from hydra import compose
from runner.config.loading import hydra_of
from runner.plan.plan import plan_of
with hydra_of():
    config = compose("config", "mode=baseline against=[all] device=cpu workload=gemv_256 workload.commands=4".split())
plan = plan_of(config)
print(json.dumps([[arm.mode for arm in plan.arms], plan.refused, plan.notices]))
"""
SMALL = ("device=cpu", "workload=gemv_256", "workload.commands=5")
LINES = {
    "absent": "absent 1.0 cannot be imported (ModuleNotFoundError: No module named 'no_such_module'): install what it"
    " needs, or pip uninstall absent",
    "leaves": "leaves 1.0 cannot be imported (SystemExit: 3): install what it needs, or pip uninstall leaves",
    "nothing": "nothing 1.0 cannot be imported (AttributeError: module 'nothing' has no attribute 'Kind'): install what"
    " it needs, or pip uninstall nothing",
    "wrong": "wrong 1.0 is broken: wrong:Kind is no Mode; it must be a class derived from Mode",
    "renamed": "renamed 1.0 is broken: renamed:Kind names itself 'another', and its entry point is 'renamed'",
    "idle": "idle 1.0 is broken: idle:Kind lacks prepare()",
    "older": "older 1.0 was written for another version of launchopt: older:Kind.prepare() must take (self, device,"
    " limits)",
    "odd": "odd 1.0 is broken: what must be bool, int, float or str, and declared by option(...)",
    "loose": "loose 1.0 is broken: loose:Kind.options is no ModeOptions",
    "pinned": f"pinned 1.0 needs launchopt <0.1, and this is {VERSION}: install another version of either",
    "crooked": "crooked 1.0 cannot be imported (AttributeError: 'NoneType' object has no attribute 'group'): install"
    " what it needs, or pip uninstall crooked",
    "unbound": "unbound 1.0 was written for another version of launchopt: unbound:Kind.refusal() must be a classmethod",
    "twins": "twin-a 1.0 and twin-b 1.0: 2 plugins have this name; uninstall all but one",
    "work": "work 1.0 is broken: work:Work is no Workload; it must be a class derived from Workload",
    "when": "when 1.0 is broken: when:When names itself '???', and its entry point is 'when'",
    "figures": "figures 1.0 is broken: figures:NUMBERS is no Model",
}
GROUPS = {"work": "workload", "when": "arrival", "figures": "model"}
CALLS = {
    **{name: ("run", f"{GROUPS.get(name, 'mode')}={name}", "--cfg", "job") for name in (*LINES, "good", "batched")},
    "tiny": ("run", "model=tiny", "--cfg", "job"),
    "nearly": ("run", "mode=goood"),
    "listed": ("run", "workload=nothing"),
    "raises": ("run", "mode=raises", *SMALL),
    "help": ("run", "--help"),
    "complete": ("completion", "words", "run", "mode=g"),
    "doctor": ("doctor", "--no-floors", "--device", "cpu", "--json"),
    "matrix": ("matrix",),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    put_launchopt(folder)
    for name, (points, source, requires) in PACKAGES.items():
        put_metadata(folder, name, "1.0", points, requires)
        (folder / f"{name.replace('-', '_')}.py").write_text(dedent(source))
    return folder


@pytest.fixture(scope="module")
def answered(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("calls")
    found = answers(site, CALLS, folder)
    assert list(folder.iterdir()) == []
    return found


@pytest.mark.parametrize("name", LINES)
def test_a_broken_plugin_is_refused_in_one_line_that_names_its_package(name: str, answered: Answers) -> None:
    setting = CALLS[name][1]
    assert answered[name] == (2, "", f"error: {setting}: {LINES[name]}\n")


def test_a_sound_plugin_composes_beside_broken_ones(answered: Answers) -> None:
    code, out, err = answered["good"]
    assert (code, err) == (0, "")
    assert "\n  name: good\n" in out


@pytest.mark.parametrize("name", ["batched", "tiny"])
def test_launchopts_own_option_comes_before_a_plugin_of_its_name(name: str, answered: Answers) -> None:
    code, out, err = answered[name]
    assert (code, err) == (0, "")
    assert f"\n  name: {name}\n" in out


def test_names_of_plugins_are_listed_and_completed_without_an_import(answered: Answers) -> None:
    said = "error: mode=goood: no such mode; did you mean mode=good? launchopt run mode=help lists all\n"
    assert answered["nearly"] == (2, "", said)
    assert "qkv, trace, work; did you mean mode=nothing?" in answered["listed"][2]
    assert "gemv," not in answered["listed"][2], "presets name it"
    assert answered["complete"][1].split()[:2] == ["mode=good", "mode=graph"]
    code, out, err = answered["help"]
    assert (code, err) == (0, "")
    assert re.search(r"^  absent +of absent 1.0: made for a test$", out, re.MULTILINE)
    assert not re.search(r"^  all ", out, re.MULTILINE)


def test_a_mistake_in_a_plugin_is_one_line_that_names_its_package(answered: Answers) -> None:
    line = "error: raises 1.0: ZeroDivisionError: division by zero (HYDRA_FULL_ERROR=1 shows where)\n"
    assert answered["raises"] == (1, "", line)


def test_the_doctor_says_which_plugins_can_be_used(answered: Answers) -> None:
    checks = json.loads(answered["doctor"][1])["checks"]
    found = {each["name"]: each for each in checks if each["name"].startswith("plugin ")}
    assert len(found) == len(PACKAGES) - 1, "twins share a line"
    assert {name for name, each in found.items() if each["status"] == "OK"} == {
        "plugin mode=good",
        "plugin mode=raises",
    }
    for name, line in LINES.items():
        assert found[f"plugin {CALLS[name][1]}"]["found"] == line
    for name, what in (("mode=batched", "mode"), ("workload=gemv", "workload"), ("model=tiny", "model")):
        assert f"has the name of launchopt's own {what}" in found[f"plugin {name}"]["found"]
    assert "not a name that can be typed" in found["plugin mode=all"]["found"]


def test_the_matrix_and_against_all_leave_broken_plugins_out(site: Path, answered: Answers, tmp_path: Path) -> None:
    code, out, err = answered["matrix"]
    assert code == 0
    assert re.search(r"^\| good \| cpu, cuda \| yes \|", out, re.MULTILINE)
    assert not re.search(r"^\| (idle|twins) \|", out, re.MULTILINE)
    assert f"warning: mode=idle: {LINES['idle']}\n" in err
    done = subprocess.run(
        [sys.executable, "-c", PLANNING], cwd=tmp_path, env=seeing(site), capture_output=True, text=True, timeout=100
    )
    assert done.stderr == ""
    modes, refused, notices = json.loads(done.stdout)
    assert {"good", "baseline", "batched"} <= set(modes)
    assert refused["idle"] == LINES["idle"]
    assert "plugins: mode=good of good 1.0, mode=raises of raises 1.0" in notices
    assert "mode=batched is launchopt's own: batched-too 1.0 has one, too" in notices


@pytest.mark.parametrize("text", [b"[launchopt.modes\nx", b"[launchopt.modes]\nx\n", b"\xff", b"x = y\n"])
def test_damaged_metadata_of_any_package_is_no_error(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("damaged", "sound"):
        put_metadata(tmp_path, name, "1.0", f"mode {name} = {name}:Kind")
    (tmp_path / "damaged-1.0.dist-info/entry_points.txt").write_bytes(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert [each.name for each in plugins.__wrapped__() if each.package in ("damaged", "sound")] == ["sound"]


def test_of_two_versions_on_the_path_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.0", "1.0"):
        put_metadata(tmp_path / version, "some", version, "mode some = some:Kind")
        monkeypatch.syspath_prepend(tmp_path / version)
    assert [each.label for each in plugins.__wrapped__() if each.package == "some"] == ["some 1.0"]
