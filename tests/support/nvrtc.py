"""NVRTC, NVIDIA's compiler of kernels, as a package of its own (nvidia-cuda-nvrtc). It needs no GPU."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

OPTIONS = ("-arch=sm_90", "-std=c++17", "-DNORM_EPSILON=1e-05f", "--ptxas-options=-v")


class Compiled(NamedTuple):
    """What the compiler says of a source. spilled: bytes that each kernel stores for want of registers."""

    log: str
    is_ok: bool
    registers: list[int]
    spilled: list[int]


@cache
def library() -> ctypes.CDLL | None:
    """Return the library; None without the package."""
    try:
        found = find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return None
    folders = list(found.submodule_search_locations or ()) if found else []
    paths = [path for folder in folders for path in Path(folder, "lib").glob("libnvrtc.so.*")]
    return ctypes.CDLL(str(paths[0])) if paths else None


def compiled(text: str, **macros: int) -> Compiled:
    """Compile a source for an H100 or H200."""
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc is not None
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    words = [*OPTIONS, *(f"-D{name}={value}" for name, value in macros.items())]
    status = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*map(str.encode, words)))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    said = log.value.decode()
    counts = (
        [int(each) for each in re.findall(pattern, said)] for pattern in (r"Used (\d+) reg", r"(\d+) bytes spill st")
    )
    return Compiled(said, status == 0, *counts)
