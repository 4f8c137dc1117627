"""How a weight is stored: its format, the values that share a scale, and the place of both in a slot.

A weight of `rows` output features and `cols` inputs is `rows * cols` codes, row after row, and behind them its scales.
A value is its code times its scale. The format is symmetric: there is no zero point.

    fp8     e4m3 as in OCP's 8-bit floating point: 1 sign bit, 4 of the exponent (bias 7), 3 of the mantissa, up to 448
    int8    two's complement, -127 to 127
    int4    two codes a byte, the first in the lower half; a half holds the code + 8, for codes from -7 to 7

    channel   a scale for each row
    tensor    one scale for the weight
    block     fp8 and int8: a scale for 128 x 128 values; int4: one for 128 values of a row

Scales are fp32; those of int4 are fp16. Engines store them in this way: vLLM and TensorRT-LLM have fp8 and int8 per
channel or per tensor, DeepSeek's fp8 models 128 x 128 blocks, GPTQ and AWQ groups of 128 values of int4.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from launchopt.errors import ConfigError

BLOCK = 128  # values along k, and rows of fp8 and int8, that share a scale of `Scales.block`
ROW_BYTES = 16  # codes of a row take a multiple of it: kernels load whole vectors
SCALES_ALIGNMENT_BYTES = 256  # scales begin at a multiple of it


class WeightFormat(enum.StrEnum):
    """How the elements of weights are stored."""

    none = "none"  # as workload.dtype: not quantised
    fp8 = "fp8"
    int8 = "int8"
    int4 = "int4"


class Scales(enum.StrEnum):
    """The values of a weight that share a scale."""

    channel = "channel"
    tensor = "tensor"
    block = "block"


BITS = {WeightFormat.fp8: 8, WeightFormat.int8: 8, WeightFormat.int4: 4}
LARGEST_CODE = {WeightFormat.fp8: 448, WeightFormat.int8: 127, WeightFormat.int4: 7}
USUAL = {WeightFormat.fp8: Scales.channel, WeightFormat.int8: Scales.channel, WeightFormat.int4: Scales.block}


@dataclass(frozen=True, slots=True, order=True)
class Packing:
    """Format and scales of a weight. The default is a weight that is not quantised."""

    format: WeightFormat = WeightFormat.none
    scales: Scales = Scales.channel

    def __bool__(self) -> bool:
        """Return whether the weight is quantised."""
        return self.format is not WeightFormat.none

    def __str__(self) -> str:
        """Return `fp8 per channel`, or `none`."""
        return f"{self.format} per {self.scales}" if self else str(self.format)

    @property
    def unit_roundoff(self) -> float:
        """Largest error of a value, relative to the largest one that shares its scale; 0 if it is not quantised."""
        steps = {
            WeightFormat.none: 0.0,
            WeightFormat.fp8: 2.0**-4,
            WeightFormat.int8: 0.5 / 127,
            WeightFormat.int4: 0.5 / 7,
        }
        return steps[self.format]

    @property
    def macros(self) -> dict[str, int]:
        """Macros of kernels that read such a weight (kernels/common/quantised.cuh)."""
        return {"WEIGHTS": list(WeightFormat).index(self.format), "SCALES": list(Scales).index(self.scales)}

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return BITS[self.format]

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale."""
        return 2 if self.format is WeightFormat.int4 else 4

    @property
    def block_rows(self) -> int:
        """Rows that share a scale of `Scales.block`."""
        return 1 if self.format is WeightFormat.int4 else BLOCK

    def scales_shape(self, rows: int, cols: int) -> tuple[int, int]:
        """Return the rows and columns of the scales of a weight."""
        if self.scales is Scales.tensor:
            return 1, 1
        if self.scales is Scales.channel:
            return rows, 1
        return -(-rows // self.block_rows), -(-cols // BLOCK)

    def row_bytes(self, cols: int, itemsize: int) -> int:
        """Return the bytes of a row without its scales. itemsize: bytes of an element that is not quantised."""
        return cols * self.bits // 8 if self else cols * itemsize

    def codes_bytes(self, rows: int, cols: int) -> int:
        """Return the bytes of a weight's codes."""
        return rows * cols * self.bits // 8

    def scales_at(self, rows: int, cols: int) -> int:
        """Return the offset of the scales of a weight in its slot, in bytes."""
        return -(-self.codes_bytes(rows, cols) // SCALES_ALIGNMENT_BYTES) * SCALES_ALIGNMENT_BYTES

    def bytes(self, rows: int, cols: int, itemsize: int) -> int:
        """Return the bytes of a weight's codes and scales, without the gap between them.

        itemsize: bytes of an element that is not quantised.
        """
        if not self:
            return rows * cols * itemsize
        down, across = self.scales_shape(rows, cols)
        return self.codes_bytes(rows, cols) + down * across * self.scale_bytes

    def slot_bytes(self, rows: int, cols: int, itemsize: int) -> int:
        """Return the bytes of a slot that holds a weight, without alignment. itemsize: as in `bytes`."""
        return self.end(rows, cols) if self else rows * cols * itemsize

    def end(self, rows: int, cols: int) -> int:
        """Return the end of the scales of a quantised weight in its slot, in bytes."""
        down, across = self.scales_shape(rows, cols)
        return self.scales_at(rows, cols) + down * across * self.scale_bytes

    def check(self, cols: int, name: str = "k") -> None:
        """Raise ConfigError if rows of `cols` values cannot be quantised. name: of their number, for the error."""
        if not self:
            return
        if self.scales is Scales.block and cols % BLOCK:
            others = f"use a multiple of {BLOCK}, or workload.scales={Scales.channel}"
            raise ConfigError("workload.scales", self.scales, f"{name}={cols} is no multiple of a block: {others}")
        if cols * self.bits % (8 * ROW_BYTES):
            multiple = 8 * ROW_BYTES // self.bits
            why = f"{name}={cols} is no multiple of {multiple}, the values in {ROW_BYTES} bytes"
            raise ConfigError("workload.weights", self.format, f"{why}: use such a {name}, or workload.weights=none")


PLAIN = Packing()


def packing_of(weights: WeightFormat, scales: Scales | None) -> Packing:
    """Return the packing that two options ask for. scales: null stands for those that engines use most."""
    if weights is WeightFormat.none:
        if scales is not None:
            formats = ", ".join(BITS)
            raise ConfigError(
                "workload.scales", scales, f"only quantised weights have scales: set workload.weights to {formats}"
            )
        return PLAIN
    return Packing(weights, USUAL[weights] if scales is None else scales)
