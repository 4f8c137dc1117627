"""Stages of bias, ReLU and scale in one launch of a Triton kernel, for all requests in step that lie evenly spaced."""

from __future__ import annotations

from typing import Any

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.steps.stages import A, B, C, Fused
from launchopt.devices.triton.kernels import bias_relu_scale
from launchopt.devices.triton.plans import TYPES, Variant, load_variants
from launchopt.recording.recorder import Strategy

BLOCK, WARPS = 512, 4
Pair = tuple[int, int]  # of B and C


def variant(m: int, row_elements: Pair, stride_bytes: Pair, dtype: Dtype) -> Variant:
    """The kernel for m features, with so many elements from row to row, and bytes from request to request."""
    sizes = {"M": m, "LEADING": row_elements, "STRIDES": stride_bytes}
    return Variant(bias_relu_scale, sizes | {"DTYPE": TYPES[dtype], "BLOCK": BLOCK}, WARPS)


def grid(shape: ShapeKey, size: int) -> tuple[int, int, int]:
    """Blocks for `size` requests."""
    return shape.n * -(-shape.m // BLOCK), size, 1


class TritonStages:
    """Makes stages of a `LtSteps`; a kernel is compiled once for all layers."""

    def __init__(self, steps: Any) -> None:
        self._steps = steps
        self._plans: dict[tuple[int, int], int] = {}

    def fused(self, kind: int, start: int) -> Fused:
        """Rows `start` to `start` + 3 of a kind of steps."""
        indices = self._steps.indices(kind)
        key = int(indices[start]), int(indices[start + 2])
        if key not in self._plans:
            self._plans[key] = self._plan(*key)
        arguments = ((start, A), (start + 2, A), (start, B), (start + 2, C))
        return Fused(start, start + 3, arguments, int(Strategy.triton), self._plans[key])

    def _plan(self, first: int, last: int) -> int:
        steps, device = self._steps, self._steps.device
        shape, given = steps.stream.shapes[first], steps.stream.shapes[last]
        rows = device.row_elements(shape)[1], device.row_elements(given)[2]
        strides = int(steps.tables.strides_bytes(first)[1]), int(steps.tables.strides_bytes(last)[2])
        (kernel,) = load_variants([variant(shape.m, rows, strides, shape.dtype)])
        assert kernel is not None  # it needs no shared memory

        def make(size: int) -> tuple[list[int], bytes]:
            return device.kernels.row(kernel.function, kernel.launch(grid(shape, size))), b"bias_relu_scale"

        plan, _ = steps.tables.append(range(1, steps.most + 1), make)
        return int(plan)
