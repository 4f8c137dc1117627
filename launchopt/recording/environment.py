"""Facts about the machine, the packages and the revision with which a result was made. Unknown facts are left out."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

PROCESSOR = (  # keys of /proc/cpuinfo, on x86 and on Arm
    *("vendor_id", "cpu family", "model", "stepping"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),
)
# `git_dirty` covers only these paths of the checkout, so that new results do not set it.
CODE_PATHS = ("launchopt", "runner", "conf", "scripts", "pyproject.toml")
CODE = tuple(f":/{path}" for path in CODE_PATHS)
PACKAGES = (
    "launchopt",
    "hydra-core",
    "omegaconf",
    "numpy",
    "numba",
    "llvmlite",
    "pyarrow",
    "nvtx",
    "nvidia-ml-py",
    "nvmath-python",
    "cuda-bindings",
    "cupti-python",
    "torch",
    "triton",
)


def environment(plugins: Iterable[str] = ()) -> dict[str, object]:
    """Return the facts for the manifest. plugins: names of the packages whose plugins take part."""
    memory = psutil.virtual_memory()
    return {
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **_processor(),
        "memory_bytes": memory.total,
        "packages": _packages((*PACKAGES, *plugins)),
        **_git(Path(__file__).parent),
    }


def _processor(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the type of processor. A virtual machine can call processors of several years by one name."""
    try:
        first, _, _ = path.read_text(errors="replace").partition("\n\n")
    except OSError:
        return {}
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    kind = ", ".join(f"{key} {found[key]}" for key in PROCESSOR if key in found)
    return {"processor": kind} if kind else {}


def _packages(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(folder: Path) -> dict[str, object]:
    """Return the revision of the checkout that holds this file, and whether its code has uncommitted changes.

    LAUNCHOPT_GIT_REVISION takes precedence. It names the revision of a copy without a history, such as a container
    image. Such a copy may be inside another repository. The hash of its code proves that it is that revision.
    """
    if revision := os.environ.get("LAUNCHOPT_GIT_REVISION"):
        root = Path(__file__).parents[2]
        return {"git_revision": revision, "git_dirty": None, "code_sha1": code_sha1(blobs(root))}

    def git(*words: str) -> str:
        call = ["git", "-C", str(folder), *words]
        done = subprocess.run(call, capture_output=True, text=True, errors="replace", check=True, timeout=5)
        return done.stdout.strip()

    try:
        return {"git_revision": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain", "--", *CODE))}
    except (OSError, subprocess.SubprocessError):
        return {}


def code_sha1(blobs: Iterable[tuple[str, str]]) -> str:
    """Return the hash of code, from the path and the git hash of each file. `git ls-tree` gives the same pairs."""
    return hashlib.sha1("".join(f"{blob} {path}\n" for path, blob in sorted(blobs)).encode()).hexdigest()


def blobs(root: Path) -> Iterable[tuple[str, str]]:
    """Yield path and git hash of every file of code below a folder, except those that Python and pip write."""
    for place in (root / name for name in CODE_PATHS):
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                data = path.read_bytes()
                blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                yield path.relative_to(root).as_posix(), blob
