"""The doctor's checks of machines that are made up, and of what dead processes left."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from support.processes.killed_runs import dead_pid, killed
from support.processes.own_process import ROOT

from launchopt.errors import DataError
from runner.doctor import checks as doctor_checks
from runner.doctor.checks import Check, Status, usable
from runner.run.folder_lock import FolderLock
from runner.run.leftovers import clean, leftovers

OK, WARNING, MISSING = Status.OK, Status.WARNING, Status.MISSING


def installed(**versions: str) -> Any:
    """A stand-in for importlib.metadata.version."""

    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    return version


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), MISSING), ((3, 11, 0), OK), ((3, 13, 5), OK), ((3, 14, 0), MISSING)]
)
def test_python(version: tuple[int, ...], status: Status) -> None:
    check = doctor_checks.python_check(version)
    assert (check.status, check.needed, bool(check.mend)) == (status, True, status is MISSING)


def test_requirements_of_a_checkout_and_of_an_install_are_the_same(tmp_path: Path) -> None:
    checkout = doctor_checks.requirements()
    assert {"", "cuda12", "cuda13", "torch"} <= set(checkout)
    names = {extra: sorted(one.name for one in each) for extra, each in checkout.items()}
    assert "numpy" in names[""]
    try:
        other = doctor_checks.requirements(tmp_path / "no-pyproject.toml")
    except metadata.PackageNotFoundError:
        pytest.skip("launchopt is not installed here")
    assert {extra: sorted(one.name for one in each) for extra, each in other.items() if extra in names} == names


def test_packages() -> None:
    wanted = {"": [Requirement("numpy>=1.26,<3"), Requirement("rich>=13")], "torch": [Requirement("torch>=2.6")]}
    everything = installed(numpy="2.1", rich="14.0", torch="2.7.0+cpu")
    assert [each.status for each in doctor_checks.package_checks(wanted, everything)] == [OK, OK]
    needed, extra = doctor_checks.package_checks(wanted, installed(numpy="3.1", torch="1.0"))
    assert (needed.status, needed.needed) == (MISSING, True)
    assert needed.found == "not installed: rich, numpy 3.1 (wanted <3,>=1.26)"
    assert (extra.status, extra.needed) == (WARNING, False)
    (_, extra) = doctor_checks.package_checks(wanted, installed(numpy="2.1", rich="14"))
    assert (extra.status, extra.mend) == (MISSING, "pip install -e '.[torch]'")
    assert "torch_*" in extra.found


@pytest.mark.parametrize(
    ("cuda", "versions", "name", "status"),
    [
        (13, {"cupy_cuda13x": "14"}, "extra cuda13", OK),
        (13, {"cupy_cuda12x": "14"}, "extra cuda12", OK),
        (12, {}, "extra cuda12", MISSING),
        (13, {}, "extra cuda13", MISSING),
        (11, {}, "extra cuda12", MISSING),
    ],
)
def test_packages_for_a_gpu(cuda: int, versions: dict[str, str], name: str, status: Status) -> None:
    wanted = {"": [], "cuda12": [Requirement("cupy-cuda12x")], "cuda13": [Requirement("cupy-cuda13x")]}
    check = doctor_checks.gpu_package_check(wanted, cuda, installed(**versions))
    assert (check.name, check.status) == (name, status)
    assert name.split()[1] in check.mend or status is OK


@pytest.mark.parametrize(("free", "status"), [(1 << 20, MISSING), (32 << 20, WARNING), (1 << 30, OK)])
def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: Status) -> None:
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda folder: (1 << 31, 0, free))
    space, left = doctor_checks.shared_memory_checks(tmp_path)
    assert (space.status, space.needed, bool(space.mend)) == (status, True, status is not OK)
    assert left.status is OK


def test_no_shared_memory_is_missing(tmp_path: Path) -> None:
    (check,) = doctor_checks.shared_memory_checks(tmp_path / "none")
    assert (check.status, check.needed) == (MISSING, True)


@pytest.mark.parametrize(
    ("governors", "cores", "statuses"),
    [
        ([], 8, [OK, OK]),
        (["performance"] * 2, 3, [OK, OK]),
        (["performance", "powersave"], 8, [OK, WARNING]),
        (["powersave"], 2, [WARNING, WARNING]),
    ],
)
def test_processor(tmp_path: Path, governors: list[str], cores: int, statuses: list[Status]) -> None:
    for number, governor in enumerate(governors):
        folder = tmp_path / f"devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    checks = list(doctor_checks.cpu_checks(tmp_path, cores))
    assert [check.status for check in checks] == statuses
    assert all(bool(check.mend) == (check.status is not OK) for check in checks)


def test_only_segments_of_dead_processes_are_left_over(tmp_path: Path) -> None:
    pid = dead_pid()
    left = tmp_path / f"launchopt_{pid}_0a1b2c"
    left.write_bytes(b"x" * 100)
    for name in (f"launchopt_{os.getpid()}_0a1b2c", f"launchopt_{pid}_xyz", f"launchopt_{pid}", f"other_{pid}_0a"):
        (tmp_path / name).write_bytes(b"")
    (found,) = leftovers(tmp_path)
    assert (found.path, found.pid, found.size_bytes) == (left, pid, 100)
    _, check = doctor_checks.shared_memory_checks(tmp_path)
    assert check.status is WARNING
    assert left.name in check.found
    assert clean([found]) == [found]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        (f"launchopt_{os.getpid()}_0a1b2c", f"launchopt_{pid}_xyz", f"launchopt_{pid}", f"other_{pid}_0a")
    )
    assert clean([found]) == [found], "that it is gone already is no error"


def test_what_came_to_life_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f"launchopt_{dead_pid()}_0a"
    left.write_bytes(b"")
    found = leftovers(tmp_path)
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)
    assert (clean(found), left.exists(), leftovers(tmp_path)) == ([], True, [])


def test_what_may_not_be_removed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"launchopt_{dead_pid()}_0a").mkdir()  # not even root unlinks a folder
    with pytest.raises(DataError, match="cannot be removed"):
        clean(leftovers(tmp_path))


def test_killed_runs_are_listed_with_what_happens_next(tmp_path: Path) -> None:
    runs, sweeps = tmp_path / "run", tmp_path / "sweep"
    (none,) = doctor_checks.killed_checks((runs, sweeps))
    assert (none.status, none.found) == (OK, f"none in {runs} or {sweeps}")
    run = killed(runs / "1")
    sweep = killed(sweeps / "1", is_sweep=True)
    job = killed(sweep / "0")
    with FolderLock(runs / "2", "hydra.run.dir"):  # a live one
        checks = list(doctor_checks.killed_checks((runs, sweeps)))
    assert [(check.status, check.found) for check in checks] == [(WARNING, str(each)) for each in (run, job, sweep)]
    assert not any(check.needed for check in checks)
    for check, kind, whole in zip(checks, ("run", "sweep", "sweep"), (run, sweep, sweep), strict=True):
        assert check.mend.startswith(f"the next {kind} in {whole.parent} marks it as killed and finishes its tables; ")
        assert check.mend.endswith(f"the same command with hydra.{kind}.dir={whole} resume=true")


def test_where_runs_land_is_where_killed_ones_are_looked_for() -> None:
    landing = yaml.safe_load((ROOT / "conf/config.yaml").read_text())["hydra"]
    assert Path(landing["run"]["dir"]).parent == doctor_checks.RUNS
    assert Path(landing["sweep"]["dir"]).parent == doctor_checks.SWEEPS


def test_only_what_is_needed_and_missing_makes_it_unusable() -> None:
    assert usable([Check("a", MISSING, ""), Check("b", WARNING, "", needed=True), Check("c", OK, "", needed=True)])
    assert not usable([Check("a", MISSING, "", needed=True)])
