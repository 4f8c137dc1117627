"""Make stages of our own all-reduce with the residual add, and the norm, behind it (kernels/all_reduce.cu)."""

from __future__ import annotations

from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cuda.op_plans import DEPENDENT
from launchopt.devices.peers.launches import reduce_add_launch
from launchopt.devices.steps.fusions.own_elementwise import FUSED
from launchopt.devices.steps.stage_table import Argument, Fused, Place, Role
from launchopt.devices.steps.stages import LtSteps
from launchopt.streams.chains.placement import UNIT_BYTES


def reduce_add(steps: LtSteps, place: Place) -> Fused | str:
    """Fuse an all-reduce, the residual add, and perhaps the norm. Return why not if outputs move apart in requests."""
    device, stream, norms = steps.device, steps.stream, place.stop - place.first > 2
    rows, indices = (
        stream.rows(place.kind)[place.first : place.stop],
        steps.indices(place.kind)[place.first : place.stop],
    )
    strides = [steps.tables.strides_bytes(int(index)).tolist() for index in indices]
    elements = [device.row_elements(stream.shapes[int(index)]) for index in indices]
    add, last = rows[1], rows[-1]
    if add.c.origin != last.c.origin or strides[1][2] != strides[-1][2]:
        return "our kernel of all-reduce, add and norm needs outputs that move together between requests"
    layout = (
        *(elements[1][0], elements[0][1], elements[1][2], elements[-1][2]),
        *(strides[1][0], strides[0][1], strides[1][2]),
        (last.c.slot - add.c.slot) * UNIT_BYTES,
    )
    name = "REDUCE_ADD_NORM" if norms else "REDUCE_ADD"
    function = device.kernels.function("all_reduce", name, "", **(DEPENDENT if place.pdl else {}))
    shape = stream.shapes[int(indices[0])]

    def make(size: int) -> Row:
        launch = reduce_add_launch(shape, size, layout, device.peers)
        return device.kernels.row(function, launch, place.pdl), name.encode()

    first, second = place.first, place.first + 1
    fourth = Argument(place.stop - 1, Role.A) if norms else Argument(first, Role.REQUEST)
    arguments = Argument(second, Role.A), Argument(first, Role.B), Argument(second, Role.C), fourth
    return Fused(first, place.stop, arguments, FUSED, steps.planned((name, place.pdl, shape, layout), make))
