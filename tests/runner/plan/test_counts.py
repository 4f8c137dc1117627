"""Bytes, FLOPs and commands that the reading tools print, against counts done by hand."""

from __future__ import annotations

import pytest
from support.config.composing import configured

from launchopt.command import Op
from launchopt.devices import find_device
from launchopt.streams.chains.chain import Stream
from launchopt.streams.experts.stream import ExpertStream
from runner.plan.streams import stream_on


def stream_of(words: str) -> Stream:
    return stream_on(configured("device=cpu", *words.split()), find_device("cpu", 0)[0])


def weight_bytes(stream: Stream) -> int:
    """Return the column weight_bytes of summary.parquet."""
    return sum(shape.weight_bytes * count for shape, count in stream.counts.items())


def columns(stream: Stream) -> int:
    """Return the columns of all GEMMs of one kind: tokens that have a step."""
    return sum(shape.n * count for shape, count in stream.counts.items() if shape.op is Op.NORM) // 2


def test_quantised_weights_count_codes_and_scales_and_gains_are_not_quantised() -> None:
    """int8 per channel: a byte for each value, 4 for each row. Rows x inputs of qkv, o, gate_up and down; two norms."""
    rows = ((128, 128), (128, 64), (256, 128), (128, 128))
    step = sum(m * k + 4 * m for m, k in rows) + 2 * 128 * 4
    stream = stream_of("workload=layer model=tiny model.hidden=128 workload.tokens=4 workload.weights=int8")
    assert weight_bytes(stream) == 4 * step == 309_248


@pytest.mark.parametrize(
    ("weights", "expert"),
    [
        ("none", 4 * (128 * 128 + 128 * 64)),
        ("fp8", 128 * 128 + 4 * 128 + 128 * 64 + 4 * 128),
        ("int4", 128 * 128 // 2 + 2 * 128 + 128 * 64 // 2 + 2 * 128),  # its scales are fp16
    ],
)
def test_a_step_reads_the_router_and_the_experts_that_have_tokens(weights: str, expert: int) -> None:
    """tiny_moe: 128 features, 16 experts of 64 inner features, 4 for a token. Balanced: 4 tokens have all 16."""
    scales = " workload.scales=channel" if weights == "int4" else ""
    words = f"workload=moe model=tiny_moe workload.steps=8 workload.routing=balanced workload.weights={weights}{scales}"
    for tokens, active in ((4, 16), (2, 8), (1, 4)):
        stream = stream_of(f"{words} workload.tokens={tokens}")
        assert isinstance(stream, ExpertStream)
        assert stream.active.tolist() == [active] * 8
        assert weight_bytes(stream) == 8 * (16 * 128 * 4 + active * expert)
        assert stream.commands == 8 * (6 + 2 * active), "router, top-k, map, permutation, activation, sum; two GEMMs"


def test_cached_tokens_of_prompts_have_no_columns_and_no_flops() -> None:
    """8 prompts of 72 tokens, 64 of them alike: the first runs whole, the others 8 tokens; 3 more steps for each."""
    words = (
        "workload=layer model=tiny workload.kv=paged workload.requests=8 workload.prompt_tokens=72 workload.tokens=4"
    )
    words += " workload.shared_prefix=64 scheduler=continuous"
    plain, cached = stream_of(words), stream_of(f"{words} scheduler.prefixes=hash")
    assert (columns(plain), columns(cached)) == (8 * 75, 72 + 7 * 8 + 8 * 3)
    assert columns(plain) - columns(cached) == 7 * 64
    assert plain.commands == cached.commands == 8 * 4 * 15, "a prompt is a command for each op, however long"
    positions = {  # keys that each column reads: those up to itself
        plain: 8 * sum(range(1, 76)),
        cached: sum(range(1, 76)) + 7 * sum(range(65, 76)),
    }
    gemms, elementwise = 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128), 512
    for stream, keys in positions.items():  # QK and AV of 64 features: 2 FLOPs each; softmax of 4 heads
        assert stream.flops == columns(stream) * (gemms + elementwise) + keys * (2 * 2 * 64 + 4)
