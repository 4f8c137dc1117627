"""Make stages of our own elementwise kernels (kernels/step_elementwise.cu), which fuse what engines fuse."""

from __future__ import annotations

import numpy as np

from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cuda.op_kernels import ARGS, SeqAddresses, geometry
from launchopt.devices.cuda.op_plans import DEPENDENT, three, to_launch
from launchopt.devices.steps.stage_table import Argument, Fused, Place, Role
from launchopt.devices.steps.stages import LtSteps
from launchopt.kernels.shared import ADD_NORM
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.placement import UNIT_BYTES

FUSED = int(Strategy.fused)
FILE = "step_elementwise"


def add_norm(steps: LtSteps, place: Place) -> Fused | str:
    """Fuse the residual add and the norm of its output. Return why not if these move apart between requests."""
    device, stream = steps.device, steps.stream
    add, norm = stream.rows(place.kind)[place.first : place.stop]
    of_add, of_norm = steps.indices(place.kind)[place.first : place.stop].tolist()
    strides = steps.tables.strides_bytes(of_add)
    if add.c.origin != norm.c.origin or strides[2] != steps.tables.strides_bytes(of_norm)[2]:
        return "our kernel of add and norm needs outputs that move together between requests"
    shape, function = (
        stream.shapes[of_norm],
        device.kernels.function(FILE, "ADD_NORM", "", **(DEPENDENT if place.pdl else {})),
    )
    args = np.zeros(1, ADD_NORM)
    args["m"], args["to_norm"] = add.m, (norm.c.slot - add.c.slot) * UNIT_BYTES
    for name, value in zip(("lda", "ldb", "ldc"), device.row_elements(stream.shapes[of_add]), strict=True):
        args[name] = value
    args["ldn"] = device.row_elements(shape)[2]
    for name, stride in zip(("stride_a", "stride_b", "stride_c"), strides, strict=True):
        args[name] = stride
    words, rows = args.view(np.int64), device.row_elements(shape)

    def make(size: int) -> Row:
        own = geometry(shape, size, rows, three(strides))
        return device.kernels.row(function, Launch(own.grid, own.block, 0, words), place.pdl), b"ADD_NORM"

    first, last = place.first, place.first + 1
    arguments = Argument(first, Role.A), Argument(first, Role.B), Argument(first, Role.C), Argument(last, Role.A)
    return Fused(first, place.stop, arguments, FUSED, steps.planned(("ADD_NORM", place.pdl, words.tobytes()), make))


def rope_kv(steps: LtSteps, place: Place) -> Fused:
    """Fuse rotary embedding and KV write."""
    device, stream = steps.device, steps.stream
    index = int(steps.indices(place.kind)[place.first])
    shape, state, strides = stream.shapes[index], device.state_of_sequences, steps.tables.strides_bytes(index)
    assert state is not None
    addresses = SeqAddresses(int(state.positions.data.ptr), int(state.table.data.ptr), state.requests)
    gains = steps.weight_address(place, place.first) if stream.attention and stream.attention.qk_norm else 0
    function = device.kernels.function(FILE, "ROPE_KV", "", **(DEPENDENT if place.pdl else {}))

    def make(size: int) -> Row:
        launch = geometry(shape, size, device.row_elements(shape), three(strides), stream.attention, addresses)
        launch.args[ARGS.index("qk_norm")] = gains
        return device.kernels.row(function, to_launch(launch), place.pdl), b"ROPE_KV"

    first, last = place.first, place.first + 1
    arguments = (
        Argument(last, Role.C),
        Argument(first, Role.B),
        Argument(first, Role.C),
        Argument(first, Role.REQUEST),
    )
    return Fused(first, place.stop, arguments, FUSED, steps.planned(("ROPE_KV", place.pdl, index, gains), make))
