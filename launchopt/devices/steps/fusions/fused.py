"""Make fused stages of steps on the GPU: one launch for several rows of a step (`devices.steps.stage_table.Fused`)."""

from __future__ import annotations

from collections.abc import Callable

from nvmath.bindings import cublasLt

from launchopt.command import ShapeKey
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import BASES
from launchopt.devices.cublaslt.plans import Epilogue, Gemm
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import by_strides
from launchopt.devices.cuda.op_kernels import Three, fused_geometry
from launchopt.devices.cuda.op_plans import DEPENDENT, three, to_launch
from launchopt.devices.steps.stage_table import Argument, Fused, Place, Role
from launchopt.devices.steps.stages import LtSteps
from launchopt.recording.launch_rows import Strategy

FUSED = int(Strategy.fused)


def _sizes(steps: LtSteps, columns: int) -> range:
    """Return the numbers of requests to plan a fused GEMM for. Prompts, with several columns, are launched singly."""
    return range(1, steps.most + 1) if columns == 1 else range(1, 2)


def merged_gemm(steps: LtSteps, place: Place) -> Fused:
    """Fuse adjacent GEMMs into one, since their weights are adjacent, and so are their outputs."""
    own, index = steps.stream.rows(place.kind)[place.first : place.stop], int(steps.indices(place.kind)[place.first])
    features, shape = sum(row.m for row in own), steps.stream.shapes[index]
    merged = ShapeKey(features, shape.n, shape.k, shape.dtype)
    plan = _planned(steps, index, _columns(steps, merged, index, steps.device.row_elements(shape), None))
    return Fused(place.first, place.stop, tuple(Argument(place.first, role) for role in Role), FUSED, plan)


def epilogue_gemm(steps: LtSteps, place: Place) -> Fused:
    """Fuse GEMM, bias and ReLU into one GEMM with an epilogue of cuBLASLt."""
    device, stream, start = steps.device, steps.stream, place.first
    gemm, _, relu = steps.indices(place.kind)[start : start + 3].tolist()
    shape, address = stream.shapes[gemm], steps.weight_address(place, start + 1)
    a, b, _ = device.row_elements(shape)
    leading = (a, b, device.row_elements(stream.shapes[relu])[2])
    make = _columns(steps, shape, gemm, leading, Epilogue(int(cublasLt.Epilogue.RELU_BIAS), address))
    plan = _planned(steps, gemm, make)
    first, last = start, start + 2
    arguments = Argument(first, Role.A), Argument(first, Role.B), Argument(last, Role.C), Argument(first, Role.REQUEST)
    return Fused(start, place.stop, arguments, FUSED, plan)


def _planned(steps: LtSteps, index: int, make: Callable[[int], Row]) -> int:
    """Plan a fused GEMM, whose first row has shape `index`, for every number of requests; return its row for size 0.

    Launch one number of requests for each distinct kernel, so that a run need not load kernels. The launches read
    inputs, and write outputs, that are overwritten before a run begins.
    """
    plan, distinct = steps.tables.append(_sizes(steps, steps.stream.shapes[index].n), make)
    device, row = steps.device, steps.tables.shapes[index]
    a, b, c = row[BASES].tolist()
    for size in distinct:
        device.check(
            lt.launch(steps.tables.contexts[0], steps.tables.plans[plan + size], a, b, c + device.work.spared_bytes, 0)
        )
    return plan


def _columns(
    steps: LtSteps, shape: ShapeKey, index: int, leading: Three, epilogue: Epilogue | None
) -> Callable[[int], Row]:
    """Return a function that plans one GEMM for a number of requests.

    If each request has one column, the columns of the GEMM are the requests, a lane apart. If a request has several
    columns, the GEMM has the columns of that request. leading: elements from one row of A, B and C to the next.
    """
    _, b, c = steps.tables.strides_bytes(index).tolist()
    itemsize = shape.dtype.itemsize

    def columns(size: int) -> Row:
        if shape.n > 1 or size == 1:
            own = (*leading[:2], max(leading[2], shape.m))  # `leading` may be 0 for one column; cuBLASLt requires m
            gemm = Gemm(shape, 1, (0, 0, 0), own, epilogue)
        else:
            wider = ShapeKey(shape.m, size, shape.k, shape.dtype)
            gemm = Gemm(wider, 1, (0, 0, 0), (leading[0], b // itemsize, c // itemsize), epilogue)
        return by_strides(steps.device, index, gemm, size, steps.most)

    return columns


def elementwise_kernel(steps: LtSteps, place: Place) -> Fused:
    """Fuse bias, ReLU and scale into one launch of our own kernel (fused.cu)."""
    device, indices, start = steps.device, steps.indices(place.kind), place.first
    first, last = (steps.stream.shapes[int(indices[i])] for i in (start, start + 2))
    a, b, _ = device.row_elements(first)
    layout = (a, b, device.row_elements(last)[2])
    strides = steps.tables.strides_bytes(int(indices[start]))
    function = device.kernels.function("fused", "BIAS_RELU_SCALE", "", **(DEPENDENT if place.pdl else {}))

    def make(size: int) -> Row:
        launch = fused_geometry(first, size, layout, three(strides))
        return device.kernels.row(function, to_launch(launch), place.pdl), b"BIAS_RELU_SCALE"

    plan, _ = steps.tables.append(range(1, steps.most + 1), make)
    return Fused(start, place.stop, elementwise_arguments(start), FUSED, plan)


def elementwise_arguments(start: int) -> tuple[Argument, ...]:
    """Return the arguments of a fused bias, ReLU and scale, whose first row is `start`.

    They are the bias vector, the scale vector, the input and the output.
    """
    last = start + 2
    return Argument(start, Role.A), Argument(last, Role.A), Argument(start, Role.B), Argument(last, Role.C)
