"""What a resident kernel multiplies, and how it is told of a shape (struct Shape of kernels/common/skinny.cuh)."""

from __future__ import annotations

from launchopt.command import Op, ShapeKey

MOST_COLUMNS = 16
MOST_ROWS = (1 << 24) - 1  # what a tile's word has room for
LEAST_TILE_BYTES = 4096  # of weights: what a group of 256 threads reads at once
VECTOR_BYTES, SMALL_ROWS, SMALL_VECTORS = 16, 16, 16  # of what one warp does (kernels/persistent/small_commands.cuh)


def takes(shape: ShapeKey) -> bool:
    """Whether the kernel multiplies it: a GEMM with few columns, or few rows."""
    few, many = sorted((shape.m, shape.n))
    return shape.op is Op.GEMM and few <= MOST_COLUMNS and many <= MOST_ROWS


def is_sent(shape: ShapeKey) -> bool:
    """Whether the host is sent the outputs of a command of it that comes alone: one warp does it."""
    few, many = sorted((shape.m, shape.n))
    vectors, rest = divmod(shape.k * shape.dtype.itemsize, VECTOR_BYTES)
    return few == 1 and many <= SMALL_ROWS and vectors <= SMALL_VECTORS and not rest


def shape_words(shape: ShapeKey, row_elements: tuple[int, int, int]) -> tuple[list[int], bool]:
    """A row of the kernel's table, and whether A and B change places: the one with more rows is read as weights."""
    lda, ldb, ldc = row_elements
    swapped = shape.m < shape.n
    many, few = (shape.n, shape.m) if swapped else (shape.m, shape.n)
    rows, columns = (ldb, lda) if swapped else (lda, ldb)
    steps = (ldc, 1) if swapped else (1, ldc)
    least = max(1, LEAST_TILE_BYTES // (shape.k * shape.dtype.itemsize))
    return [many, few, shape.k, rows, columns, *steps, least], swapped
