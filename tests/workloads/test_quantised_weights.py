"""The options weights and scales of gemv, decode and layer: bytes, copies, the LM head, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.quantised import WHOLE, quantised_gemv, quantised_steps
from support.steps.programs import GATED, SPLIT, requests_of

from launchopt.command import Dtype, Op
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from launchopt.recording.identity import stream_hash
from launchopt.streams.chains.chain import ChainSettings, ChainStream, chain_of
from launchopt.streams.chains.program import layer_program
from launchopt.streams.model import ModelShape
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat
from launchopt.workloads.base import Setting
from launchopt.workloads.decode import Decode
from launchopt.workloads.gemv import Gemv
from launchopt.workloads.layer import Layer

FP8 = Packing(WeightFormat.fp8, Scales.channel)
INT4 = Packing(WeightFormat.int4, Scales.block)


def setting(model: ModelShape = WHOLE, **changes: object) -> Setting:
    given = {"model": model, "cache_bytes": 1 << 20, "max_batch": 8, "seed": 0, "device_kind": "cpu"}
    return Setting(**{**given, "requests": requests_of([(0, 3)]), **changes})  # type: ignore[arg-type]


def test_a_command_moves_codes_and_scales() -> None:
    (shape,) = quantised_gemv(INT4, Dtype.bf16).shapes
    assert shape.weight_bytes == 130 * 128 + 130 * 2 * 2
    assert shape.bytes == shape.weight_bytes + 2 * (256 + 130)


def test_smaller_weights_need_more_copies_to_come_from_memory() -> None:
    copies = {
        weights: Gemv(name="gemv", m=128, k=1024, weights=weights, dtype=Dtype.bf16).stream(1, setting()).replicas
        for weights in (WeightFormat.none, WeightFormat.fp8, WeightFormat.int4)
    }
    assert copies[WeightFormat.none] < copies[WeightFormat.fp8] < copies[WeightFormat.int4]


@pytest.mark.parametrize("packing", [FP8, INT4], ids=str)
def test_only_the_gemms_of_layers_are_quantised(packing: Packing) -> None:
    stream = quantised_steps(packing, vocab=512)
    for row in stream.rows(stream.decode_kind):
        is_quantised = row.op is Op.GEMM and row.name != "head"
        assert row.operands[0].arena.packing == (packing if is_quantised else PLAIN)
        assert stream.shape_of(row).packing == row.operands[0].arena.packing


def test_an_lm_head_of_the_size_of_a_gemm_has_a_shape_of_its_own() -> None:
    stream = quantised_steps(FP8, "linear", vocab=256)
    shapes = [shape for shape in stream.shapes if (shape.m, shape.k) == (256, 128) and shape.n == 1]
    assert {shape.packing for shape in shapes} == {FP8, PLAIN}
    assert len({shape.packed for shape in shapes}) == 2


def test_the_hash_of_a_stream_tells_how_its_weights_are_stored() -> None:
    packings = [PLAIN, FP8, Packing(WeightFormat.fp8, Scales.tensor), INT4]
    assert len({stream_hash(quantised_gemv(packing)) for packing in packings}) == 4
    assert len({stream_hash(quantised_steps(packing)) for packing in packings}) == 4


def test_without_order_decode_has_the_same_weights() -> None:
    workload = Decode(weights=WeightFormat.int8, scales=Scales.tensor, tokens=2)
    stream = workload.stream(2, setting(requests=None, is_ordered=False))
    assert {shape.packing for shape in stream.shapes} == {Packing(WeightFormat.int8, Scales.tensor)}


def test_layers_have_quantised_weights_and_plain_gains() -> None:
    stream = chain_of(Layer(weights=WeightFormat.fp8, tokens=2).stream(1, setting()))
    kinds = {arena.role: bool(arena.packing) for arena in stream.arenas}
    assert kinds["a"]
    assert not any(is_quantised for role, is_quantised in kinds.items() if role != "a")


def test_parts_of_a_merged_weight_are_refused() -> None:
    asked = requests_of([(0, 2)])
    with pytest.raises(
        ConfigError, match=r"workload.weights=fp8: q, k, v are parts of one weight.*workload.merged=true"
    ):
        ChainStream(layer_program(SPLIT, 2, merged=False), 1, asked, Dtype.fp32, 1, ChainSettings(packing=FP8))


def test_a_split_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^parallel.tensor=2: has no shares of quantised weights"):
        Decode(weights=WeightFormat.fp8).stream(1, setting(tensor=2))


def test_inputs_that_fill_no_block_are_refused_by_the_name_of_their_option() -> None:
    with pytest.raises(ConfigError, match=r"^workload.scales=block: model.hidden=64 is no multiple of a block"):
        Layer(weights=WeightFormat.int4).stream(1, setting(GATED))
    with pytest.raises(ConfigError, match=r"^workload.scales=block: k=192 is no multiple of a block"):
        Gemv(name="gemv", m=64, k=192, weights=WeightFormat.fp8, scales=Scales.block).stream(1, setting())


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (replace(GATED, hidden=72), "model.hidden=72 is no multiple of 16"),
        (replace(GATED, head_dim=6), r"model.q_heads\*model.head_dim=24 is no multiple of 16"),
        (replace(GATED, intermediate=200), "model.intermediate=200 is no multiple of 16"),
    ],
    ids=["hidden", "head_dim", "intermediate"],
)
def test_inputs_that_fill_no_vector_are_refused_by_the_name_of_their_option(model: ModelShape, why: str) -> None:
    for workload in (Layer(weights=WeightFormat.fp8), Decode(weights=WeightFormat.fp8)):
        with pytest.raises(
            ConfigError, match=f"^workload.weights=fp8: {why}, the values in 16 bytes: use such a model"
        ):
            workload.stream(1, setting(model))


def test_the_router_of_experts_is_not_quantised_without_order() -> None:
    model = replace(WHOLE, experts=4, experts_per_token=2, expert_intermediate=128)
    stream = Decode(weights=WeightFormat.fp8, dtype=Dtype.bf16, tokens=3).stream(
        2, setting(model, requests=None, is_ordered=False)
    )
    packings = {(shape.m, shape.k): shape.packing for shape in stream.shapes}
    assert packings.pop((4, model.hidden)) == PLAIN
    assert set(packings.values()) == {FP8}
    assert "weights that are not quantised: 4x1x" in (mode_class("cublaslt_fp8").refusal("cpu", stream) or "")


def test_the_default_number_of_commands_reads_a_gigabyte_of_quantised_weights() -> None:
    plain, packed = (Gemv(name="gemv", m=64, k=8192, weights=each) for each in (WeightFormat.none, WeightFormat.int8))
    assert np.isclose(packed.count("cpu") / plain.count("cpu"), 4, rtol=0.02)
