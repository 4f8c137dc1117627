"""Turn what `record_hook` left in a folder into lists of GEMMs, one for each process that ran any.

In: the folder. Out: files beside each other, and lines that say what they hold and what they lack.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from launchopt.errors import DataError, one_line
from launchopt.files import read_json, reason, save_text, write_atomically
from launchopt.traces.execution_trace import ExecutionTrace, NoGemmsError, read_execution_trace
from launchopt.traces.gemms import read_gemms
from launchopt.traces.record_hook import ABOUT, PROFILE, STARTED, TRACE, WITHOUT_TORCH
from launchopt.traces.recorder import list_text

DISPLACED = "the program began an execution trace of its own, and PyTorch has one at a time: the recording ended there"
REPLAYED = "replays of CUDA graphs, whose GEMMs are not in the trace: start the program without CUDA graphs"


@dataclass(frozen=True, slots=True)
class _Process:
    """What one process left. found: its GEMMs, or why there are none."""

    path: Path  # its files without the ends of their names
    about: dict[str, Any]
    found: ExecutionTrace | DataError

    def notes(self) -> Iterator[str]:
        """Yield what the list lacks."""
        if self.about.get("is_full"):
            yield "the trace reached its largest size, and the recording stopped: --steps, or --largest-mib"
        elif isinstance(self.found, ExecutionTrace) and self.found.cut:
            yield f"the trace ends early: {self.found.cut}; the list has what came before"
        if isinstance(self.found, ExecutionTrace):
            for why, count in self.found.left_out.items():
                yield f"left out: {count:,} GEMM operators {why}"
        if self.about.get("is_displaced"):
            yield DISPLACED
        if replays := self.about.get("replays"):
            yield f"{replays:,} {REPLAYED}"


def write_lists(folder: Path, output: Path, profile: Path | None = None) -> Iterator[str]:
    """Write the list of each process, and yield lines about them. DataError: there is none; nothing was written.

    profile: file for the profiler's trace of each process; None if there is none.
    """
    processes = [_process(trace) for trace in sorted(folder.glob(f"*{TRACE}"))]
    recorded = [each for each in processes if isinstance(each.found, ExecutionTrace)]
    refused = [each.found for each in processes if isinstance(each.found, DataError)]
    failed = [each for each in refused if not isinstance(each, NoGemmsError)]
    if not recorded:
        raise DataError(output, None, f"nothing was written: {_why_none(folder, processes, failed or refused)}")
    for number, each in enumerate(recorded, 1):
        assert isinstance(each.found, ExecutionTrace)
        path = _free(_numbered(output, number, len(recorded)))
        save_text(path, list_text(each.found, _origin(each.about)))
        yield _summary(path, each.found)
        for note in each.notes():
            yield f"{path}: {note}"
        if profile is not None:
            yield _save_profile(each.path, _free(_numbered(profile, number, len(recorded))))
    for error in failed:
        yield f"a process was left out: {error.problem}"


def _numbered(path: Path, number: int, count: int) -> Path:
    stem, dot, ends = path.name.partition(".")
    return path if count == 1 else path.with_name(f"{stem}-{number}{dot}{ends}")


def _free(path: Path) -> Path:
    """Return the path, or another one if a recording beside this one has written it meanwhile."""
    return path.with_name(f"{os.getpid()}-{path.name}") if path.exists() else path


def _save_profile(files: Path, path: Path) -> str:
    """Copy the profiler's trace of a process to `path`. Return a line about it, or why there is none."""
    profile = files.with_name(files.name + PROFILE)
    if not profile.exists():
        return f"{path}: not written: the program made too few steps; --steps are recorded, and as many are profiled"
    try:
        write_atomically(path, lambda temporary: shutil.copyfile(profile, temporary))
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({reason(error)})") from None
    try:
        gemms = read_gemms(path).gemms
    except DataError as error:
        return f"{path}: {error.problem}"
    took = [gemm.end_ns - gemm.start_ns for gemm in gemms]
    gaps = [after.start_ns - gemm.end_ns for gemm, after in pairwise(gemms) if gemm.thread == after.thread]
    medians = " and ".join(
        f"{median(each) / 1e3:,.1f} us {what}" for each, what in ((took, "in"), (gaps, "between")) if each
    )
    spent = f"{path}: the host spends {medians} GEMM operators (medians, profiled)"
    return f"{spent}; type: launchopt advise --trace {path}, and if it ran on a GPU: launchopt trace {path}"


def _process(trace: Path) -> _Process:
    files = trace.with_name(trace.name.removesuffix(TRACE))
    try:
        about = read_json(files.with_name(files.name + ABOUT))
    except (OSError, ValueError):
        about = None
    try:
        found: ExecutionTrace | DataError = read_execution_trace(trace, may_end_early=True)
    except DataError as error:
        found = error
    return _Process(files, about if isinstance(about, dict) else {}, found)


def _why_none(folder: Path, processes: list[_Process], refused: list[DataError]) -> str:
    """Return why a program has no list."""
    if not processes:
        if (folder / WITHOUT_TORCH).exists():
            return "the program's Python has no PyTorch"
        if (folder / STARTED).exists():
            return "the program never imported PyTorch"
        return "the program is not Python, or is one that ignores PYTHONPATH (python -I, -E or -S)"
    for note in (note for each in processes for note in each.notes()):
        return note
    steps = [each.about["steps"] for each in processes if isinstance(each.about.get("steps"), int)]
    return refused[0].problem + (f"; the program made {max(steps):,} steps" if steps else "")


def _summary(path: Path, found: ExecutionTrace) -> str:
    gemms = sum(gemm.count for gemm in found.gemms)
    shapes = len({(gemm.m, gemm.n, gemm.k) for gemm in found.gemms})
    groups = len({gemm.group for gemm in found.gemms})
    counted = f"{gemms:,} GEMMs of {shapes:,} shapes in {groups:,} groups"
    return f"{counted}; type: launchopt run workload=list workload.path={path}"


def _origin(about: dict[str, Any]) -> str:
    device = about.get("device") or "CPU"
    return one_line(f"PyTorch {about.get('torch', '')}, {device}", 200)
