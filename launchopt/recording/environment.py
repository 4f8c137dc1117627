"""Facts about the machine, the packages and the revision with which a result was made. Unknown facts are left out."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

# `git_dirty` covers only these paths of the checkout, so that new results do not set it.
CODE = tuple(f":/{path}" for path in ("launchopt", "runner", "conf", "scripts", "pyproject.toml"))
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
)


def environment() -> dict[str, object]:
    """Return the facts for the manifest."""
    memory = psutil.virtual_memory()
    return {
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory.total,
        "packages": _packages(),
        **_git(Path(__file__).parent),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(folder: Path) -> dict[str, object]:
    """Return the revision of the checkout that holds this file, and whether its code has uncommitted changes.

    LAUNCHOPT_GIT_REVISION takes precedence. It names the revision of a copy without a history, such as a container
    image. Such a copy may be inside another repository.
    """
    if revision := os.environ.get("LAUNCHOPT_GIT_REVISION"):
        return {"git_revision": revision, "git_dirty": None}

    def git(*words: str) -> str:
        call = ["git", "-C", str(folder), *words]
        return subprocess.run(call, capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        return {"git_revision": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain", "--", *CODE))}
    except (OSError, subprocess.SubprocessError):
        return {}
