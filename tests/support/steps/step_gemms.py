"""Random operands of our own GEMM of a decode step (kernels/step_gemm.cu), and its outputs in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.steps.fusions.gemm_plan import StepGemm
from launchopt.weights.packing import PLAIN, Packing
from launchopt.weights.quantiser import dequantised, quantised
from support.steps.programs import NORM_EPSILON

LINE_BYTES = 128
UNWRITTEN = 77.0  # value of C before a launch
SUMS = 2.0**-22  # of fp32 sums: rounding of each, times a factor for their number


def aligned(shape: tuple[int, ...], kind: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Return an array whose first element is aligned to a line."""
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.zeros(size + LINE_BYTES, np.uint8)
    first = -raw.ctypes.data % LINE_BYTES
    return raw[first : first + size].view(kind).reshape(shape)


def storage_of(dtype: Dtype) -> np.dtype[np.generic]:
    """Return the type in which elements are stored."""
    found: np.dtype[np.generic] = from_float32(np.zeros(1, np.float32), dtype).dtype
    return found


class GemmCase:
    """Operands for `requests` requests. fused: names of what is fused: norm, add, silu. packing: how A is stored."""

    def __init__(
        self,
        dtype: Dtype,
        rows: int,
        k: int,
        requests: int,
        fused: str = "",
        seed: int = 0,
        packing: Packing = PLAIN,
    ) -> None:
        self._random = np.random.default_rng([rows, k, requests, seed])
        self.dtype, self.rows, self.k, self.packing = dtype, rows, k, packing
        self.normed, self.adds, self.gated = ("norm" in fused), ("add" in fused), ("silu" in fused)
        self.a, self.b = self._filled(rows << self.gated, k + 8), self._filled(requests, k + 24)
        if packing:
            self.a = aligned((1, packing.end(rows << self.gated, k)), np.dtype(np.uint8))
            quantised(np, self._random.standard_normal((1, rows << self.gated, k)).astype(np.float32), packing, self.a)
        self.r, self.gain = self._filled(requests, rows + 3), self._filled(1, k)
        self.c = aligned((requests, rows + 5), storage_of(dtype))
        self.c[:] = from_float32(np.full(self.c.shape, UNWRITTEN, np.float32), dtype)

    def _filled(self, rows: int, columns: int) -> NDArray[np.generic]:
        found = aligned((rows, columns), storage_of(self.dtype))
        found[:] = from_float32(self._random.standard_normal((rows, columns)).astype(np.float32), self.dtype)
        return found

    def gemm(self, gain: int) -> StepGemm:
        """Return what the kernel computes. gain: address of the gain."""
        step_a = self.packing.row_bytes(self.k, 0) if self.packing else self.a.strides[0]
        steps = (step_a, self.b.strides[0], self.c.strides[0], self.r.strides[0])
        own_gain = gain if self.normed else 0
        return StepGemm(self.dtype, self.rows, self.k, steps, own_gain, self.adds, self.gated, self.packing)

    def _weights(self) -> NDArray[np.float64]:
        if not self.packing:
            return self._wide(self.a[:, : self.k])
        wide: NDArray[np.float64] = dequantised(np, self.a, self.rows << self.gated, self.k, self.packing, np.float64)[
            0
        ]
        return wide

    def _wide(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        return to_float32(values, self.dtype).astype(np.float64)

    def check(self, c: NDArray[np.generic]) -> None:
        """Compare each output with float64, within the roundings of inputs, sums and outputs."""
        weights, inputs, ulp = (
            self._weights(),
            self._wide(self.b[:, : self.k]),
            self.dtype.unit_roundoff,
        )
        if self.normed:
            inputs = inputs / np.sqrt((inputs**2).mean(axis=1, keepdims=True) + NORM_EPSILON) * self._wide(self.gain)
        exact, size = inputs @ weights.T, np.sqrt(inputs**2 @ (weights**2).T)
        error = 4 * size * (SUMS * np.sqrt(self.k) + (ulp if self.normed else 0))
        rows = self.rows
        if self.gated:
            gate, up = exact[:, :rows], exact[:, rows:]
            exact = gate / (1 + np.exp(-gate)) * up
            # SiLU's slope is at most 1.1.
            error = error[:, :rows] * np.abs(up) * 1.1 + error[:, rows:] * np.abs(gate / (1 + np.exp(-gate))) + 1e-5
        if self.adds:
            exact = exact + self._wide(self.r[:, :rows])
        found = self._wide(c)
        assert (np.abs(found[:, :rows] - exact) <= error + ulp * np.abs(exact) + 1e-6).all()
        assert (found[:, rows:] == UNWRITTEN).all(), "nothing is stored behind the outputs"
