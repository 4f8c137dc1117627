"""The tables that compiled launch loops read: their columns and words, and the fields that hold them.

`tables.Tables` builds these tables, and `launch` reads them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from launchopt.types import Table


class ShapeColumn(enum.IntEnum):
    """Columns of `LaunchTables.shapes`, which has one row per shape."""

    BASE_A = 0  # address of the arena of A
    BASE_B = 1
    BASE_C = 2
    BYTES_A = 3  # bytes from one slot of A to the next
    BYTES_B = 4
    BYTES_C = 5
    MOVE_A = 6  # slots of A from one command of an evenly spaced batch to the next
    MOVE_B = 7
    MOVE_C = 8
    PLAN0 = 9  # a batch of n commands has the plan in row PLAN0 + n of `plans`
    PACKED0 = 10  # a packed batch of n commands has the plan in row PACKED0 + n; 0: no packed plans
    ONE_IS = 11  # Strategy of a launch of one command
    MANY_ARE = 12  # Strategy of a launch of several


BASES = slice(int(ShapeColumn.BASE_A), int(ShapeColumn.BASE_C) + 1)
BYTES = slice(int(ShapeColumn.BYTES_A), int(ShapeColumn.BYTES_C) + 1)
MOVES = slice(int(ShapeColumn.MOVE_A), int(ShapeColumn.MOVE_C) + 1)


class PlanColumn(enum.IntEnum):
    """Columns of `LaunchTables.plans`, a row per batch size. Kinds other than MATMUL have other columns before KIND."""

    DESCRIPTION = 0  # cublasLtMatmulDesc_t
    LAYOUT_A = 1  # cublasLtMatrixLayout_t
    LAYOUT_B = 2
    LAYOUT_C = 3
    ALGORITHM = 4  # address of a cublasLtMatmulAlgo_t
    WORKSPACE_BYTES = 5
    KIND = 6  # PlanKind


class PlanKind(enum.IntEnum):
    """The way in which a plan runs a batch."""

    MATMUL = 0  # a launch by cublasLtMatmul
    KERNEL = 1  # a launch by cuLaunchKernelEx
    RESIDENT = 2  # no launch: commands are posted to the queue of the persistent kernel


class KernelColumn(enum.IntEnum):
    """Columns of a plan whose kind is KERNEL."""

    CONFIG = 0  # address of the CUlaunchConfig
    FUNCTION = 1  # CUfunction
    PARAMETERS = 2  # address of the array of pointers to the parameters
    OPERANDS = 3  # address of the first four parameters (A, B, C, request), which are written before each launch


class ResidentColumn(enum.IntEnum):
    """Columns of a plan of kind RESIDENT."""

    QUEUE = 0  # address of the persistent kernel's queue
    NUMBER = 1  # number of the shape in the persistent kernel
    SWAPPED = 2  # 1: A and B are exchanged; 0: they are not


class ContextWord(enum.IntEnum):
    """Words of a row of `LaunchTables.contexts`: arguments that all launches on one CUDA stream share."""

    FUNCTION = 0  # address of cublasLtMatmul
    HANDLE = 1  # cublasLtHandle_t
    ALPHA = 2  # address of alpha
    BETA = 3  # address of beta
    WORKSPACE = 4  # device address of the workspace
    STREAM = 5  # CUstream
    LAUNCH_FUNCTION = 6  # address of cuLaunchKernelEx


class LaunchTables(NamedTuple):
    """The tables that launches read."""

    shapes: Table  # [shapes, ShapeColumn]
    plans: Table  # [rows, PlanColumn]
    contexts: Table  # [CUDA streams, ContextWord]; the number of CUDA streams is a power of two


TableArrays = tuple[Table, Table, Table]  # the fields of LaunchTables, as Python passes them
