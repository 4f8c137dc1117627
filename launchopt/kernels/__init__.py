"""CUDA sources of our own kernels, compiled at run time.

This folder holds the entry points: copies, echo, expert_fused, expert_gemm, expert_route, feedback, fused, gemv,
megakernel, null, ops, persistent, step_attention, step_elementwise, step_gemm and step_loop (.cu).
They include the headers of common/, attention/, tokens/, steps/, experts/, megakernel/ and persistent/ (.cuh).
Headers named shared/... are not files: launchopt/kernels/headers.py generates their text.
"""

from __future__ import annotations

import re
from importlib.resources import files

from launchopt.kernels.headers import HEADERS

_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"\n', re.MULTILINE)


def source(name: str) -> str:
    """Return the text of kernel `name`, with every header of this package in place of its #include.

    name: a path within this folder; `.cu` may be left out. The text compiles without an include path. It needs the
    macro DTYPE (0, 1 or 2 for fp32, fp16 or bf16) and the macros that the file itself describes.
    """
    if name in HEADERS:
        return HEADERS[name]
    file = files(__name__).joinpath(name if "." in name else f"{name}.cu")
    return _INCLUDE.sub(lambda found: source(found[1]), file.read_text(encoding="utf-8"))
