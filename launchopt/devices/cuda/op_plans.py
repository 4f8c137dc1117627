"""Make plans of ops other than GEMM, and of our own GEMV (rows of the plans table of devices.cublaslt.launch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import SupportsInt

from launchopt.command import COLLECTIVES, Dtype, Op, ShapeKey
from launchopt.devices.arenas import SeqState
from launchopt.devices.cublaslt.kernel_plans import KernelPlans, Launch
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cuda.op_kernels import (
    GEMV_WARPS,
    QUANTISED_GEMV,
    TENSOR_GEMV,
    TENSOR_ROWS,
    TENSOR_WARPS,
    OpLaunch,
    SeqAddresses,
    Three,
    gemv_geometry,
    geometry,
)
from launchopt.devices.peers.launches import all_reduce_launch
from launchopt.devices.peers.nccl import NcclPlans
from launchopt.streams.chains.chain import Stream
from launchopt.weights.packing import Scales

MULTIPROCESSORS = 132  # multiprocessors of an H200; on other GPUs, a GEMV may be divided slightly worse
DEPENDENT: Mapping[str, int] = {"PDL": 1}  # macros of kernels that wait for earlier launches by themselves
WARPS_WANTED = 8 * MULTIPROCESSORS  # warps that keep the GPU busy
WARP_BYTES = 512  # bytes of a row that a warp reads at a time
TENSOR_CAPABILITY = 90  # lowest compute capability that multiplies and subtracts pairs of bf16, times 10
TENSOR_STEP_BITS = 4 * 128  # of a row of codes: what the four lanes of a row read in a step
TENSOR_ROUND_BITS = 2 * TENSOR_STEP_BITS


class OpPlans:
    """Makes plans for one workload stream.

    state: positions and pages of its requests; None without attention. peers: address of struct Peers, if GPUs split
    the model. nccl: makes the all-reduces, instead of our own kernel. capability: compute capability of the GPU, times
    10.
    """

    def __init__(
        self,
        stream: Stream,
        kernels: KernelPlans,
        state: SeqState | None,
        peers: int = 0,
        nccl: NcclPlans | None = None,
        capability: int = 0,
    ) -> None:
        self._stream, self._kernels, self._peers, self._nccl = stream, kernels, peers, nccl
        self._capability = capability
        self._attention = stream.attention
        self._state: SeqAddresses | None = None
        if state is not None:
            self._state = SeqAddresses(int(state.positions.data.ptr), int(state.table.data.ptr), state.requests)
        for op in {shape.op for shape in stream.shapes} - {Op.GEMM}:  # compiled before any mode's setup is timed
            kernels.function(_file_of(op), op.name)

    def _rows(self, shape: ShapeKey) -> Three:
        a, b, c = (operand.row_elements for operand in self._stream.operands(shape))
        return a, b, c

    def row(self, shape: ShapeKey, size: int, strides_bytes: Three, early: bool = False) -> Row:
        """Return the plan of one launch for `size` commands of any op but GEMM.

        early: with programmatic dependent launch (PDL).
        """
        defines = DEPENDENT if early else {}
        if self._nccl is not None and shape.op is Op.ALL_REDUCE:
            return self._nccl.row(shape, size, self._rows(shape), strides_bytes), b"NCCL"
        if shape.op in COLLECTIVES:
            made = all_reduce_launch(shape, size, self._rows(shape), strides_bytes, self._peers)
            function = self._kernels.function(_file_of(shape.op), shape.op.name, "", **defines)
            return self._kernels.row(function, made, early), shape.op.name.encode()
        launch = geometry(shape, size, self._rows(shape), strides_bytes, self._attention, self._state)
        function = self._kernels.function("ops", launch.function_name, "", **defines)
        return self._kernels.row(function, to_launch(launch), early), launch.function_name.encode()

    def gemv_row(self, shape: ShapeKey, size: int, strides_bytes: Three, early: bool) -> Row:
        """Return the plan of one launch of our own kernel for `size` GEMMs of few columns.

        early: with programmatic dependent launch (PDL).
        """
        name = gemv_of(shape, size, self._capability)
        warps, macro = warps_per_row(shape, size), "WARPS_PER_ROW"
        if name == TENSOR_GEMV:
            warps, macro = tensor_warps(shape, size), "WARPS"
        launch = gemv_geometry(shape, size, self._rows(shape), strides_bytes, warps, name)
        macros = shape.packing.macros if shape.packing else {}
        function = self._kernels.function(name, name, "", N=shape.n, PDL=int(early), **macros, **{macro: warps})
        return self._kernels.row(
            function, to_launch(launch), early
        ), f"{name} {shape.packing} {shape.n} {warps}".encode()


def _file_of(op: Op) -> str:
    """Return the file of launchopt/kernels that has the kernel of an op."""
    return "all_reduce" if op in COLLECTIVES else "ops"


def gemv_of(shape: ShapeKey, size: int, capability: int) -> str:
    """Return the kernel of GEMMs of few columns: tensor cores multiply quantised weights whose rows keep the GPU busy.

    capability: compute capability of the GPU, times 10.
    """
    if not shape.packing:
        return "gemv"
    has_rows = shape.m * size >= TENSOR_ROWS * MULTIPROCESSORS
    whole = shape.k * shape.packing.bits % TENSOR_STEP_BITS == 0
    able = shape.dtype is not Dtype.fp32 and capability >= TENSOR_CAPABILITY
    return TENSOR_GEMV if able and whole and has_rows else QUANTISED_GEMV


def tensor_warps(shape: ShapeKey, size: int) -> int:
    """Return the number of warps of a block of TENSOR_GEMV.

    Sixteen are faster if a multiprocessor has at most two blocks. Two such blocks have enough registers if codes have 8
    bits, no scale is per block, and there are at most two columns. Eight suffice for rows that they read in one round.
    """
    few_blocks = -(-shape.m // TENSOR_ROWS) * size <= 2 * MULTIPROCESSORS
    fits = shape.packing.bits == 8 and shape.packing.scales is not Scales.block and shape.n <= 2
    eight, sixteen = TENSOR_WARPS
    has_rounds = shape.k * shape.packing.bits > eight * TENSOR_ROUND_BITS
    return sixteen if few_blocks and fits and has_rounds else eight


def warps_per_row(shape: ShapeKey, size: int) -> int:
    """Return the number of warps that share a row of A: 1, 2, 4 or 8.

    It is doubled until the GPU is busy (WARPS_WANTED), or until a warp reads a row in one round (WARP_BYTES).
    """
    warps: int = 1
    row_bytes = shape.packing.row_bytes(shape.k, shape.dtype.itemsize)
    while warps < GEMV_WARPS and shape.m * size * warps < WARPS_WANTED and row_bytes > WARP_BYTES * warps:
        warps *= 2
    return warps


def to_launch(launch: OpLaunch) -> Launch:
    """Return the launch in the form that `KernelPlans.row` takes."""
    return Launch(launch.grid, launch.block, launch.shared_bytes, launch.args)


def three(values: Iterable[SupportsInt]) -> Three:
    """Return three values as Python integers."""
    a, b, c = (int(value) for value in values)
    return a, b, c
