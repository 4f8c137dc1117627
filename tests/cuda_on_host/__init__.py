"""Kernels of launchopt/kernels run on the host: see cuda_on_host.h.

In: a source, its macros, and how a thread of it is called. Out: launches of it, on memory of the host. It needs g++.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from launchopt.kernels import source

HERE = Path(__file__).parent
MOST_TURNS = 2_000_000  # of a block: who needs more waits for what does not come
# What functions do whose bodies are PTX, by how they begin.
BODIES = {
    "__device__ inline float widen(storage value) {\n    float wide;": "return half_bits(value);",
    "__device__ inline storage narrow(float value) {\n    storage result;": "return bits_of_half(value);",
    "__device__ inline void group_barrier(int group) {": "__barrier_sync_count(group + 1, 32 * GROUP_WARPS);",
    "__device__ inline uint4 read_once(const storage* from) {": "return *(const uint4*)from;",
}
PTX = "ptx.cuh"  # whose functions the header has for the host
TYPES = "typedef unsigned u32;\ntypedef unsigned long long u64;\n"  # which the header has, too


def can_build() -> bool:
    return shutil.which("g++") is not None


def _on_host(text: str) -> str:
    for head, body in BODIES.items():
        if head in text:
            start = text.index(head)
            name = head[: head.index("{") + 1]
            text = text[:start] + name + body + "}\n" + text[text.index("\n}\n", start) + 3 :]
    text = text.replace(source(PTX), "")
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];", r"\1* \2 = (\1*)dynamic_memory();", text)
    return text.replace(TYPES, "")


def built(name: str, call: str, **macros: int) -> ctypes.CDLL:
    """The library of a file of launchopt/kernels."""
    return built_of(source(name), call, **macros)


@cache
def built_of(text: str, call: str, **macros: int) -> ctypes.CDLL:
    """The library of a source, whose threads run `call`, a statement about `arguments`, the address of a launch."""
    folder = Path(tempfile.mkdtemp(prefix="cuda_on_host_"))
    parts = [
        '#include "cuda_on_host.h"',
        _on_host(text),
        f"#define KERNEL_CALL {call}",
        '#include "launch.h"',
        "",
    ]
    (folder / "kernel.cpp").write_text("\n".join(parts), encoding="utf-8")
    flags = [f"-I{HERE}", *(f"-D{key}={value}" for key, value in macros.items())]
    # -Og: of a test's time most is the compiler's. A jump to another fiber's stack is none that a fortified one allows.
    how = ["-std=c++17", "-Og", "-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC"]
    command = ["g++", *how, *flags, "kernel.cpp", "-o", "kernel.so"]
    subprocess.run(command, check=True, cwd=folder)
    made = ctypes.CDLL(str(folder / "kernel.so"))
    made.launch.restype = ctypes.c_char_p
    word, long = ctypes.c_uint, ctypes.c_ulonglong
    made.launch.argtypes = [ctypes.POINTER(word), word, word, word, long, ctypes.c_void_p, long]
    shutil.rmtree(folder)
    return made


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
    if fault := library.launch(size, at_once, threads, shared_bytes, seed, arguments, most_turns):
        raise RuntimeError(fault.decode())
