"""Stand-ins for nvmath's cuBLASLt, cuda-pathfinder and cuda-bindings, as modules.

A cuBLASLt object is an int64 array of the host, and its handle is the address of that array: `fake_lt.FakeMatmul` reads
layouts and descriptions there. CuPy and cuda.bindings.runtime are empty here: `fake_cuda` gives each device its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.cuda.fake_fp8 import OUTER_VECTOR, SCALAR
from support.cuda.fake_lt import BATCH, POINTERS, RELU_BIAS, STRIDE

PROPOSALS = 3  # algorithms that cuBLASLt proposes for any shape
EPILOGUE, BIAS_POINTER = 7, 8  # attributes of a description
A_SCALE_POINTER, B_SCALE_POINTER, A_SCALE_MODE, B_SCALE_MODE = 17, 18, 31, 32
# Where a description keeps the attributes that `fake_lt` reads.
PLACES = {EPILOGUE: 0, BIAS_POINTER: 1, A_SCALE_MODE: 2, B_SCALE_MODE: 3, A_SCALE_POINTER: 4, B_SCALE_POINTER: 5}
RESULT = np.dtype([("algo", "<u8", (8,)), ("workspace_size", "<u8"), ("state", "<i4"), ("waves", "<f4")])

alive: dict[int, NDArray[np.int64]] = {}  # cuBLASLt objects by their handle, until they are destroyed


def _create(words: Sequence[int]) -> int:
    made = np.array(words, np.int64)
    alive[made.ctypes.data] = made
    return made.ctypes.data


def _destroy(handle: int) -> None:
    del alive[handle]


def _value(address: int, size: int) -> int:
    return int.from_bytes(ctypes.string_at(address, size), "little", signed=True)


def _set_layout(handle: int, attribute: int, address: int, size: int) -> None:
    value = _value(address, size)
    if attribute in (STRIDE, BATCH):
        alive[handle][attribute] = value
    else:
        assert value == _BatchMode.POINTER_ARRAY
        alive[handle][STRIDE] = POINTERS


def _set_description(handle: int, attribute: int, address: int, size: int) -> None:
    if attribute in PLACES:
        alive[handle][PLACES[attribute]] = _value(address, size)


def _propose(handle: int, description: int, *rest: int) -> None:
    *layouts, _, wanted, found_at, count_at = rest
    assert {handle, description, *layouts} <= set(alive)
    found = np.frombuffer((ctypes.c_char * (wanted * RESULT.itemsize)).from_address(found_at), RESULT)
    count = np.frombuffer((ctypes.c_char * 4).from_address(count_at), np.int32)
    count[0] = min(wanted, PROPOSALS)
    found["algo"][:, 0] = np.arange(wanted)


class _BatchMode:
    POINTER_ARRAY = 2


def _cublaslt() -> ModuleType:
    def set_preference(handle: int, attribute: int, address: int, size: int) -> None:
        assert handle in alive

    attributes = SimpleNamespace(
        MatmulDescAttribute=SimpleNamespace(
            **{"TRANSA": 3, "EPILOGUE": EPILOGUE, "BIAS_POINTER": BIAS_POINTER, "BIAS_DATA_TYPE": 26},
            **{"A_SCALE_POINTER": A_SCALE_POINTER, "B_SCALE_POINTER": B_SCALE_POINTER},
            **{"A_SCALE_MODE": A_SCALE_MODE, "B_SCALE_MODE": B_SCALE_MODE},
        ),
        MatmulMatrixScale=SimpleNamespace(SCALAR_32F=SCALAR, OUTER_VEC_32F=OUTER_VECTOR),
        MatmulPreferenceAttribute=SimpleNamespace(MAX_WORKSPACE_BYTES=1, REDUCTION_SCHEME_MASK=3),
        MatrixLayoutAttribute=SimpleNamespace(BATCH_COUNT=BATCH, STRIDED_BATCH_OFFSET=STRIDE, BATCH_MODE=-1),
        ReductionScheme=SimpleNamespace(COMPUTE_TYPE=2, INPLACE=1),
        BatchMode=_BatchMode,
        Epilogue=SimpleNamespace(RELU_BIAS=RELU_BIAS),
    )
    return _module(
        "nvmath.bindings.cublasLt",
        **vars(attributes),
        matmul_heuristic_result_dtype=RESULT,
        create=lambda: _create([0]),
        destroy=_destroy,
        matmul_desc_create=lambda compute, scale: _create([0] * len(PLACES)),
        matmul_desc_set_attribute=_set_description,
        matmul_desc_destroy=_destroy,
        matmul_preference_create=lambda: _create([0]),
        matmul_preference_set_attribute=set_preference,
        matmul_preference_destroy=_destroy,
        matrix_layout_create=lambda kind, rows, cols, leading: _create([rows, cols, 1, 0, leading, kind]),
        matrix_layout_set_attribute=_set_layout,
        matrix_layout_destroy=_destroy,
        matmul_algo_get_heuristic=_propose,
        get_status_name=lambda status: f"status {status}",
        get_version=lambda: 130000,
        cuBLASLtError=type("cuBLASLtError", (Exception,), {}),
    )


def _module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(members)
    return made


@cache
def library_modules() -> dict[str, ModuleType]:
    """Return the stand-ins, by the names under which they are imported."""
    cublas = _module("nvmath.bindings.cublas", ComputeType=SimpleNamespace(COMPUTE_32F=68))
    lt, types = _cublaslt(), SimpleNamespace(CUDA_R_32F=0, CUDA_R_16F=2, CUDA_R_16BF=14, CUDA_R_8F_E4M3=28)
    bindings = _module("nvmath.bindings", cublas=cublas, cublasLt=lt)
    capture = SimpleNamespace(cudaStreamCaptureModeRelaxed=2)
    runtime = _module("cuda.bindings.runtime", cudaStreamCaptureMode=capture)
    cuda_bindings = _module("cuda.bindings", runtime=runtime)
    pathfinder = _module("cuda.pathfinder", load_nvidia_dynamic_lib=lambda name: SimpleNamespace(abs_path=name))
    modules = [
        _module("cupy"),
        *(_module("nvmath", CudaDataType=types, bindings=bindings), bindings, cublas, lt),
        *(_module("cuda", bindings=cuda_bindings, pathfinder=pathfinder), cuda_bindings, runtime, pathfinder),
    ]
    return {module.__name__: module for module in modules}
