"""Fused stages of steps on the GPU: several rows of a step in one launch (`lt_steps.Fused`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nvmath.bindings import cublasLt

from launchopt.command import ShapeKey
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.tuning import fastest_of_columns
from launchopt.devices.cuda.op_kernels import fused_geometry
from launchopt.devices.cuda.op_plans import three, to_launch
from launchopt.devices.steps.coalesced import LtCoalesced
from launchopt.devices.steps.stages import REQUEST as REQUEST
from launchopt.devices.steps.stages import A, B, C, Fused, LtSteps, step_of
from launchopt.recording.recorder import Strategy

FUSED = int(Strategy.fused)
Fusions = Callable[[LtSteps, int, int], Sequence[Fused]]  # of a kind of steps and a copy of the weights


def prepared_steps(device: Any, limits: Mapping[ShapeKey, int], fusions: Fusions) -> LtSteps:
    """Steps of every kind, fused, and launched once so that their kernels are loaded."""
    steps, stream = LtSteps(device, limits, LtCoalesced(device, limits).tables), device.work
    for kind in range(len(stream.kinds)):
        for replica in range(stream.replicas):
            steps.fuse(kind, replica, fusions(steps, kind, replica))
    device.warm_up()
    if stream.decode_kind >= 0:
        for requests in {1, steps.most_of(stream.decode_kind)}:
            steps.record(step_of(stream, requests, 0))
    device.synchronize()
    return steps


def _sizes(steps: LtSteps, columns: int) -> range:
    """How many requests a fused GEMM takes: prompts are launched one by one."""
    return range(1, steps.most + 1) if columns == 1 else range(1, 2)


def merged_gemm(steps: LtSteps, kind: int, start: int, stop: int) -> Fused:
    """GEMMs of rows `start` to `stop`, whose weights and outputs lie side by side, as one."""
    own, index = steps.stream.rows(kind)[start:stop], int(steps.indices(kind)[start])
    features, shape = sum(row.m for row in own), steps.stream.shapes[index]
    merged = ShapeKey(features, shape.n, shape.k, shape.dtype)
    make = _columns(steps, merged, index, steps.device.row_elements(shape), None)
    plan, _ = steps.tables.append(_sizes(steps, shape.n), make)
    return Fused(start, stop, ((start, A), (start, B), (start, C), (start, REQUEST)), FUSED, plan)


def epilogue_gemm(steps: LtSteps, kind: int, start: int, replica: int) -> Fused:
    """GEMM, bias and ReLU of rows `start` to `start` + 3 as one GEMM with cuBLASLt's epilogue."""
    device, stream = steps.device, steps.stream
    gemm, bias, relu = steps.indices(kind)[start : start + 3].tolist()
    shape, vector, row = stream.shapes[gemm], steps.tables.shapes[bias], stream.rows_of(kind)[start + 1]
    slot = int(stream.template["slot_a"][row]) + replica * int(stream.replica_moves[row])
    address = int(vector[lt.BASE_A]) + slot * int(vector[lt.BYTES_A])
    a, b, _ = device.row_elements(shape)
    leading = (a, b, device.row_elements(stream.shapes[relu])[2])
    epilogue = (int(cublasLt.Epilogue.RELU_BIAS), address)
    make = _columns(steps, shape, gemm, leading, epilogue)
    plan, _ = steps.tables.append(_sizes(steps, shape.n), make)
    return Fused(start, start + 3, ((start, A), (start, B), (start + 2, C), (start, REQUEST)), FUSED, plan)


def _columns(
    steps: LtSteps, shape: ShapeKey, index: int, leading: tuple[int, int, int], epilogue: tuple[int, int] | None
) -> Callable[[int], tuple[list[int], bytes]]:
    """Plans of a GEMM with a column a request, a lane apart; of one request's columns, where a step has several."""
    _, b, c = steps.tables.strides_bytes(index).tolist()
    itemsize = shape.dtype.itemsize
    make: Callable[..., tuple[list[int], bytes]] = steps.device.lt.make

    def columns(size: int, choice: int = 0) -> tuple[list[int], bytes]:
        if shape.n > 1 or size == 1:
            own = (*leading[:2], max(leading[2], shape.m))  # of one column the distance to the next is nothing
            return make(shape, 1, (0, 0, 0), own, epilogue, choice)
        wider = ShapeKey(shape.m, size, shape.k, shape.dtype)
        return make(wider, 1, (0, 0, 0), (leading[0], b // itemsize, c // itemsize), epilogue, choice)

    def chosen(size: int) -> tuple[list[int], bytes]:
        """As for the other rows: for as many requests as there can be, the fastest of what is proposed."""
        if shape.n == 1 < size == steps.most:
            return fastest_of_columns(steps.device, index, partial(columns, size))
        return columns(size)

    return chosen


def elementwise_kernel(steps: LtSteps, kind: int, start: int) -> Fused:
    """bias, ReLU and scale of rows `start` to `start` + 3 as one launch of our own kernel (fused.cu)."""
    device, indices = steps.device, steps.indices(kind)
    first, last = (steps.stream.shapes[int(indices[i])] for i in (start, start + 2))
    a, b, _ = device.row_elements(first)
    layout = (a, b, device.row_elements(last)[2])
    strides = steps.tables.strides_bytes(int(indices[start]))
    function = device.kernels.function("fused", "BIAS_RELU_SCALE")

    def make(size: int) -> tuple[list[int], bytes]:
        launch = fused_geometry(first, size, layout, three(strides))
        return device.kernels.row(function, to_launch(launch)), b"BIAS_RELU_SCALE"

    plan, _ = steps.tables.append(range(1, steps.most + 1), make)
    arguments = ((start, A), (start + 2, A), (start, B), (start + 2, C))
    return Fused(start, start + 3, arguments, FUSED, plan)
