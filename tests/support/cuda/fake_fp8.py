"""Stand-ins for GEMMs of fp8 operands: the multiplication of cuBLASLt, and kernels/quantise_inputs.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE, from_float32, to_float32
from launchopt.weights.codes import decoded
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.weights.quantiser import quantised
from support.cuda.fake_kernels import Compute, Launched

SCALAR, OUTER_VECTOR = 0, 3  # values of cublasLtMatmulMatrixScale_t
FP8, HALVES = 28, {2: Dtype.fp16, 14: Dtype.bf16}  # values of cudaDataType_t


class Scaling(NamedTuple):
    """Modes and addresses of the scales of A and B."""

    mode_a: int
    mode_b: int
    address_a: int
    address_b: int


def memory_at(address: int, count: int, kind: Any) -> NDArray[Any]:
    """Return a view of the host's memory."""
    return np.frombuffer((ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), kind)


def scaling_of(description: int) -> Scaling | None:
    """Return the scales in a description; None if its operands are not fp8."""
    if not description:
        return None
    found = Scaling(*memory_at(description, 6, np.int64)[2:].tolist())
    return found if found.address_a else None


def multiply(scaling: Scaling, addresses: Sequence[int], layouts: Sequence[int]) -> None:
    """Multiply fp8 matrices, as cublasLtMatmul does with A transposed."""
    of_a, of_b, of_c = (memory_at(layout, 6, np.int64).tolist() for layout in layouts)
    k, m, n = of_a[0], of_a[1], of_b[1]
    assert (of_a[4:], of_b[4:], of_b[0], of_c[:2]) == ([k, FP8], [k, FP8], k, [m, n])
    assert scaling.mode_a == scaling.mode_b
    factors = []
    for address, rows, codes_at in ((scaling.address_a, m, addresses[0]), (scaling.address_b, n, addresses[1])):
        scales = memory_at(address, rows if scaling.mode_a == OUTER_VECTOR else 1, np.float32)
        codes = decoded(np, memory_at(codes_at, rows * k, np.uint8).reshape(rows, k), WeightFormat.fp8)
        factors.append(codes.astype(np.float64) * scales[:, None])
    with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads any values
        product = (factors[1] @ factors[0].T).astype(np.float32)
        outputs = from_float32(product, HALVES[of_c[5]])
    memory_at(addresses[2], m * n, outputs.dtype).reshape(n, m)[:] = outputs


def quantise_inputs(macros: Mapping[str, int]) -> Compute:
    """Return a fake of quantise_inputs.cu."""
    dtype, scales = Dtype(macros["DTYPE"]), list(Scales)[macros["SCALES"]]
    packing = Packing(list(WeightFormat)[macros["WEIGHTS"]], scales)

    def compute(launched: Launched) -> None:
        (_, b, c, _), (_, n, k, _, ldb) = launched.operands, launched.words[:5].tolist()
        assert ldb == k
        assert launched.grid[0] == (n if scales is Scales.channel else 1)
        given = to_float32(memory_at(b, n * k, STORAGE[dtype]), dtype).reshape(1, n, k)
        with np.errstate(over="ignore", invalid="ignore"):
            memory_at(c, packing.end(n, k), np.uint8)[:] = quantised(np, given, packing)[0]

    return compute
