"""Every kernel compiles with the compiler that compiles it on a GPU. The host's compiler does not see its PTX."""

from __future__ import annotations

import pytest
from support.nvrtc import Compiled, compiled, library
from support.quantised import PACKINGS
from support.thorough import is_thorough

from launchopt.command import Dtype, Op
from launchopt.devices.feedback.in_launch import head_of, loop_source, source_of
from launchopt.devices.steps.expert_fusions import FUSED, ROUTE, FusedLaunches, Memory, launches_of
from launchopt.kernels import source
from launchopt.kernels.shared_peers import ALL_REDUCE_THREADS
from launchopt.sampling import SamplingKind
from launchopt.stack import EXPERT_FUSIONS
from launchopt.streams.experts.layout import ExpertLayer, ExpertLayout
from launchopt.weights.packing import PLAIN as NOT_QUANTISED
from launchopt.weights.packing import Packing, Scales, WeightFormat

pytestmark = pytest.mark.skipif(library() is None, reason="needs nvidia-cuda-nvrtc: pip install -e '.[dev]'")
DTYPES = [*Dtype] if is_thorough() else [Dtype.bf16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
halves = pytest.mark.parametrize(
    "dtype", [each for each in DTYPES if each is not Dtype.fp32], ids=lambda each: each.name
)
REGISTERS = 65_536  # of a multiprocessor
FP8, INT4 = Packing(WeightFormat.fp8, Scales.channel), Packing(WeightFormat.int4, Scales.block)

PLAIN = {"copies": {}, "echo": {}, "null": {}, "fused": {"PDL": 1}, "step_elementwise": {"PDL": 1}, "ops": {"PDL": 1}}
GEMV = {"N": 4, "WARPS_PER_ROW": 2, "PDL": 1}
GEMM = {
    **{"COLUMNS": 8, "WARPS": 8, "PIECE_BYTES": 2048, "TILES": 4, "SLOTS": 8, "HELD": 4, "BLOCKS": 1, "PDL": 1},
    **{"NORMED": 1, "ADDS": 0, "GATED": 1, "WHOLE": 1},
}
HEADS = {"HEAD_DIM": 128, "GROUP": 4, "PAGE_TOKENS": 16, "QK_NORM": 1}
MEGAKERNEL = {
    **{"COLUMNS": 16, "SLOTS": 8, "GROUPS": 0, "COUNTS": 0, "ONE_STEP": 0, "PAIRS": 1, "LOGITS": 1, "SHORT": 0},
    **{"OPS": 1 << Op.ADD | 1 << Op.NORM, "FUSED": 1 << Op.ROPE | 1 << Op.NORM | 1 << Op.ADD | 1 << Op.SILU_MUL},
}


def is_compiled(text: str, **macros: int) -> Compiled:
    """Compile a source, which must be right."""
    found = compiled(text, **macros)
    assert found.is_ok, found.log[:2000]
    return found


@each_dtype
@pytest.mark.parametrize("name", PLAIN)
def test_plain_kernels(name: str, dtype: Dtype) -> None:
    is_compiled(source(name), DTYPE=dtype, **PLAIN[name])


@halves
@pytest.mark.parametrize("weights", ["plain", "fp8", "int8", "int4"])
def test_gemv_without_spilled_registers(weights: str, dtype: Dtype) -> None:
    number = ["plain", "fp8", "int8", "int4"].index(weights)
    for scales in range(3) if number else (0,):
        more = {"WEIGHTS": number, "SCALES": scales} if number else {}
        name = "gemv_quantised" if number else "gemv"
        assert is_compiled(source(name), DTYPE=dtype, **GEMV, **more).spilled == [0]


@halves
@pytest.mark.parametrize("columns", range(1, 9) if is_thorough() else (1, 2, 4, 8))
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_gemv_of_tensor_cores_without_spilled_registers(packing: Packing, columns: int, dtype: Dtype) -> None:
    found = is_compiled(source("gemv_quantised_rows"), DTYPE=dtype, N=columns, WARPS=8, PDL=1, **packing.macros)
    assert found.spilled == [0]


@pytest.mark.parametrize("packing", [FP8, INT4], ids=str)
def test_a_scale_is_no_number_before_it_is_widened(packing: Packing) -> None:
    """Code that multiplies by the bits of an int4 scale does not compile."""
    for used, is_ok in (("widen_scale(scale)", True), ("scale", False)):
        text = source("gemv_quantised") + f"__device__ float used(stored_scale scale) {{ return {used}; }}\n"
        found = compiled(text, DTYPE=Dtype.bf16, **GEMV, **packing.macros)
        assert found.is_ok == is_ok, found.log[:2000]
        assert ("StoredScale" in found.log) != is_ok


@halves
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("packing", [each for each in PACKINGS if each.bits == 8 and each.scales != "block"], ids=str)
def test_two_blocks_of_16_warps_without_spilled_registers(packing: Packing, columns: int, dtype: Dtype) -> None:
    found = is_compiled(source("gemv_quantised_rows"), DTYPE=dtype, N=columns, WARPS=16, PDL=1, **packing.macros)
    assert found.spilled == [0]
    assert found.registers[0] * 2 * 512 <= REGISTERS


@each_dtype
@pytest.mark.parametrize("scales", [Scales.channel, Scales.tensor])
def test_quantised_inputs_without_spilled_registers(scales: Scales, dtype: Dtype) -> None:
    packing = Packing(WeightFormat.fp8, scales)
    assert is_compiled(source("quantise_inputs"), DTYPE=dtype, **packing.macros).spilled == [0]


@halves
@pytest.mark.parametrize("weights", ["plain", "fp8", "int8", "int4"])
def test_gemm_of_a_step_without_spilled_registers(weights: str, dtype: Dtype) -> None:
    number = ["plain", "fp8", "int8", "int4"].index(weights)
    for scales in range(3) if number else (0,):
        more = {"WEIGHTS": number, "SCALES": scales} if number else {}
        assert is_compiled(source("step_gemm"), DTYPE=dtype, **GEMM, **more).spilled == [0]


@each_dtype
def test_all_reduces_whose_blocks_have_enough_registers(dtype: Dtype) -> None:
    found = is_compiled(source("all_reduce"), DTYPE=dtype, PDL=1)
    assert set(found.spilled) == {0}
    assert len(found.registers) == 4
    assert max(found.registers) * ALL_REDUCE_THREADS <= REGISTERS


@halves
@pytest.mark.parametrize("indirect", [0, 1])
def test_gemm_of_experts(indirect: int, dtype: Dtype) -> None:
    (spilled,) = is_compiled(source("expert_gemm"), DTYPE=dtype, INDIRECT=indirect, PDL=1).spilled
    assert spilled <= 16
    assert is_compiled(source("expert_align"), DTYPE=dtype, INDIRECT=indirect, PDL=1).spilled == [0]
    is_compiled(source("next_operands"), DTYPE=dtype, PDL=indirect)
    is_compiled(source("ops"), DTYPE=dtype, INDIRECT=indirect, PDL=1)


@halves
@pytest.mark.parametrize("packing", [NOT_QUANTISED, FP8, INT4], ids=str)
@pytest.mark.parametrize("tokens", [1, 16])
def test_fused_launches_of_experts(tokens: int, packing: Packing, dtype: Dtype) -> None:
    layout = ExpertLayout(ExpertLayer(2048, 768, 128, 8, tokens), dtype, packing)
    for fuse in ((), EXPERT_FUSIONS) if is_thorough() else (EXPERT_FUSIONS,):
        launches = FusedLaunches(layout, frozenset(fuse), True, 132)
        for name in launches_of(frozenset(fuse), bool(packing)):
            if name not in FUSED or (name == ROUTE and packing):
                continue
            made = launches.of(name, Memory(0, 0, 0))
            found = is_compiled(source(made.kernel), DTYPE=dtype, INDIRECT=1, **made.defines)
            assert max(found.spilled) <= 100
            warps = made.launch.block[0] // 32 * made.defines.get("BLOCKS", 1)
            assert max(found.registers) * 32 * warps <= REGISTERS


@each_dtype
def test_attention_of_a_step(dtype: Dtype) -> None:
    found = is_compiled(source("step_attention"), DTYPE=dtype, BLOCK_WARPS=8, BLOCKS=1, ROPE=1, PDL=1, **HEADS)
    assert found.spilled == [0]


@each_dtype
@pytest.mark.parametrize("kind", SamplingKind, ids=str)
def test_feedback_and_loops_of_steps(kind: SamplingKind, dtype: Dtype) -> None:
    is_compiled(source_of(dtype, kind))
    for is_while in (False, True):
        is_compiled(loop_source(dtype, head_of(kind), is_while))


@each_dtype
def test_resident_kernels(dtype: Dtype) -> None:
    is_compiled(source("persistent"), DTYPE=dtype)
    is_compiled(head_of(SamplingKind.greedy) + source("megakernel"), DTYPE=dtype, **MEGAKERNEL, **HEADS)
