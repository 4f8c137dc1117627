"""Errors of the system or of a plugin, which no part of a command expected: a full disk, no permission, no memory."""

from __future__ import annotations

import os

from launchopt.messages import print_error

FULL_ERROR = "HYDRA_FULL_ERROR"  # 1: every error keeps its traceback
NO_MEMORY = ("cannot allocate memory", "failed to map", "can't allocate")  # in the text of an error of an import


def reported(error: Exception) -> bool:
    """Print an error of the system or of a plugin as one line. Return False, and print nothing, for any other."""
    problem = None if os.environ.get(FULL_ERROR) == "1" else _problem(error)
    if problem is not None:
        print_error(problem)
    return problem is not None


def _problem(error: Exception) -> str | None:
    if isinstance(error, MemoryError):
        return "out of main memory"
    if isinstance(error, OSError) and error.errno:
        why = error.strerror or os.strerror(error.errno)
        return why if error.filename is None else f"{os.fsdecode(error.filename)}: {why}"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "no more threads may start (ulimit -u, or the container's pids limit)"
    if isinstance(error, ImportError) and any(each in str(error).lower() for each in NO_MEMORY):
        return "out of main memory while a library loads"
    from launchopt.plugins.found import blamed, described

    return None if blamed(error) is None else f"{described(error)} ({FULL_ERROR}=1 shows where)"
