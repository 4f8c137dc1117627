"""Choose the Triton kernels to time for GEMMs of few columns with quantised weights (quantised_kernels)."""

from __future__ import annotations

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.triton.plans import TYPES, Variant
from launchopt.devices.triton.quantised_kernels import quantised_dot, quantised_sum
from launchopt.devices.triton.tuning import Config, dot_columns
from launchopt.errors import RunError
from launchopt.weights.packing import WeightFormat

# PTX that turns four bytes of int4 codes into halves: two pairs of lower ones, then two of upper ones. A code + 8 goes
# into the lowest bits of the mantissa of a power of two, which is then subtracted with the 8.
_UNPACK = """{{
    .reg .b32 low, high, offset;
    and.b32 low, $4, 0x0F0F0F0F;
    shr.b32 high, $4, 4;
    and.b32 high, high, 0x0F0F0F0F;
    mov.b32 offset, {offset};
    prmt.b32 $0, low, {power}, 0x4140;
    prmt.b32 $1, low, {power}, 0x4342;
    prmt.b32 $2, high, {power}, 0x4140;
    prmt.b32 $3, high, {power}, 0x4342;
    sub.rn.{kind} $0, $0, offset;
    sub.rn.{kind} $1, $1, offset;
    sub.rn.{kind} $2, $2, offset;
    sub.rn.{kind} $3, $3, offset;
}}"""
UNPACK = {  # 1024 and 1032 in fp16, 128 and 136 in bf16
    Dtype.fp16: _UNPACK.format(power="0x64646464", offset="0x64086408", kind="f16x2"),
    Dtype.bf16: _UNPACK.format(power="0x43434343", offset="0x43084308", kind="bf16x2"),
    Dtype.fp32: "",
}
OLDEST = {Dtype.fp16: 80, Dtype.bf16: 90, Dtype.fp32: 80}  # compute capability that has these instructions, times 10


def quantised_variant(
    shape: ShapeKey, row_elements: tuple[int, int, int], config: Config, policy: str, direct: bool, capability: int
) -> Variant:
    """Return the kernel to compile; arguments as of `gemm.variant`. policy: cache policy of the weight."""
    packing = shape.packing
    is_int4 = packing.format is WeightFormat.int4
    if is_int4 and shape.n > 1 and row_elements[1] % 2:
        raise RunError(f"columns of inputs are {row_elements[1]} elements apart: int4 codes need an even number")
    is_fast = is_int4 and capability >= OLDEST[shape.dtype]
    constants = {
        **{"M": shape.m, "N": shape.n, "K": shape.k, "LEADING": row_elements, "DTYPE": TYPES[shape.dtype]},
        **{"ROWS": config.rows, "DEPTH": config.depth, "STAGES": config.stages, "POLICY": policy, "DIRECT": direct},
        **{"FORMAT": str(packing.format), "SCALES": str(packing.scales), "BLOCK_ROWS": packing.block_rows},
        **{"SCALES_AT": packing.scales_at(shape.m, shape.k), "UNPACK": UNPACK[shape.dtype] if is_fast else ""},
    }
    if not config.dot:
        return Variant(quantised_sum, constants, config.warps)
    return Variant(quantised_dot, constants | {"COLUMNS": dot_columns(shape.n)}, config.warps, config.stages)
