"""Divide a GEMM of a decode step among the blocks of our own kernel (launchopt/kernels/step_gemm.cu). Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launchopt.command import Dtype
from launchopt.kernels.shared import STEP_COPIERS, STEP_GAP_BYTES, STEP_GEMM, STEP_PART_BYTES, STEP_ROWS
from launchopt.types import Table
from launchopt.weights.packing import PLAIN, Packing

MOST_COLUMNS = 16  # most requests of a launch
COLUMNS = (1, 8, MOST_COLUMNS)  # numbers of columns that the kernel is compiled for
WARP = 32
CHUNK_BYTES = 64  # bytes of k that a warp multiplies at a time
MULTIPROCESSOR_BYTES = 228 << 10  # shared memory of a multiprocessor of sm_90
RESERVED_BYTES = 1024  # shared memory that the driver adds to each block
MOST_SLOTS = 31  # slots of a ring; two barriers of each, and one more, take at most BARRIER_BYTES
BARRIER_BYTES = 512
MOST_HELD = 4  # most pieces of inputs that are in shared memory, or on their way
HELD_BYTES = 64 << 10  # most bytes of these inputs, of all blocks of a multiprocessor
MOST_GAIN_BYTES = 32 << 10
ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class StepGemm:
    """C = B @ A.T of a decode step, and what is fused with it.

    rows: rows of C of a request; with `gated`, A has 2 * rows rows. steps: bytes from a row of A to the next, and from
    B, C and R of one request to those of the next. gain: address of the weights of a norm before the GEMM; 0: no norm.
    adds: the outputs are added to R. gated: C = SiLU(gate) * up. packing: how A is stored.
    """

    dtype: Dtype
    rows: int
    k: int
    steps: tuple[int, int, int, int]
    gain: int = 0
    adds: bool = False
    gated: bool = False
    packing: Packing = PLAIN

    @property
    def refusal(self) -> str | None:
        """Return why the kernel cannot compute this; None if it can."""
        size = self.dtype.itemsize
        if self.dtype is Dtype.fp32:
            return "our GEMM of a step takes fp16 and bf16"
        whole = CHUNK_BYTES // size * self.packed
        if self.k % whole:
            return f"k={self.k} must be a multiple of {whole}"
        if any(step % ALIGNMENT_BYTES for step in self.steps[:2]):
            return f"rows of A and B must be aligned to {ALIGNMENT_BYTES} bytes"
        if self.gain and self.k * size > MOST_GAIN_BYTES:
            return f"a fused norm takes at most {MOST_GAIN_BYTES // size} features"
        return None

    @property
    def packed(self) -> int:
        """Number of weights in the bytes of one element of B: 1, or 2 or 4 of quantised ones."""
        return 8 * self.dtype.itemsize // self.packing.bits if self.packing else 1

    @property
    def scales(self) -> tuple[int, int]:
        """Bytes from A to its scales, and scales of a row of blocks; zeros without quantisation."""
        rows = self.rows << self.gated
        return (
            (self.packing.scales_at(rows, self.k), self.packing.scales_shape(rows, self.k)[1])
            if self.packing
            else (0, 0)
        )


class Division(NamedTuple):
    """How a block is divided: warps that multiply, bytes of a row in a slot, and most tiles of a pass.

    blocks: blocks that fit on a multiprocessor. With two, the next launch copies its first weights during this one, but
    large GEMMs are slower than with one, whose ring is longer.
    """

    warps: int = 8
    piece_bytes: int = 2048
    tiles: int = 8
    blocks: int = 1


DIVISION = Division()


@dataclass(frozen=True, slots=True)
class GemmLaunch:
    """Macros, grid, threads and shared memory of a block, and words of struct StepGemm.

    shared_bytes: dynamic shared memory. static_bytes: at most the other shared memory.
    """

    defines: dict[str, int]
    blocks: int
    threads: int
    shared_bytes: int
    static_bytes: int
    words: Table


def divided(gemm: StepGemm, requests: int, multiprocessors: int, early: bool, how: Division = DIVISION) -> GemmLaunch:
    """Return the launch for a number of requests. early: with programmatic dependent launch (PDL)."""
    columns = next(most for most in COLUMNS if requests <= most)
    k_bytes = gemm.k * gemm.dtype.itemsize
    units = -(-gemm.rows // STEP_ROWS)  # halves of tiles, or pairs of them
    blocks = min(multiprocessors, units)
    each, more = divmod(units, blocks)
    halves = (each + (more > 0)) << gemm.gated
    groups, lanes = -(-columns // 8), min(-(-columns // 2), 4)
    tiles = min(how.tiles, -(-halves // 2))
    gain_bytes = k_bytes if gemm.gain else 0
    slot_bytes = STEP_ROWS * (how.piece_bytes // gemm.packed + STEP_GAP_BYTES)
    tile_bytes = how.warps * groups * lanes * STEP_ROWS * 16
    pieces = -(-k_bytes // how.piece_bytes)
    stage_bytes = how.piece_bytes * columns
    held = max(2, min(pieces, MOST_HELD, HELD_BYTES // how.blocks // stage_bytes))
    static_bytes = min(tiles, STEP_PART_BYTES // tile_bytes) * tile_bytes + how.warps * 8 * groups * 4 + BARRIER_BYTES
    block_bytes = MULTIPROCESSOR_BYTES // how.blocks - RESERVED_BYTES
    slots = (block_bytes - gain_bytes - held * stage_bytes - static_bytes) // slot_bytes
    slots = max(2, min(slots, MOST_SLOTS, halves * pieces))
    defines = {
        **{"COLUMNS": columns, "WARPS": how.warps, "PIECE_BYTES": how.piece_bytes, "TILES": tiles, "SLOTS": slots},
        **{"NORMED": int(gemm.gain > 0), "ADDS": int(gemm.adds), "GATED": int(gemm.gated)},
        **{"PDL": int(early), "BLOCKS": how.blocks, "HELD": held},
        **{"WHOLE": int(k_bytes % how.piece_bytes == 0)},
        **(gemm.packing.macros if gemm.packing else {}),
    }
    words = np.zeros(1, STEP_GEMM)
    pair_rows = gemm.rows if gemm.gated else 0
    words[0] = (gemm.rows, pair_rows, k_bytes, requests, *gemm.steps, each, more, gemm.gain, *gemm.scales)
    shared_bytes, threads = slots * slot_bytes + held * stage_bytes + gain_bytes, WARP * (how.warps + STEP_COPIERS)
    return GemmLaunch(defines, blocks, threads, shared_bytes, static_bytes, words.view(np.int64))
