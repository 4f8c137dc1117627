"""Folders in which libraries keep compiled code. `prepare` replaces those that this process cannot write to.

A container with `--user` often has no home that its user can write to. Compiled code is then kept in a private folder
below the folder for temporary files. Child processes inherit the choice by environment variables.

Every start imports this module, which therefore imports little.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from launchopt.errors import one_line

LEAST_BYTES = 16 << 20  # free space without which a library writes to another folder
OWN = "NUMBA_CACHE_DIR"  # parent of the folder with our compiled loops
NAME = "launchopt"  # that folder
IN_MEMORY = "CUPY_CACHE_IN_MEMORY"  # CuPy then writes no files


def ensure_home() -> None:
    """Set HOME to the root if this user has no home: libraries raise an error if they find none."""
    try:
        is_known = Path.home().is_absolute()
    except RuntimeError:
        is_known = False
    if not is_known:
        os.environ["HOME"] = "/"


def _below_cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return cache if cache.is_absolute() else _below_home(".cache")


def _below_home(*names: str) -> Path:
    return Path(Path.home(), *names)


def _of_inductor() -> Path:
    import getpass
    import tempfile

    return Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")


DEFAULTS: dict[str, Callable[[], Path]] = {  # by the variable that names another folder: that of Numba, CuPy, ...
    OWN: _below_cache,
    "CUPY_CACHE_DIR": lambda: _below_home(".cupy", "kernel_cache"),
    "CUDA_CACHE_PATH": lambda: _below_home(".nv", "ComputeCache"),
    "TRITON_CACHE_DIR": lambda: Path(os.environ.get("TRITON_HOME") or _below_home(), ".triton", "cache"),
    "TORCHINDUCTOR_CACHE_DIR": _of_inductor,
}


@functools.cache
def prepare() -> Path | None:
    """Choose a folder of each kind. Return the parent of that for compiled loops; None if no folder can be written.

    A line on standard error names what is replaced. Children have the choice in their environment, and say nothing.
    """
    ensure_home()
    unusable = [name for name in DEFAULTS if not _is_usable(name)]
    if not unusable:
        return folder_of(OWN)
    refused = [folder for folder in map(folder_of, unusable) if folder is not None]
    instead = _private_folder()
    if instead is None:
        os.environ[IN_MEMORY] = "1"
    else:
        os.environ.update({name: str(instead / name.partition("_")[0].lower()) for name in unusable})
    kept = "not kept" if instead is None else f"kept in {instead}"
    for folder in refused[:1]:  # the others are mostly below the same home
        print(f"compiled code is {kept}: {one_line(folder, 200)} cannot be written to, or is full", file=sys.stderr)
    return None if instead is None and OWN in unusable else folder_of(OWN)


@functools.cache
def compiled_folder() -> str | None:
    """Return the folder for compiled loops, named by a hash of all sources of compiled code and of its constants.

    None: no folder can be written.
    Numba's own index checks only the file of a function. It would reuse machine code that contains an older version of
    a function from another file.
    """
    import hashlib

    root = prepare()
    if root is None:
        return None
    own, state = Path(__file__).parent, hashlib.sha256()
    for folder in (own, own.parent / "runner"):
        for source in sorted(folder.rglob("*.py")):
            text = source.read_bytes()
            if any(word in text for word in (b"@compiled", b"@intrinsic", b"IntEnum", b"NamedTuple")):
                state.update(source.as_posix().encode() + text)
    return str(root / NAME / state.hexdigest()[:16])


def folder_of(variable: str) -> Path | None:
    """Return the folder that a variable names, or its default; None for the default of a user without a name."""
    try:
        return Path(os.environ.get(variable) or DEFAULTS[variable]()).absolute()
    except (OSError, KeyError):
        return None


def _is_usable(variable: str) -> bool:
    """Return whether a file can be made in the folder, or in the folder in which it would be made."""
    import tempfile

    folder = folder_of(variable)
    if variable == OWN and folder is not None:
        folder /= NAME
    try:
        while folder is not None and not folder.exists():
            folder = folder.parent
        if folder is None:
            return False
        tempfile.TemporaryFile(dir=folder).close()
        return variable == OWN or _has_space(folder)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return False


def _has_space(folder: Path) -> bool:
    """Return whether LEAST_BYTES are free: CuPy and Triton raise an error for a full disk."""
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize >= LEAST_BYTES


def _private_folder() -> Path | None:
    """Return a folder that nobody else can read or write; None if no folder for temporary files has space.

    Starts share it, unless another user has made a folder of that name.
    """
    import atexit
    import tempfile

    from launchopt.scratch import scratch

    try:
        shared = Path(tempfile.gettempdir(), f"launchopt-cache-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            shared.mkdir(0o700)
        if not _has_space(shared):
            return None
        if _is_private(shared):
            return shared
        own = contextlib.ExitStack()
        folder = own.enter_context(scratch())
    except OSError:
        return None
    atexit.register(own.close)
    return folder


def _is_private(folder: Path) -> bool:
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
