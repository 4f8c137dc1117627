"""CUDA sources of our own kernels, compiled at run time: ops.cu (every op but GEMM), fused.cu, gemv.cu, persistent.cu,
echo.cu, megakernel.cu, feedback.cu, copies.cu, null.cu.

In: a file's name. Out: its text with what it includes of this package put in place, so that a compiler needs no path.
"""

from __future__ import annotations

import re
from importlib.resources import files

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


def source(name: str) -> str:
    """The CUDA source `name`, with or without its .cu; for -DDTYPE=0, 1, 2 (fp32, fp16, bf16)."""
    file = files(__name__).joinpath(name if "." in name else f"{name}.cu")
    return _INCLUDE.sub(lambda found: source(found[1]), file.read_text(encoding="utf-8"))
