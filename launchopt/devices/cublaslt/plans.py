"""cuBLASLt plans: the objects that one `cublasLtMatmul` needs. They are made before the clock starts.

cuBLASLt is column-major. Our row-major A [m, k], B [n, k] and C [n, m] are its A (k x m, transposed), B (k x n) and
C (m x n). Both inputs are therefore contiguous along k. Products accumulate in fp32, without TF32. If cuBLASLt splits
k, it may not use its scheme OUTPUT_TYPE, which adds the partial sums in half precision.

With `Gemm.scaling`, A and B are fp8 (e4m3), and cuBLASLt multiplies sums by the scales of both. FAST_ACCUM stays off:
partial sums are added in fp32 from time to time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib
from nvmath import CudaDataType
from nvmath.bindings import cublas, cublasLt

from launchopt.command import Dtype, ShapeKey
from launchopt.errors import RunError

WORKSPACE_LIMIT_BYTES = 32 << 20  # NVIDIA's recommendation for Hopper
TRANSPOSE = 1  # CUBLAS_OP_T
CUDA_TYPES = {
    Dtype.fp32: CudaDataType.CUDA_R_32F,
    Dtype.fp16: CudaDataType.CUDA_R_16F,
    Dtype.bf16: CudaDataType.CUDA_R_16BF,
}
FP8 = CudaDataType.CUDA_R_8F_E4M3
Strides = tuple[int, int, int]  # strides of A, B and C
PlanRow = tuple[list[int], bytes]  # a row of the plans table, and bytes that identify its kernel


class Epilogue(NamedTuple):
    """An epilogue of cuBLASLt, and the address of its bias: a vector of the stream's type, one element per row of C."""

    number: int  # value of cublasLtEpilogue_t
    bias_address: int


class Scaling(NamedTuple):
    """What shares a scale of a GEMM's fp8 operands, and the addresses of the scales of A and of B, fp32."""

    mode: int  # value of cublasLtMatmulMatrixScale_t, for both operands
    a_address: int
    b_address: int


class Gemm(NamedTuple):
    """A GEMM of `batch` commands in one call.

    stride_bytes: from the A, B and C of one command to those of the next; None: each operand is an array of pointers.
    leading: elements from one row of A, B, C to the next; None: rows are contiguous. scaling: of fp8 operands, for one
    command; None: A and B have the dtype of C.
    """

    shape: ShapeKey
    batch: int
    stride_bytes: Strides | None
    leading: Strides | None = None
    epilogue: Epilogue | None = None
    scaling: Scaling | None = None

    @property
    def key(self) -> Hashable:
        """Return a key that GEMMs share if one algorithm is the fastest for all of them."""
        return self._replace(
            epilogue=self.epilogue and self.epilogue._replace(bias_address=0),
            scaling=self.scaling and self.scaling._replace(a_address=0, b_address=0),
        )


def matmul_address() -> int:
    """Return the address of `cublasLtMatmul` in the library that nvmath loaded."""
    import ctypes

    library = ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    address = ctypes.cast(library.cublasLtMatmul, ctypes.c_void_p).value
    assert address is not None
    return address


class Plans:
    """Makes plans for one element type and owns their cuBLASLt objects until `close`.

    tunes: the algorithms that cuBLASLt proposes are timed (devices/cublaslt/tuning.py).
    """

    def __init__(self, dtype: Dtype, tunes: bool = True) -> None:
        self.dtype, self.tunes = dtype, tunes
        self.choices: dict[Hashable, int] = {}  # number of the fastest algorithm, by the key of a GEMM
        self.tuning_ns = 0  # time spent on timing algorithms
        self.handle = cublasLt.create()
        self._descriptions: list[int] = []
        self._description = self._describe()
        self._preference = cublasLt.matmul_preference_create()
        prefer = cublasLt.MatmulPreferenceAttribute
        limit = np.uint64(WORKSPACE_LIMIT_BYTES)
        self._set(cublasLt.matmul_preference_set_attribute, self._preference, prefer.MAX_WORKSPACE_BYTES, limit)
        schemes = cublasLt.ReductionScheme
        mask = np.uint32(int(schemes.COMPUTE_TYPE) | int(schemes.INPLACE))
        self._set(cublasLt.matmul_preference_set_attribute, self._preference, prefer.REDUCTION_SCHEME_MASK, mask)
        self._layouts: list[int] = []
        self._algorithms: list[Any] = []

    def _describe(self, epilogue: Epilogue | None = None, scaling: Scaling | None = None) -> int:
        """Return a new cublasLtMatmulDesc_t, with A transposed."""
        scalar = int(CudaDataType.CUDA_R_32F)
        made: int = cublasLt.matmul_desc_create(int(cublas.ComputeType.COMPUTE_32F), scalar)
        self._descriptions.append(made)
        setter = cublasLt.matmul_desc_set_attribute
        self._set(setter, made, _ATTR.TRANSA, np.int32(TRANSPOSE))
        if epilogue is not None:
            self._set(setter, made, _ATTR.EPILOGUE, np.int32(epilogue.number))
            self._set(setter, made, _ATTR.BIAS_POINTER, np.int64(epilogue.bias_address))
            self._set(setter, made, _ATTR.BIAS_DATA_TYPE, np.int32(CUDA_TYPES[self.dtype]))
        if scaling is not None:
            self._set(setter, made, _ATTR.A_SCALE_MODE, np.int32(scaling.mode))
            self._set(setter, made, _ATTR.B_SCALE_MODE, np.int32(scaling.mode))
            self._set(setter, made, _ATTR.A_SCALE_POINTER, np.int64(scaling.a_address))
            self._set(setter, made, _ATTR.B_SCALE_POINTER, np.int64(scaling.b_address))
        return made

    @staticmethod
    def _set(setter: Callable[..., None], target: int, attribute: int, value: np.generic) -> None:
        buffer = np.array([value])
        setter(target, int(attribute), buffer.ctypes.data, buffer.nbytes)

    def _layout(self, kind: int, sizes: Strides, batch: int, stride_elements: int | None) -> int:
        """Return a new cublasLtMatrixLayout_t of `batch` matrices.

        kind: value of cudaDataType_t. sizes: rows, columns, and elements from one column to the next. stride_elements:
        from one matrix to the next; None: the operand is an array of pointers.
        """
        layout: int = cublasLt.matrix_layout_create(kind, *sizes)
        self._layouts.append(layout)
        attributes, setter = cublasLt.MatrixLayoutAttribute, cublasLt.matrix_layout_set_attribute
        if batch > 1 or stride_elements is None:
            self._set(setter, layout, attributes.BATCH_COUNT, np.int32(batch))
        if stride_elements is None:
            self._set(setter, layout, attributes.BATCH_MODE, np.int32(cublasLt.BatchMode.POINTER_ARRAY))
        elif batch > 1:
            self._set(setter, layout, attributes.STRIDED_BATCH_OFFSET, np.int64(stride_elements))
        return layout

    def make(self, gemm: Gemm, choice: int = 0) -> PlanRow:
        """Return a row of the plans table (`launch.PlanColumn`), and bytes that identify its algorithm.

        choice: index into the algorithms that cuBLASLt proposes, which are in its order of preference. RunError:
        cuBLASLt proposes no such algorithm.
        """
        description = self._description
        if gemm.epilogue or gemm.scaling:
            description = self._describe(gemm.epilogue, gemm.scaling)
        layouts = self._layouts_of(gemm)
        found = np.zeros(choice + 1, cublasLt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        try:
            cublasLt.matmul_algo_get_heuristic(
                self.handle,
                description,
                *layouts,
                layouts[2],
                self._preference,
                choice + 1,
                found.ctypes.data,
                count.ctypes.data,
            )
        except cublasLt.cuBLASLtError as error:
            if gemm.scaling is None:
                raise
            raise RunError(f"{self._none_for(gemm)}: {error}") from error
        if count[0] <= choice or found["state"][choice] != 0:
            raise RunError(self._none_for(gemm))
        algorithm = found["algo"][choice : choice + 1].copy()
        self._algorithms.append(algorithm)
        workspace_bytes = int(found["workspace_size"][choice])
        row = [description, *layouts, algorithm.ctypes.data, workspace_bytes]
        return row, algorithm.tobytes()

    def with_scales(self, row: list[int], scaling: Scaling) -> list[int]:
        """Return a row that is like the row of a GEMM of fp8 operands, but has scales at other addresses."""
        return [self._describe(scaling=scaling), *row[1:]]

    def _layouts_of(self, gemm: Gemm) -> list[int]:
        """Return new layouts of A, B and C."""
        shape, own = gemm.shape, int(CUDA_TYPES[self.dtype])
        given = own if gemm.scaling is None else int(FP8)
        strides: list[int | None] = [None] * 3
        if gemm.stride_bytes is not None:
            strides = [stride // self.dtype.itemsize for stride in gemm.stride_bytes]
        leading = gemm.leading or (shape.k, shape.k, shape.m)
        return [
            self._layout(kind, (rows, cols, lead), gemm.batch, stride)
            for kind, rows, cols, lead, stride in (
                (given, shape.k, shape.m, leading[0], strides[0]),
                (given, shape.k, shape.n, leading[1], strides[1]),
                (own, shape.m, shape.n, leading[2], strides[2]),
            )
        ]

    def _none_for(self, gemm: Gemm) -> str:
        stored = f", {gemm.shape.packing} by fp8 inputs" if gemm.scaling else ""
        return f"cuBLASLt has no algorithm for {gemm.batch} x {gemm.shape} {self.dtype.name}{stored}"

    def close(self) -> None:
        """Destroy all cuBLASLt objects."""
        for layout in self._layouts:
            cublasLt.matrix_layout_destroy(layout)
        self._layouts.clear()
        cublasLt.matmul_preference_destroy(self._preference)
        for description in self._descriptions:
            cublasLt.matmul_desc_destroy(description)
        cublasLt.destroy(self.handle)


_ATTR = cublasLt.MatmulDescAttribute
