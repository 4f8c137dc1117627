"""Make stages that run bias, ReLU and scale of a step in one launch of a Triton kernel, for evenly spaced requests."""

from __future__ import annotations

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.steps.fusions.fused import elementwise_arguments
from launchopt.devices.steps.stage_table import Fused, Place
from launchopt.devices.steps.stages import LtSteps
from launchopt.devices.triton.kernels import bias_relu_scale
from launchopt.devices.triton.plans import TYPES, Variant, load_variants
from launchopt.recording.launch_rows import Strategy

BLOCK = 512  # features per block
WARPS = 4  # warps per block
Pair = tuple[int, int]  # one value for B, one for C


def variant(m: int, row_elements: Pair, stride_bytes: Pair, dtype: Dtype) -> Variant:
    """Return the kernel for m features.

    row_elements: elements from one row of B and C to the next. stride_bytes: bytes from one request's B and C to the
    next request's.
    """
    sizes = {"M": m, "LEADING": row_elements, "STRIDES": stride_bytes}
    return Variant(bias_relu_scale, sizes | {"DTYPE": TYPES[dtype], "BLOCK": BLOCK}, WARPS)


def grid(shape: ShapeKey, size: int) -> tuple[int, int, int]:
    """Return the grid for `size` requests: x is the blocks of all columns, y the requests."""
    return shape.n * -(-shape.m // BLOCK), size, 1


class TritonStages:
    """Makes fused stages for one `LtSteps`. All layers share a compiled kernel."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int], int] = {}  # rows of plans (`Fused.plan`) by first and last shape

    def fused(self, steps: LtSteps, place: Place) -> Fused:
        """Fuse bias, ReLU and scale."""
        indices, start = steps.indices(place.kind), place.first
        key = int(indices[start]), int(indices[start + 2])
        if key not in self._plans:
            self._plans[key] = self._plan(steps, *key)
        return Fused(start, place.stop, elementwise_arguments(start), int(Strategy.triton), self._plans[key])

    @staticmethod
    def _plan(steps: LtSteps, first: int, last: int) -> int:
        device = steps.device
        shape, given = steps.stream.shapes[first], steps.stream.shapes[last]
        rows = device.row_elements(shape)[1], device.row_elements(given)[2]
        strides = int(steps.tables.strides_bytes(first)[1]), int(steps.tables.strides_bytes(last)[2])
        (kernel,) = load_variants([variant(shape.m, rows, strides, shape.dtype)])
        assert kernel is not None  # it needs no shared memory

        def make(size: int) -> Row:
            return device.kernels.row(kernel.function, kernel.launch(grid(shape, size))), b"bias_relu_scale"

        plan, _ = steps.tables.append(range(1, steps.most + 1), make)
        return int(plan)
