"""Make stages of our own GEMM (kernels/step_gemm.cu), with what is fused with it.

A stage may begin with the norm whose output the GEMM reads, and may end with the ADD or the SiLU(gate) * up that reads
the GEMM's output. Only the last output is stored. Merged GEMMs, whose weights and outputs are side by side, are one.
"""

from __future__ import annotations

from launchopt.command import Op
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.steps.fusions.gemm_plan import (
    MOST_COLUMNS,
    MULTIPROCESSOR_BYTES,
    RESERVED_BYTES,
    StepGemm,
    divided,
)
from launchopt.devices.steps.stage_table import Argument, Fused, Place, Role
from launchopt.devices.steps.stages import LtSteps
from launchopt.recording.launch_rows import Strategy

LEAST_CAPABILITY = (
    90  # lowest compute capability that has bulk copies, times 10; some later ones have less shared memory
)


def step_gemm(steps: LtSteps, place: Place) -> Fused | str:
    """Return the stage of a GEMM and its neighbours, for up to MOST_COLUMNS requests.

    Return the reason if the kernel cannot compute it (`StepGemm.refusal`); the library's GEMM then stays.
    """
    import cupy  # imported here, since tests describe GEMMs without CuPy

    device, gpu = steps.device, cupy.cuda.Device()
    gemm = described(steps, place)
    if gemm is None:
        return "our GEMM of a step reads all features of the norm before it"
    if gemm.refusal:
        return gemm.refusal
    if int(gpu.compute_capability) < LEAST_CAPABILITY:
        found, least = int(gpu.compute_capability) / 10, LEAST_CAPABILITY / 10
        return f"our GEMM of a step needs a GPU of compute capability {least}, and this one has {found}"
    if int(gpu.attributes["MaxSharedMemoryPerBlockOptin"]) < MULTIPROCESSOR_BYTES - RESERVED_BYTES:
        return f"our GEMM of a step needs {(MULTIPROCESSOR_BYTES - RESERVED_BYTES) >> 10} KiB of shared memory a block"
    multiprocessors = int(gpu.attributes["MultiProcessorCount"])

    def make(size: int) -> Row:
        found = divided(gemm, size, multiprocessors, place.pdl)
        function = device.kernels.function("step_gemm", "step_gemm", "", **found.defines)
        launch = Launch((found.blocks, 1, 1), (found.threads, 1, 1), found.shared_bytes, found.words)
        return device.kernels.row(function, launch, place.pdl), str(found.defines).encode()

    plan = steps.planned((gemm, place.pdl), make, MOST_COLUMNS)
    return Fused(place.first, place.stop, arguments_of(steps, place), int(Strategy.fused), plan)


def described(steps: LtSteps, place: Place) -> StepGemm | None:
    """Return the GEMM of some rows and what is fused with it; None if it reads only a part of the norm's output."""
    stream, rows = steps.stream, steps.stream.rows(place.kind)[place.first : place.stop]
    shapes = steps.indices(place.kind)[place.first : place.stop].tolist()
    at = 1 if rows[0].op is Op.NORM else 0
    gemm, last = stream.shapes[shapes[at]], rows[-1]
    if at and rows[0].m != gemm.k:
        return None
    itemsize = gemm.dtype.itemsize
    row_a, _, _ = steps.device.row_elements(gemm)
    _, step_b, _ = steps.tables.strides_bytes(shapes[0]).tolist()
    step_r, _, step_c = steps.tables.strides_bytes(shapes[-1]).tolist()
    adds, gated = last.op is Op.ADD, last.op is Op.SILU_MUL
    step_a = gemm.packing.row_bytes(max(row_a, gemm.k), itemsize)
    steps_bytes = (step_a, step_b, step_c, step_r if adds else 0)
    features = sum(row.m for row in rows if row.op is Op.GEMM) if last.op is Op.GEMM else last.m
    gain = steps.weight_address(place, place.first) if at else 0
    return StepGemm(gemm.dtype, features, gemm.k, steps_bytes, gain, adds, gated, gemm.packing)


def arguments_of(steps: LtSteps, place: Place) -> tuple[Argument, ...]:
    """Return A of the GEMM, B of the first row, C, and R: A of the ADD, if there is one.

    C is that of the last row; that of the first one of merged GEMMs, if they are last.
    """
    rows, last = steps.stream.rows(place.kind)[place.first : place.stop], place.stop - 1
    gemm = place.first + (rows[0].op is Op.NORM)
    fourth = Argument(last, Role.A if rows[-1].op is Op.ADD else Role.REQUEST)
    stored = gemm if rows[-1].op is Op.GEMM else last
    return Argument(gemm, Role.A), Argument(place.first, Role.B), Argument(stored, Role.C), fourth
