"""Kernels of launchopt/kernels run on the host: see cuda_on_host.h.

In: a source, its macros, and how a thread of it is called. Out: launches of it, on memory of the host. It needs g++.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.kernels import source
from support.paths import ROOT

HERE = Path(__file__).parent
CACHE = ROOT / ".pytest_cache" / "d" / "cuda_on_host"  # where pytest's own cache.mkdir would have it
UNUSED_DAYS = 14  # after which a library is removed from CACHE
PARTS = ("fibers", "ptx", "races")
SOURCE = "kernel.cpp"
# What has a kernel call races.cpp for each of its loads and stores, and lines for what that finds.
WATCHED = (
    "-g",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
)
WATCHED_SINCE = 11  # of g++
MOST_TURNS = 2_000_000  # of a block: who needs more waits for what does not come
# What functions do whose bodies are PTX, by how they begin.
BODIES = {
    "__device__ inline float widen(storage value) {\n    float wide;": "return half_bits(value);",
    "__device__ inline storage narrow(float value) {\n    storage result;": "return bits_of_half(value);",
    "__device__ inline void group_barrier(int group) {": "__barrier_sync_count(group + 1, 32 * GROUP_WARPS);",
    "__device__ inline uint4 read_once(const storage* from) {": "return *(const uint4*)from;",
}
PTX = "common/ptx.cuh"  # whose functions the header has for the host
TYPES = "typedef unsigned u32;\ntypedef unsigned long long u64;\n"  # which the header has, too


def can_build() -> bool:
    return shutil.which("g++") is not None


@cache
def can_find_races() -> bool:
    """Whether g++ is new enough for WATCHED."""
    if not can_build():
        return False
    version = subprocess.run(["g++", "-dumpversion"], check=True, capture_output=True, text=True).stdout
    return int(version.split(".")[0]) >= WATCHED_SINCE


def _on_host(text: str) -> str:
    for head, body in BODIES.items():
        if head in text:
            start = text.index(head)
            name = head[: head.index("{") + 1]
            text = text[:start] + name + body + "}\n" + text[text.index("\n}\n", start) + 3 :]
    text = text.replace(source(PTX), "")
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];", r"\1* \2 = (\1*)dynamic_memory();", text)
    return text.replace(TYPES, "")


def built(name: str, call: str, races: bool = False, **macros: int) -> ctypes.CDLL:
    """The library of a file of launchopt/kernels."""
    return built_of(source(name), call, races, **macros)


@cache
def _compiler() -> str:
    """What every library depends on beside its own source: g++, and the files of this folder."""
    version = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout
    return version + "".join(path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.[ch]*")))


def _cached(key: str, build: Callable[[Path], None]) -> Path:
    """The folder in CACHE that `build` filled for this key, now or in an earlier run or another process."""
    folder = CACHE / hashlib.sha256((_compiler() + key).encode()).hexdigest()[:32]
    with contextlib.suppress(FileNotFoundError):
        os.utime(folder)
        return folder
    _remove_unused()
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as new:
        made = Path(new) / "made"
        made.mkdir()
        build(made)
        with contextlib.suppress(OSError):  # another process was first
            made.rename(folder)
    return folder


@cache
def _remove_unused() -> None:
    limit_s = time.time() - UNUSED_DAYS * 86_400
    for folder in CACHE.glob("*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < limit_s:
                shutil.rmtree(folder)


@cache
def _parts() -> Path:
    """The folder of what all libraries have in common, as objects."""
    return _cached("parts", lambda folder: _compile(folder, "-O2", "-c", *(f"{HERE / part}.cpp" for part in PARTS)))


def _compile(folder: Path, *arguments: str) -> None:
    # A jump to another fiber's stack is none that a fortified one allows.
    subprocess.run(["g++", "-std=c++17", "-U_FORTIFY_SOURCE", "-w", "-fPIC", *arguments], check=True, cwd=folder)


@cache
def built_of(text: str, call: str, races: bool = False, **macros: int) -> ctypes.CDLL:
    """The library of a source, whose threads run `call`, a statement about `arguments`, the address of a launch.

    races: launches also look for what threads do to the same memory without an order between them (races.h).
    """
    call = f"void host::run_thread(void* arguments) {{ {call}; }}"
    code = f'#include "cuda_on_host.h"\n{_on_host(text)}\n{call}\n'
    # -Og: of a test's time most is the compiler's.
    flags = ["-Og", f"-I{HERE}", *(f"-D{key}={value}" for key, value in macros.items()), *(WATCHED if races else ())]

    def build(folder: Path) -> None:
        (folder / SOURCE).write_text(code, encoding="utf-8")
        _compile(folder, *flags, "-c", SOURCE)
        _compile(folder, "-shared", "kernel.o", *(f"{_parts() / part}.o" for part in PARTS), "-o", "kernel.so")
        (folder / "kernel.o").unlink()

    made = ctypes.CDLL(str(_cached("\0".join([code, *flags]), build) / "kernel.so"))
    made.launch.restype = ctypes.c_char_p
    word, long = ctypes.c_uint, ctypes.c_ulonglong
    made.launch.argtypes = [ctypes.POINTER(word), word, word, word, long, ctypes.c_void_p, long, ctypes.c_void_p]
    made.stack_bytes.restype = long
    return made


@cache
def _stacks(size: int) -> NDArray[np.uint8]:
    """Of all libraries in turn: only what is used of it is memory."""
    return np.empty(size, np.uint8)


def launch(
    library: ctypes.CDLL,
    grid: tuple[int, ...],
    threads: int,
    shared_bytes: int,
    arguments: int,
    seed: int = 0,
    at_once: int = 1,
    most_turns: int = MOST_TURNS,
) -> None:
    """Until all threads have ended; RuntimeError where they do not, or do what a device would not allow.

    grid: blocks, of up to three dimensions, of which `at_once` are there at a time. seed: of who goes on next.
    """
    size = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
    stacks = _stacks(1 << (at_once * threads * library.stack_bytes() - 1).bit_length()).ctypes.data
    if fault := library.launch(size, at_once, threads, shared_bytes, seed, arguments, most_turns, stacks):
        raise RuntimeError(re.sub(r"\{pc:(\w+)\}", lambda found: _line(library, found[1]), fault.decode()))


def _line(library: ctypes.CDLL, offset: str) -> str:
    """Of the kernel's text, that an instruction is of."""
    command = ["addr2line", "-e", library._name, offset]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    number = re.search(r":(\d+)", found)
    lines = (Path(library._name).parent / SOURCE).read_text(encoding="utf-8").splitlines()
    return f" in `{lines[int(number[1]) - 1].strip()}`" if number else ""
