"""The three ways to have it: a checkout, an editable install, a wheel. Nothing is downloaded.

An install goes into a virtual environment of its own, which sees the packages of the interpreter that runs the
tests. It is made from a copy of the sources, so that building leaves nothing in the checkout.

The wheel is always installed in the same folder of pytest's cache, and its files get the times of the sources. Numba
then finds the machine code of an earlier session, which takes 12 s to compile.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.own_process import without_progress

from launchopt.modes import MODES
from launchopt.recording import results
from launchopt.workloads import workloads

SOURCES = ("conf", "launchopt", "runner", "tests", "pyproject.toml", "README.md", "LICENSE")
SETUPTOOLS = 77  # the first that knows a license as an SPDX expression, and needs no wheel package
SMALL = "device=cpu workload.m=16 workload.k=64 workload.commands=500 workload.cache=hot against=[]"


def missing() -> str | None:
    """What an install without downloads lacks."""
    if find_spec("pip") is None:
        return "pip"
    try:
        recent = int(version("setuptools").split(".")[0]) >= SETUPTOOLS
    except PackageNotFoundError:
        recent = False
    return None if recent else f"setuptools>={SETUPTOOLS}"


needs_setuptools = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}: pip install -e '.[dev]'")


@dataclass(frozen=True)
class Way:
    """How it was come by: the interpreter to call it with, and what must be in its environment."""

    python: Path
    environ: dict[str, str]

    def call(self, *call: str | Path, folder: Path) -> str:
        """Standard output of a call that must go well."""
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            call, cwd=folder, env=clean | self.environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode, without_progress(done.stderr)) == (0, "")
        return done.stdout

    def module(self, arguments: str, folder: Path) -> str:
        return self.call(self.python, "-m", "runner", *arguments.split(), folder=folder)

    def script(self, arguments: str, folder: Path) -> str:
        return self.call(self.python.with_name("launchopt"), *arguments.split(), folder=folder)


def pip(*arguments: str | Path) -> None:
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
    call = [sys.executable, "-m", "pip", *quiet, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, sources)
    (built,) = folder.iterdir()
    return built


def environment(folder: Path, *install: str | Path) -> Way:
    """A new virtual environment in `folder` with the install, and with sight of this interpreter's packages."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "ours.pth").write_text("\n".join(ours) + "\n")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--no-compile")
    pip("--python", python, "install", *offline, *install)
    return Way(python, {})


def install_wheel(wheel: Path, sources: Path, cache: pytest.Cache) -> Way:
    """Install the wheel where it was installed before. Each file has the time of its source."""
    folder = cache.mkdir("packaging") / "installed"
    shutil.rmtree(folder, ignore_errors=True)
    way = environment(folder, wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    for top in ("launchopt", "runner"):
        for source in (sources / top).rglob("*.py"):
            shutil.copystat(source, site / source.relative_to(sources))
    return way


@pytest.fixture(scope="module")
def ways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    if request.param == "checkout":
        return Way(Path(sys.executable), {"PYTHONPATH": str(ROOT)})
    if request.param == "editable":
        return environment(tmp_path_factory.mktemp("editable"), "--editable", request.getfixturevalue("sources"))
    assert request.config.cache
    return install_wheel(request.getfixturevalue("wheel"), request.getfixturevalue("sources"), request.config.cache)


@pytest.fixture(scope="module")
def shown(ways: Way, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The help, called from a folder in which it leaves nothing."""
    folder = tmp_path_factory.mktemp("help")
    text = ways.module("--help", folder)
    assert list(folder.iterdir()) == []
    return text


checkout = pytest.param("checkout")
editable, installed = (pytest.param(name, marks=needs_setuptools) for name in ("editable", "wheel"))


@pytest.mark.parametrize("ways", [checkout, editable, installed], indirect=True)
def test_conf_is_found_from_anywhere(ways: Way, shown: str, tmp_path: Path) -> None:
    presets = {path.stem for path in (ROOT / "conf/workload").glob("*.yaml")}
    flat = " ".join(shown.split())
    assert f" workload: {', '.join(sorted(presets | {*workloads()} - {'gemv'}))} workload." in flat
    assert f" mode: {', '.join(sorted([*MODES, 'auto']))} " in flat
    assert "\n  baseline " in shown
    assert "gpu_kernel_batcher" in shown
    assert "max_batch: 9" in ways.module("--cfg job mode=baseline batching.max_batch=9", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ways", [checkout, editable, installed], indirect=True)
def test_a_program_can_run_it_from_anywhere(ways: Way, tmp_path: Path) -> None:
    script = "import launchopt as l\ntry: l.run({'workload.m': 0})\nexcept l.ConfigError as error: print(error)"
    refused = ways.call(ways.python, "-c", script, folder=tmp_path)
    assert refused == "workload.m=0: out of range; allowed: from 1 to 2147483647\n"


@pytest.mark.parametrize("ways", [editable, installed], indirect=True)
def test_console_script(ways: Way, shown: str, tmp_path: Path) -> None:
    assert ways.script("run --help", tmp_path) == shown


@pytest.mark.parametrize("ways", [installed], indirect=True)
def test_a_wheel_runs_on_its_own_files(ways: Way, tmp_path: Path) -> None:
    script = "import launchopt, runner, runner.conf as c; print(launchopt.__file__, runner.__file__, c.__file__)"
    for file in ways.call(ways.python, "-c", script, folder=tmp_path).split():
        assert Path(file).is_relative_to(ways.python.parents[1])
    for run in (ways.module, ways.script):
        folder = tmp_path / run(SMALL, tmp_path).splitlines()[-1]
        (row,) = results.read_summaries([folder])
        assert (row["status"], row["commands"]) == ("ok", 500)


def test_pyproject_lists_every_package_and_a_setuptools_that_can_build_it() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {path.parent for top in ("launchopt", "runner") for path in (ROOT / top).rglob("__init__.py")}
    names = {".".join(path.relative_to(ROOT).parts) for path in found}
    assert set(pyproject["tool"]["setuptools"]["packages"]) == names | {"runner.conf"}
    builder = f"setuptools>={SETUPTOOLS}"
    assert pyproject["build-system"]["requires"] == [builder]
    assert builder in pyproject["project"]["optional-dependencies"]["dev"]


@needs_setuptools
def test_a_wheel_holds_conf_and_no_tests(wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    conf = {f"runner/conf/{path.relative_to(sources / 'conf')}" for path in (sources / "conf").rglob("*.yaml")}
    code = {str(path.relative_to(sources)) for top in ("launchopt", "runner") for path in (sources / top).rglob("*.py")}
    assert len(conf) > 20
    kernels = {str(path.relative_to(sources)) for path in (sources / "launchopt/kernels").rglob("*.cu*")}
    assert {Path(name).suffix for name in kernels} == {".cu", ".cuh"}
    assert conf | code | kernels | {"launchopt/py.typed", "runner/conf/__init__.py"} <= names
    (about,) = {name.split("/")[0] for name in names} - {"launchopt", "runner"}
    assert about.endswith(".dist-info")
    assert f"{about}/licenses/LICENSE" in names
