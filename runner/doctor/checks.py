"""Checks of the machine without its GPU: Python, packages, plugins, shared memory, killed runs, processor.

Each function yields a `Check` for each line. Parameters name the places to read from, for tests.
"""

from __future__ import annotations

import enum
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from launchopt.distribution import install_command
from launchopt.reading.ownership import SWEEP
from launchopt.scratch import abandoned
from runner.config.plugged import problems
from runner.run.leftovers import FOLDER, killed_runs, leftovers
from runner.worker.orphans import orphans

RUNS, SWEEPS = Path("outputs/run"), Path("outputs/sweep")  # the defaults of conf/config.yaml
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
NEWEST_PYTHON, OLDEST_PYTHON = (3, 13), (3, 11)
MIN_SHARED_BYTES = 4 << 20  # a ring of 4,096 commands takes 256 KiB; one for arrivals takes a few times that
PLENTY_BYTES = 64 << 20
CLEAN = "launchopt doctor --clean"
MIN_CORES = 3  # one each for producer, consumer, and all other programs
USES = {
    "torch": "modes torch_*, fused_triton, triton_batched and triton_experts",
    "bench": "one row of launchopt bench",
    "report": "plots, and the HTML report",
}

Version = Callable[[str], str]


class Status(enum.StrEnum):
    """Outcome of one check."""

    OK = "OK"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: the name of the check, its finding, and how to fix it.

    needed: the device cannot be used unless the check is fulfilled.
    """

    name: str
    status: Status
    found: str
    mend: str = ""
    needed: bool = False


def usable(checks: Iterable[Check]) -> bool:
    """Return whether every needed check is fulfilled."""
    return not any(check.needed and check.status is Status.MISSING for check in checks)


def machine_checks() -> Iterator[Check]:
    """Yield every check that concerns no GPU."""
    yield python_check(sys.version_info[:3])
    yield from package_checks(requirements())
    yield from plugin_checks()
    yield from shared_memory_checks(FOLDER)
    yield from killed_checks((RUNS, SWEEPS))
    yield from leftover_checks()
    yield from cpu_checks(Path("/sys"), _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def python_check(version: Sequence[int]) -> Check:
    """Check that the project supports the interpreter."""
    found = ".".join(map(str, version))
    if OLDEST_PYTHON <= tuple(version[:2]) <= NEWEST_PYTHON:
        return Check("Python", Status.OK, found, needed=True)
    wanted = " to ".join(".".join(map(str, bound)) for bound in (OLDEST_PYTHON, NEWEST_PYTHON))
    return Check("Python", Status.MISSING, found, f"make a virtual environment with Python {wanted}", needed=True)


def requirements(project: Path = PROJECT) -> dict[str, list[Requirement]]:
    """Return the requirements by extra, from pyproject.toml or the installed package; "" are those of every install."""
    if project.is_file():
        about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        texts = {"": about["dependencies"], **about.get("optional-dependencies", {})}
        return {extra: [Requirement(text) for text in each] for extra, each in texts.items()}
    installed = metadata.metadata("launchopt").get_all("Provides-Extra") or []
    every = [Requirement(text) for text in metadata.requires("launchopt") or []]
    always = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    own = {
        extra: [one for one in every if one not in always and one.marker and one.marker.evaluate({"extra": extra})]
        for extra in installed
    }
    return {"": always, **own}


def package_checks(wanted: dict[str, list[Requirement]], version: Version = metadata.version) -> Iterator[Check]:
    """Check the packages of every install, and those of each extra except for a GPU and for development."""
    yield _group_check("packages", wanted.get("", []), version, install_command(), needed=True)
    for extra, use in USES.items():
        if extra in wanted:
            yield _group_check(f"extra {extra}", wanted[extra], version, install_command(extra), use=use)


def gpu_package_check(wanted: dict[str, list[Requirement]], cuda: int, version: Version = metadata.version) -> Check:
    """Check the extra for CUDA `cuda`, or the installed one of another version."""
    extras = [f"cuda{cuda}", *(extra for extra in wanted if extra.startswith("cuda") and extra != f"cuda{cuda}")]
    known = [extra for extra in extras if extra in wanted]
    for extra in known:
        check = _group_check(f"extra {extra}", wanted[extra], version, install_command(extra))
        if check.status is Status.OK:
            return check
    use = "the GPU, and timing=cupti"
    return _group_check(f"extra {known[0]}", wanted[known[0]], version, install_command(known[0]), use=use)


def _group_check(
    name: str, wanted: Sequence[Requirement], version: Version, mend: str, use: str = "", needed: bool = False
) -> Check:
    absent, misfits = [], []
    for one in wanted:
        if one.marker is not None and not one.marker.evaluate({"extra": name.removeprefix("extra ")}):
            continue
        try:
            found = version(one.name)
        except metadata.PackageNotFoundError:
            absent.append(str(one.name))
            continue
        if not one.specifier.contains(found, prereleases=True):
            misfits.append(f"{one.name} {found} (wanted {one.specifier})")
    wants = f" (for {use})" if use else ""
    if absent:
        return Check(name, Status.MISSING, f"not installed: {', '.join(absent + misfits)}{wants}", mend, needed)
    if misfits:
        return Check(name, Status.WARNING, f"other than tested: {', '.join(misfits)}{wants}", mend, needed)
    return Check(name, Status.OK, f"all {len(wanted)} there", needed=needed)


def plugin_checks() -> Iterator[Check]:
    """Import every plugin, and yield a line for each."""
    for plugin, why in problems().items():
        name = f"plugin {plugin.group}={plugin.name}"
        yield Check(name, Status.WARNING if why else Status.OK, why or plugin.label)


def shared_memory_checks(folder: Path) -> Iterator[Check]:
    """Check the space for rings, and segments of dead processes."""
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError as error:
        yield Check(str(folder), Status.MISSING, str(error.strerror), f"mount a tmpfs on {folder}", needed=True)
        return
    found = f"{free / 1e6:,.0f} MB free of {total / 1e6:,.0f} MB"
    mend = f"mount -o remount,size=1G {folder}; in a container: --shm-size=1g"
    if free < PLENTY_BYTES:
        status = Status.MISSING if free < MIN_SHARED_BYTES else Status.WARNING
        yield Check(str(folder), status, found, mend, needed=True)
    else:
        yield Check(str(folder), Status.OK, found, needed=True)
    left = leftovers(folder)
    if left:
        names = ", ".join(f"{one.path.name} ({one.size_bytes / 1e6:,.1f} MB)" for one in left)
        mend = f"{CLEAN}, unless their processes run in another container"
        yield Check("left shared memory", Status.WARNING, f"of dead processes: {names}", mend)
    else:
        yield Check("left shared memory", Status.OK, "none of dead processes")


def killed_checks(parents: Sequence[Path]) -> Iterator[Check]:
    """Yield a line for each killed run, sweep or job that no later run has cleaned up."""
    killed = [folder for parent in parents for folder in killed_runs(parent)]
    if not killed:
        yield Check("killed runs", Status.OK, f"none in {' or '.join(map(str, parents))}")
    for folder in killed:
        yield Check("killed run", Status.WARNING, str(folder), _next(folder))


def leftover_checks() -> Iterator[Check]:
    """Yield a line for each temporary folder and each stopped process that a killed process left."""
    for folder in abandoned():
        yield Check("left folder", Status.WARNING, str(folder), CLEAN)
    for pid, owner in orphans().items():
        yield Check("left process", Status.WARNING, f"{pid}, stopped, of killed process {owner}", CLEAN)


def _next(folder: Path) -> str:
    """Return a sentence on the next start's treatment of a killed run, and on how to finish the run."""
    is_sweep, is_job = (folder / SWEEP).is_file(), (folder.parent / SWEEP).is_file()
    whole, kind = (folder.parent, "sweep") if is_job else (folder, "sweep" if is_sweep else "run")
    tidied = f"the next {kind} in {whole.parent} marks it as killed and finishes its tables"
    again = "finish it" if kind == "sweep" else "do it again"
    return f"{tidied}; {again}: the same command with hydra.{kind}.dir={whole} resume=true"


def cpu_checks(system: Path, cores: int) -> Iterator[Check]:
    """Check the number of cores for this process, and the governor of their clock."""
    if cores < MIN_CORES:
        mend = "producer and consumer each spin on one: give the process more (taskset, --cpuset-cpus)"
        yield Check("processor cores", Status.WARNING, str(cores), mend)
    else:
        yield Check("processor cores", Status.OK, str(cores))
    governors = {
        path.read_text().strip() for path in system.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    }
    if not governors:
        yield Check("clock governor", Status.OK, "not reported: a virtual machine, or a fixed clock")
    elif governors == {"performance"}:
        yield Check("clock governor", Status.OK, "performance")
    else:
        mend = "sudo cpupower frequency-set -g performance, or times of first launches vary"
        yield Check("clock governor", Status.WARNING, ", ".join(sorted(governors)), mend)
