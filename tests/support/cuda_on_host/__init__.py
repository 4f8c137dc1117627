"""Kernels of launchopt/kernels, compiled and run on the host: see cuda_on_host.h.

Input: a source, its macros, and the call that a thread makes. Output: launches on the host's memory. It needs g++.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
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
CACHE = ROOT / ".pytest_cache" / "d" / "cuda_on_host"  # the folder that pytest's own cache.mkdir would create
UNUSED_DAYS = 14  # CACHE drops a library that no test used for this long
PARTS = ("clocks", "fibers", "ptx", "races")
SOURCE = "kernel.cpp"
# Flags with which a kernel calls races.cpp at each load and store, and keeps line numbers for its reports.
WATCHED = (
    "-g",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
)
WATCHED_SINCE = 11  # the first version of g++ that knows these flags
MOST_TURNS = 2_000_000  # turns of a block; a launch that needs more waits for something that never happens
# Host bodies of functions that are PTX on the device, by the beginning of the function.
BODIES = {
    "__device__ inline float widen(storage value) {\n    float wide;": "return half_bits(value);",
    "__device__ inline storage narrow(float value) {\n    storage result;": "return bits_of_half(value);",
    "__device__ inline float half_value(u32 bits) {": "return half_bits((unsigned short)bits);",
    "__device__ inline u32 fp8_pair(float first, float second) {": "return fp8_bits(first) | fp8_bits(second) << 8;",
    "__device__ inline void group_barrier(int group) {": "__barrier_sync_count(group + 1, 32 * GROUP_WARPS);",
}
PTX = "common/ptx.cuh"  # cuda_on_host.h replaces its functions
TYPES = "typedef unsigned u32;\ntypedef unsigned long long u64;\n"  # cuda_on_host.h declares these, too


def can_build() -> bool:
    return shutil.which("g++") is not None


@cache
def can_find_races() -> bool:
    """Return whether g++ is new enough for WATCHED."""
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


def built(name: str, call: str, races: bool = False, **macros: int | str) -> ctypes.CDLL:
    """Return the library of a file of launchopt/kernels."""
    return built_of(source(name), call, races, **macros)


@cache
def _compiler() -> str:
    """Return the version of g++ and the sources of this folder, on which every library depends."""
    version = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout
    return version + "".join(path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.[ch]*")))


def _cached(key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder in CACHE for a key; `build` fills it unless an earlier run or another process did."""
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
    """Return the folder with the object files that all libraries share."""
    return _cached("parts", lambda folder: _compile(folder, "-O2", "-c", *(f"{HERE / part}.cpp" for part in PARTS)))


def _compile(folder: Path, *arguments: str) -> None:
    # Hidden functions are called directly, without a table that the loader fills.
    flags = ("-std=c++17", "-w", "-fPIC", "-fvisibility=hidden")
    subprocess.run(["g++", *flags, *arguments], check=True, cwd=folder)


@cache
def built_of(text: str, call: str, races: bool = False, **macros: int | str) -> ctypes.CDLL:
    """Return the library of a source. Each thread runs the statement `call`, with `arguments`, a launch's address.

    races: launches also report accesses to the same memory without an order between the threads (races.h).
    """
    call = f"void host::run_thread(void* arguments) {{ {call}; }}"
    code = f'#include "cuda_on_host.h"\n{_on_host(text)}\n{call}\n'
    # -O1 compiles 60% slower than -Og; cached, tests take 10% less. Race reports need the accesses that -Og keeps.
    optimized = ("-Og", *WATCHED) if races else ("-O1",)
    flags = [*optimized, f"-I{HERE}", *(f"-D{key}={value}" for key, value in macros.items())]

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
    """Return memory for stacks, shared by all libraries. Only the touched part takes physical memory."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # Linux was built without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # Linux would clear a whole huge page at the first store to a stack
    return np.frombuffer(memory, np.uint8)


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
    """Run a launch until all threads have ended. RuntimeError: they do not end, or they break a rule of the device.

    grid: blocks in up to three dimensions; `at_once` of them run at a time. seed: chooses the order of threads.
    """
    size = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
    stacks = _stacks(1 << (at_once * threads * library.stack_bytes() - 1).bit_length()).ctypes.data
    if fault := library.launch(size, at_once, threads, shared_bytes, seed, arguments, most_turns, stacks):
        raise RuntimeError(re.sub(r"\{pc:(\w+)\}", lambda found: _line(library, found[1]), fault.decode()))


def _line(library: ctypes.CDLL, offset: str) -> str:
    """Return the source line of an instruction at `offset` in the library."""
    command = ["addr2line", "-e", library._name, offset]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    number = re.search(r":(\d+)", found)
    lines = (Path(library._name).parent / SOURCE).read_text(encoding="utf-8").splitlines()
    return f" in `{lines[int(number[1]) - 1].strip()}`" if number else ""
