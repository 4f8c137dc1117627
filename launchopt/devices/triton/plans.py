"""Triton kernels as plans of `lt_launch`: compiled, loaded with CuPy, and launched by the same loops as all others.

Triton's own launcher is Python at every launch; a plan needs none. A kernel takes four int64 (addresses A, B, C and
the request, which `lt_launch` writes) and constants; Triton adds two pointers to scratch, which none of ours needs. No
torch is involved. Triton keeps what it has compiled on disk, as CuPy does: a second run's one-time cost is lower.
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
from launchopt.devices.cuda.kernel_plans import Launch
from launchopt.errors import RunError

OPERANDS = 4  # what `lt_launch` writes: A, B, C (or tables of pointers to them) and the request
SCRATCH_POINTERS = 2
WARP = 32
MOST_THREADS = 8  # that compile side by side
TYPES = {Dtype.fp32: tl.float32, Dtype.fp16: tl.float16, Dtype.bf16: tl.bfloat16}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel to be compiled: a `triton.jit` function, its constants, and how many warps and stages."""

    function: Any
    constants: Mapping[str, Any] = field(hash=False)
    warps: int
    stages: int = 1


def compile_variant(variant: Variant, capability: int) -> Any:
    """Triton's CompiledKernel for GPUs of compute capability `capability` (90 for 9.0); needs no GPU."""
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
        """Its launch with so many blocks, for `KernelPlans.row`."""
        return Launch(grid, (self._threads, 1, 1), self._shared_bytes, np.zeros(SCRATCH_POINTERS, np.int64))


def load_variants(variants: Sequence[Variant]) -> list[Loaded | None]:
    """All of them on this GPU, None for those that want more shared memory than it has."""
    gpu = cupy.cuda.Device()
    capability, most_bytes = int(gpu.compute_capability), int(gpu.attributes["MaxSharedMemoryPerBlockOptin"])
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        made = list(pool.map(lambda variant: compile_variant(variant, capability), variants))
    return [Loaded(each) if int(each.metadata.shared) <= most_bytes else None for each in made]
