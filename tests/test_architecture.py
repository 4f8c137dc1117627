"""Who may import whom. Read from the source, so that an import inside a function counts too."""

import ast
from collections.abc import Mapping, Set
from fnmatch import fnmatch
from functools import cache

import pytest
from support.paths import ROOT

FILES = sorted(str(path.relative_to(ROOT)) for top in ("launchopt", "runner") for path in (ROOT / top).rglob("*.py"))

CUDA = frozenset({"cupy", "cupyx", "nvmath", "cuda", "cupti", "torch", "triton"})
CLOCKS = {"time", "datetime", "sched"}
# The rooms behind the door to CUDA. Who is outside comes in from within a function, when a GPU is asked for.
BEHIND_THE_DOOR = (
    "launchopt/devices/*.py",
    *(f"launchopt/timing/{name}.py" for name in ("events", "cupti", "torch_trace")),
    "launchopt/traces/recorder.py",  # records PyTorch programs
)
# Of those, what is tested wherever there is no CUDA.
WITHOUT_CUDA = (
    "launchopt/devices/__init__.py",
    "launchopt/devices/arenas.py",
    "launchopt/devices/base.py",
    "launchopt/devices/floors.py",
    "launchopt/devices/launch_breakdown.py",
    "launchopt/devices/prepared.py",
    "launchopt/devices/runs.py",
    "launchopt/devices/cpu/*.py",
    "launchopt/devices/feedback/landing.py",
    "launchopt/devices/loops/*.py",
    "launchopt/devices/cublaslt/*_loops.py",
    "launchopt/devices/cublaslt/launch.py",
    "launchopt/devices/cublaslt/launch_tables.py",
    "launchopt/devices/cublaslt/tables.py",
    "launchopt/devices/steps/stage_table.py",
    "launchopt/devices/steps/stages.py",
    "launchopt/devices/resident/ring.py",
    "launchopt/devices/cuda/floors/loops.py",
    "launchopt/devices/cublaslt/kernel_plans.py",
    "launchopt/devices/cuda/op_kernels.py",
    "launchopt/devices/cuda/op_plans.py",
    "launchopt/devices/instructions/*.py",
)
# Modules that the parent of a run imports.
PARENT = (
    "launchopt/interface.py",
    "launchopt/modes/*.py",
    "launchopt/plugins/*.py",
    "runner/app.py",
    "runner/cli.py",
    "runner/config/*.py",
    "runner/plan/*.py",
    "runner/run/*.py",
    "runner/worker/child.py",
)
# The interface for Python programs starts runs. It imports the runner within functions.
API = "launchopt/api.py"
# files, and what they must not import: a name forbids the module and everything below it.
FORBIDDEN: list[tuple[str, Set[str]]] = [
    ("launchopt/*", {"runner"}),
    ("launchopt/workloads/*", CLOCKS | CUDA | {"launchopt.queue", "launchopt.devices"}),
    ("launchopt/streams/*", CLOCKS | CUDA | {"launchopt.queue", "launchopt.devices", "launchopt.workloads"}),
    ("launchopt/arrivals/*", {"time", "sched"} | CUDA | {"launchopt.queue", "launchopt.devices"}),
    ("launchopt/batching/*", CLOCKS | CUDA | {"launchopt.devices", "launchopt.queue", "launchopt.timing"}),
    ("launchopt/queue/*", CUDA | {"launchopt.devices", "launchopt.batching", "launchopt.modes"}),
    ("launchopt/modes/*", CUDA | {"launchopt.devices.cuda.device", "launchopt.devices.cpu.device", "launchopt.queue"}),
    ("launchopt/analysis/*", CUDA | {"launchopt.queue", "launchopt.modes"}),
    ("runner/*", CUDA | {"nvtx", "launchopt.api", "launchopt.devices.cuda.device", "launchopt.devices.cpu.device"}),
]


@cache
def imported(source: str) -> frozenset[str]:
    """Every module that `source` imports; of `from a import b` both a and a.b."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def among(modules: Set[str], forbidden: Set[str]) -> set[str]:
    return {module for module in modules for name in forbidden if module == name or module.startswith(f"{name}.")}


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import cupy", {"cupy"}),
        ("import cuda.bindings.driver as d", {"cuda.bindings.driver"}),
        ("def f():\n    from cupy import cuda", {"cupy", "cupy.cuda"}),
        ("from launchopt import ring", {"launchopt", "launchopt.ring"}),
    ],
)
def test_every_way_to_import_is_seen(source: str, modules: set[str]) -> None:
    assert imported(source) == modules


def test_a_name_forbids_what_is_below_it_and_nothing_else() -> None:
    assert among({"time", "timeit", "time.x", "launchopt.timing"}, {"time"}) == {"time", "time.x"}


@pytest.mark.parametrize(("files", "forbidden"), FORBIDDEN, ids=[files for files, _ in FORBIDDEN])
def test_imports_go_one_way(files: str, forbidden: Set[str]) -> None:
    checked = [file for file in FILES if fnmatch(file, files)]
    assert checked
    wrong = {file: among(imported((ROOT / file).read_text()), forbidden) for file in checked if file != API}
    assert {file: modules for file, modules in wrong.items() if modules} == {}


def test_the_interface_for_programs_imports_the_runner_late() -> None:
    assert among(imported((ROOT / API).read_text()), {"runner"})
    assert among(at_once(API), {"runner", "pandas", "pyarrow", "numpy"}) == set()


def test_one_door_to_cuda() -> None:
    users = [file for file in FILES if among(imported((ROOT / file).read_text()), CUDA)]
    assert users
    assert [file for file in users if not any(fnmatch(file, door) for door in BEHIND_THE_DOOR)] == []


@cache
def at_once(file: str) -> frozenset[str]:
    """Modules that are imported when `file` is: not those that a function or a type checker imports."""
    tree = ast.parse((ROOT / file).read_text())
    kept = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imported(ast.unparse(ast.Module(kept, [])))


@cache
def needing(libraries: frozenset[str]) -> set[str]:
    """Return the files whose import loads one of `libraries`, directly or through their own imports."""
    names = {file: file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in FILES}
    modules = {file: at_once(file) for file in FILES}
    found = {file for file in FILES if among(modules[file], libraries)}
    while more := {file for file in FILES if modules[file] & {names[one] for one in found}} - found:
        found |= more
    return found


def test_nothing_outside_loads_cuda_by_being_imported() -> None:
    loading = needing(CUDA)
    assert "launchopt/devices/steps/graphs.py" in loading, "the search finds nothing"
    assert [file for file in loading if not any(fnmatch(file, door) for door in BEHIND_THE_DOOR)] == []


@pytest.mark.parametrize("pattern", WITHOUT_CUDA)
def test_what_is_tested_without_cuda_can_be_imported_without(pattern: str) -> None:
    files = {file for file in FILES if fnmatch(file, pattern)}
    assert files
    assert files & needing(CUDA) == set()


@pytest.mark.parametrize("pattern", PARENT)
def test_the_parent_of_a_run_loads_no_compiler(pattern: str) -> None:
    """Numba takes 0.3 s of CPU time to import, and only the children compile."""
    compiling = needing(frozenset({"numba", "llvmlite"}))
    assert "runner/worker/consumer.py" in compiling, "the search finds nothing"
    files = {file for file in FILES if fnmatch(file, pattern)}
    assert files
    assert files & compiling <= {"launchopt/modes/persistent.py"}, "which asks the host side of its kernel"


@pytest.mark.parametrize("file", FILES)
def test_module_says_what_it_is(file: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / file).read_text()))


def package_of(file: str) -> str:
    """Return the folder of a file. A module directly in launchopt/ or runner/ is a package of its own."""
    folder = file.rpartition("/")[0]
    return (folder if "/" in folder else file.removesuffix(".py").removesuffix("/__init__")).replace("/", ".")


def is_within(package: str, other: str) -> bool:
    """Return whether `package` is a subfolder of `other`."""
    return package.startswith(f"{other}.")


def pairs_tied(imports: Mapping[str, Set[str]]) -> set[tuple[str, str]]:
    """Return the pairs of packages of which each imports the other. imports: for each file the modules that it names.

    A folder and its subfolders are one package in several parts: the folder holds the interface that the parts keep,
    and the function that chooses a part.
    """
    packages = {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): package_of(file) for file in imports
    }
    ties = {
        (package_of(file), packages[module])
        for file, modules in imports.items()
        for module in modules & packages.keys()
        if packages[module] != package_of(file)
    }
    mutual = {(one, other) for one, other in ties if one < other and (other, one) in ties}
    return {(one, other) for one, other in mutual if not is_within(other, one)}


def test_a_tie_is_seen() -> None:
    files = {"r/app.py": {"r.a.x"}, "r/a/x.py": {"r.b", "r.b.y"}, "r/b/__init__.py": set[str](), "r/b/y.py": {"r.base"}}
    files |= {"r/base.py": set()}
    assert pairs_tied(files) == set()
    assert pairs_tied(files | {"r/b/__init__.py": {"r.a.x"}}) == {("r.a", "r.b")}
    assert pairs_tied(files | {"r/base.py": {"r.b.y"}}) == {("r.b", "r.base")}
    folder = {"r/a/__init__.py": {"r.a.b.x"}, "r/a/b/x.py": {"r.a"}, "r/a/c/y.py": {"r.a"}}
    assert pairs_tied(folder) == set()
    assert pairs_tied(folder | {"r/a/b/x.py": {"r.a.c.y"}, "r/a/c/y.py": {"r.a.b.x"}}) == {("r.a.b", "r.a.c")}


def test_no_two_packages_import_each_other() -> None:
    tied = pairs_tied({file: imported((ROOT / file).read_text()) for file in FILES})
    assert tied == set(), "two packages import each other"
