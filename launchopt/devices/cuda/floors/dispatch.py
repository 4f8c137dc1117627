"""Measure what an operator costs the host, from the call in Python to its return, for a short list of operators.

In: repeats. Out: for each operator, the us per call in a burst into an idle queue, and the launches of a call. The
operators are those of PyTorch, where it is installed, and CuPy's matmul. `runner.doctor.dispatch` splits the times.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

import cupy
from cuda.bindings import runtime as cudart

from launchopt.cupy_types import CudaStream
from launchopt.devices.cuda.graph_cache import RELAXED, checked
from launchopt.devices.floors import CALLS, Measured
from launchopt.errors import RunError

PREFIX = "dispatch_"
HIDDEN, HEADS, HEAD_DIM, CONTEXT = 1024, 8, 64, 256


class Operator(NamedTuple):
    """An operator to time."""

    name: str
    words: str
    call: Callable[[], object]


class OwnGemm(NamedTuple):
    """The GEMM that compiled code launches by cublasLtMatmul: its sizes (n = 1), and its launch on a stream."""

    m: int
    k: int
    stream: CudaStream
    launch: Callable[[], None]


def measure(gemm: OwnGemm, repeats: int, absent: dict[str, str]) -> Iterator[Measured]:
    """Measure each operator, GEMMs of the sizes of `gemm`. absent: gets what cannot be measured."""
    m, k = gemm.m, gemm.k
    how = f"kernels of one cublasLtMatmul, {m}x1x{k} fp32, captured in a CUDA graph"
    yield Measured(f"{PREFIX}cublaslt_launches", "launches", [float(_captured(gemm))] * repeats, how)
    inputs, weights = cupy.ones((1, k), cupy.float32), cupy.ones((k, m), cupy.float32)
    outputs = cupy.empty((1, m), cupy.float32)
    matmul = Operator("cupy_matmul", f"cupy.matmul, {m}x1x{k} fp32", lambda: cupy.matmul(inputs, weights, out=outputs))
    yield _timed(matmul, repeats, cupy.cuda.runtime.deviceSynchronize)
    if find_spec("torch") is None:
        absent[f"{PREFIX}torch"] = "PyTorch is not installed"
        return
    import torch

    if not torch.cuda.is_available():
        absent[f"{PREFIX}torch"] = "PyTorch sees no GPU"
        return
    with torch.inference_mode():
        for operator in _of_torch(m, k):
            yield _timed(operator, repeats, torch.cuda.synchronize)
            launches = _launches(operator)
            if launches is None:
                absent[f"{PREFIX}{operator.name}_launches"] = "needs PyTorch 2.8 or newer"
            else:
                how = f"kernels of one call of {operator.words}, captured in a CUDA graph"
                yield Measured(f"{PREFIX}{operator.name}_launches", "launches", [float(launches)] * repeats, how)
    torch.cuda.empty_cache()


def _of_torch(m: int, k: int) -> list[Operator]:
    import torch
    from torch.nn import functional

    inputs, weights, outputs = (torch.ones(size, device="cuda") for size in ((1, k), (k, m), (1, m)))
    row, gain = (torch.ones(size, device="cuda", dtype=torch.float16) for size in ((1, HIDDEN), (HIDDEN,)))
    query, keys, values = (
        torch.ones((1, HEADS, tokens, HEAD_DIM), device="cuda", dtype=torch.float16) for tokens in (1, CONTEXT, CONTEXT)
    )
    attend = functional.scaled_dot_product_attention
    return [
        Operator("torch_mm", f"torch.mm, {m}x1x{k} fp32", lambda: torch.mm(inputs, weights, out=outputs)),
        Operator("torch_add_", f"add_ of {HIDDEN} fp16", lambda: row.add_(0)),
        Operator("torch_rms_norm", f"rms_norm of {HIDDEN} fp16", lambda: functional.rms_norm(row, (HIDDEN,), gain)),
        Operator(
            "torch_sdpa",
            f"scaled_dot_product_attention, {HEADS} heads, {CONTEXT} tokens, fp16",
            lambda: attend(query, keys, values),
        ),
    ]


def _timed(operator: Operator, repeats: int, synchronize: Callable[[], object]) -> Measured:
    samples = []
    for _ in range(repeats + 2):  # the first two load kernels and fill caches
        synchronize()
        start_ns = time.perf_counter_ns()
        for _ in range(CALLS):
            operator.call()
        samples.append((time.perf_counter_ns() - start_ns) / CALLS / 1e3)
    synchronize()
    how = f"{operator.words}, from Python: {CALLS} of them into an idle queue, host time of each"
    return Measured(f"{PREFIX}{operator.name}_us", "us", samples[2:], how)


def _captured(gemm: OwnGemm) -> int:
    """Return the kernels of one launch of a GEMM."""
    stream = cudart.cudaStream_t(gemm.stream.ptr)
    checked(cudart.cudaStreamBeginCapture(stream, RELAXED))
    try:
        gemm.launch()
    finally:
        graph = checked(cudart.cudaStreamEndCapture(stream))
    count = _nodes(int(graph))
    checked(cudart.cudaGraphDestroy(graph))
    return count


def _nodes(graph: int) -> int:
    count = ctypes.c_size_t()
    status = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
    if status:
        raise RunError(f"cuGraphGetNodes failed with CUresult {status}")
    return count.value


def _launches(operator: Operator) -> int | None:
    """Return the kernels of one call, by capturing it; None before PyTorch 2.8."""
    import torch

    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return None
    with torch.cuda.graph(graph):
        operator.call()
    return _nodes(graph.raw_cuda_graph())
