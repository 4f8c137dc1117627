"""What shared memory of a block kernels/megakernel.cu needs, and for how many slots of weights that leaves room.

In: how many columns a list is compiled for, and how many bytes an element takes. Out: bytes, as struct Memory of
kernels/megakernel/inputs.cuh has them, and slots of kernels/megakernel/weights.cuh.
"""

from __future__ import annotations

from launchopt.command import Op
from launchopt.devices.instructions.words import GEMM_TILE_ROWS

PIECE_BYTES = 2048  # of kernels/megakernel/weights.cuh
SLOT_BYTES = GEMM_TILE_ROWS * (PIECE_BYTES + 64)
SCRATCH_BYTES, INPUT_BYTES, INPUT_GAP_BYTES = 32 << 10, 64 << 10, 64  # of kernels/megakernel/tiles.cuh
HELD_BYTES = (
    2 * PIECE_BYTES
)  # of k, of several columns of halves, that registers hold: kernels/megakernel/gemm_in_registers.cuh
WARPS, PART_ROWS = 8, 40
# What the kernel and its ops declare for themselves: 8,448 bytes at the most, 12,928 with attention by itself (ptxas).
STATIC_BYTES, STATIC_ATTENTION_BYTES = 10 << 10, 13 << 10
LEAST_SLOTS = 6
RING_ALIGNMENT_BYTES = 128


def is_held(columns: int, itemsize: int) -> bool:
    """Whether inputs are held in registers, not in shared memory; `columns`: of a list, or as compiled."""
    return columns > 1 and itemsize < 4


def inputs_room(columns: int, itemsize: int) -> int:
    """Bytes of shared memory for inputs, which is also what ops use."""
    return INPUT_BYTES if columns > 1 and itemsize == 4 else SCRATCH_BYTES


def fixed_bytes(columns: int, itemsize: int) -> int:
    """Of struct Memory, but for the ring, which begins at a whole RING_ALIGNMENT_BYTES; `columns`: as compiled."""
    parts = WARPS * columns * PART_ROWS * 4
    if is_held(columns, itemsize):
        used = max(SCRATCH_BYTES, 2 * parts)
    else:
        turns = 2 if columns == 1 else 1  # places in which a block's sums are left, at the most
        used = inputs_room(columns, itemsize) + -(-columns // 2) * INPUT_GAP_BYTES + turns * parts
    return -(-used // RING_ALIGNMENT_BYTES) * RING_ALIGNMENT_BYTES


def slots_of(columns: int, itemsize: int, ops: int, shared_bytes: int) -> int:
    """How many slots there is room for, of a block's shared memory. columns, ops: as compiled."""
    attends = ops >> Op.QK & 1 or ops >> Op.AV & 1
    static_bytes = STATIC_ATTENTION_BYTES if attends else STATIC_BYTES
    return (shared_bytes - static_bytes - fixed_bytes(columns, itemsize)) // SLOT_BYTES
