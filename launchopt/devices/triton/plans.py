"""Compile Triton kernels and load them with CuPy, so that compiled loops launch them like all other kernels.

Triton's own launcher runs Python at every launch; a plan does not. A kernel takes four int64 (addresses of A, B and C,
and the request), which the loops write, and constants. Triton adds two pointers to scratch memory, which our kernels do
not use. PyTorch is not needed. Triton caches compiled kernels on disk, as CuPy does, so a second run has a shorter
setup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import cupy
import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from launchopt.command import Dtype
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.errors import RunError

OPERANDS = 4  # A, B, C (or tables of pointers to them) and the request
SCRATCH_POINTERS = 2  # parameters that Triton adds
WARP = 32
MOST_THREADS = 8  # threads that compile at the same time
TYPES = {Dtype.fp32: tl.float32, Dtype.fp16: tl.float16, Dtype.bf16: tl.bfloat16}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel to compile: a `triton.jit` function, its constants, and its numbers of warps and stages."""

    function: triton.JITFunction
    constants: Mapping[str, object] = field(hash=False)
    warps: int
    stages: int = 1


def compile_variant(variant: Variant, capability: int) -> Any:
    """Return Triton's CompiledKernel for a compute capability (90 for 9.0). Needs no GPU."""
    operands = variant.function.arg_names[:OPERANDS]
    signature = dict.fromkeys(operands, "i64") | dict.fromkeys(variant.constants, "constexpr")
    source = ASTSource(variant.function, signature, dict(variant.constants))
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    made = triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options)
    if scratch := getattr(made.metadata, "global_scratch_size", 0):
        raise RunError(f"Triton wants {scratch} bytes of scratch for {made.metadata.name}, which it is not given")
    return made


class Loaded:
    """A compiled kernel on this GPU."""

    def __init__(self, compiled: Any) -> None:
        self.name: str = compiled.metadata.name
        self._shared_bytes, self._threads = int(compiled.metadata.shared), WARP * int(compiled.metadata.num_warps)
        cubin = next(path for file, path in compiled.metadata_group.items() if file.endswith(".cubin"))
        self.function = cupy.RawModule(path=str(cubin)).get_function(self.name)

    def launch(self, grid: tuple[int, int, int]) -> Launch:
        """Return the kernel's launch with this grid, for `KernelPlans.row`."""
        return Launch(grid, (self._threads, 1, 1), self._shared_bytes, np.zeros(SCRATCH_POINTERS, np.int64))


def load_variants(variants: Sequence[Variant]) -> list[Loaded | None]:
    """Compile and load kernels for this GPU; None for a kernel that needs more shared memory than the GPU has."""
    gpu = cupy.cuda.Device()
    capability, most_bytes = int(gpu.compute_capability), int(gpu.attributes["MaxSharedMemoryPerBlockOptin"])
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        made = list(pool.map(lambda variant: compile_variant(variant, capability), variants))
    return [Loaded(each) if int(each.metadata.shared) <= most_bytes else None for each in made]
