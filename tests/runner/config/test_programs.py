"""Workloads of several ops: from their settings to programs, and from the command line to checked tokens."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir
from support.paths import ROOT

from launchopt.command import COLLECTIVES, EXPERT_OPS, Dtype, Op
from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.streams.chains.chain import ChainStream
from launchopt.workloads.base import Steps
from runner.app import main
from runner.config.objects import to_config
from runner.config.schema import Config, register
from runner.plan.streams import stream_on

CONF = ROOT / "conf"
CPU = DeviceInfo("cpu", 0, "none", 8 << 30, 1 << 20, "no memory", 1 << 20)
NARROW = {  # each workload in its smallest form
    "layer": ["model=tiny"],
    "qkv": ["model=tiny", "model.head_dim=64"],
    "linear_epilogue": ["workload.hidden=64"],
    "elementwise_chain": ["workload.hidden=64"],
}


def config_of(*overrides: str) -> Config:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return to_config(compose("config", list(overrides)))


def stream_of(*overrides: str) -> ChainStream:
    stream = stream_on(config_of(*overrides), CPU)
    assert isinstance(stream, ChainStream)
    return stream


@pytest.mark.parametrize("workload", NARROW)
def test_defaults(workload: str) -> None:
    config = config_of(f"workload={workload}")
    assert isinstance(config.workload, Steps)
    assert (config.workload.name, config.workload.requests, config.workload.tokens) == (workload, 1, 64)
    assert config.workload.dtype is Dtype.fp32
    stream = stream_on(config, CPU)
    assert isinstance(stream, ChainStream)
    assert stream.layers == {"layer": 1}.get(workload, 8)
    assert stream.hidden == (4096 if workload in ("linear_epilogue", "elementwise_chain") else 1024)
    assert (stream.requests, stream.tokens, stream.chunk_tokens) == (1, 64, None)


def test_a_layers_cache() -> None:
    sizes = ("workload.requests=3", "workload.prompt_tokens=20", "workload.tokens=9")
    attention = stream_of("workload=layer", "model=llama_3_2_1b", *sizes).attention
    assert attention is not None
    assert (attention.q_heads, attention.kv_heads, attention.head_dim) == (32, 8, 64)
    assert (attention.ctx, attention.page_tokens, attention.pages_total, attention.is_paged) == (29, 29, 3, False)
    attention = stream_of("workload=layer", "workload.kv=paged", *sizes).attention
    assert attention is not None
    assert (attention.ctx, attention.page_tokens, attention.pages_a_request, attention.is_paged) == (29, 16, 2, True)
    attention = stream_of("workload=layer", "workload.kv=paged", "workload.page_tokens=4", *sizes).attention
    assert attention is not None
    assert attention.pages_total == 3 * 8


def test_copies_that_outgrow_a_cache() -> None:
    """Four times its size, of all weights together."""
    for workload, narrow in NARROW.items():
        cold = stream_of(f"workload={workload}", *narrow, "workload.cache=cold", "workload.replicas=null")
        hot = stream_of(f"workload={workload}", *narrow, "workload.cache=hot", "workload.replicas=null")
        assert hot.replicas == 1 or hot.input_bytes <= CPU.cache_bytes // 2
        one = hot.input_bytes // hot.replicas
        assert cold.input_bytes >= 4 * CPU.cache_bytes > cold.input_bytes - 2 * one
        assert stream_of(f"workload={workload}", *narrow, "workload.replicas=7").replicas == 7


def test_chunks_and_a_head() -> None:
    stream = stream_of(
        *("workload=layer", "model=tiny", "workload.prompt_tokens=10", "scheduler=continuous"),
        *("scheduler.chunk_tokens=4", "sampling=greedy"),
    )
    assert (stream.chunk_tokens, stream.vocab) == (4, 256)
    assert sorted(kind.n for kind in stream.kinds) == [1, 2, 4]


def test_qkv_is_a_decode_with_three_launches_for_one() -> None:
    model = ["model=tiny", "model.head_dim=64", "workload.layers=2", "workload.cache=hot"]
    apart, together = (stream_of(f"workload={name}", *model) for name in ("qkv", "decode"))
    assert (apart.commands_per_step, together.commands_per_step) == (12, 8)
    assert apart.flops == together.flops
    assert apart.input_bytes == together.input_bytes


def test_a_layer_apart_is_three_more_launches() -> None:
    job = ("workload=layer", "model=llama_3_2_1b")
    apart, together = (stream_of(*job, f"workload.merged={value}") for value in ("false", "true"))
    assert (apart.commands_per_step, together.commands_per_step) == (18, 15)
    assert (apart.flops, apart.input_bytes) == (together.flops, together.input_bytes)
    assert stream_of(*job).program == together.program, "the default"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["workload=layer", "ordering=none"], "ordering=none: workload=layer is made of steps"),
        (["workload=elementwise_chain", "ordering=none"], "ordering=none"),
        (["workload=elementwise_chain", "model=tiny"], "has its own shape; use workload.hidden"),
        (["workload=qkv", "workload.layers=9"], "at most 8: model=small_1024 has no more"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config_of(*overrides)


def test_rows_that_are_not_whole_units_are_refused() -> None:
    with pytest.raises(ConfigError, match="k of 32 features: side by side, fp32 rows must be a multiple of 256 bytes"):
        stream_of("workload=qkv", "model=tiny")
    with pytest.raises(ConfigError, match=r"256 bytes; use model.head_dim=64 .*multiple of 64 or workload"):
        stream_of("workload=layer", "model=tiny", "workload.merged=false")
    stream_of("workload=layer", "model=tiny", "workload.merged=false", "model.head_dim=64")
    half = ("workload=layer", "model=tiny", "workload.merged=false", "workload.dtype=bf16", "model.kv_heads=1")
    with pytest.raises(ConfigError, match=r"k of 64 features: .*use model.head_dim=128 or another multiple of 128"):
        stream_of(*half, "model.head_dim=64")
    stream_of(*half, "model.head_dim=128")


@pytest.mark.parametrize("workload", NARROW)
def test_from_the_command_line_to_checked_tokens(workload: str, tmp_path: Path) -> None:
    settings = ["device=cpu", "mode=batched", "against=[baseline]", "workload.requests=3", "workload.tokens=3"]
    settings += ["workload.prompt_tokens=5", "workload.layers=2", "workload.dtype=bf16", "workload.cache=hot"]
    assert main([f"workload={workload}", *NARROW[workload], *settings, f"hydra.run.dir={tmp_path}/run"]) == 0
    rows = pq.read_table(tmp_path / "run/summary.parquet").to_pylist()
    assert {row["mode"] for row in rows} == {"baseline", "batched"}
    has_model = workload in ("layer", "qkv")
    for row in rows:
        assert (row["status"], row["verified"], row["ordering"]) == ("ok", True, "per_request")
        assert row["model"] == ("tiny" if has_model else None)
        assert 0 < row["max_rel_error"] < row["tolerance"]
        assert row["layers"] == 2
        assert row["stack"] == "submit=stream kernels=numpy"


def test_a_paged_cache_in_chunks_with_a_head(tmp_path: Path) -> None:
    settings = ["workload=layer", "model=tiny", "device=cpu", "mode=batched", "workload.kv=paged", "sampling=top_k"]
    settings += ["workload.page_tokens=3", "workload.requests=4", "workload.prompt_tokens=8", "workload.tokens=4"]
    settings += ["scheduler=continuous", "scheduler.chunk_tokens=3", "workload.dtype=fp16", "workload.cache=hot"]
    assert main([*settings, f"hydra.run.dir={tmp_path}/run"]) == 0
    row = pq.read_table(tmp_path / "run/summary.parquet").to_pylist()[0]
    assert (row["status"], row["verified"]) == ("ok", True)


def test_every_op_of_a_layer_is_a_command() -> None:
    stream = stream_of("workload=layer", "model=tiny")
    assert {shape.op for shape in stream.shapes} == set(Op) - {Op.BIAS, Op.RELU, Op.SCALE, *COLLECTIVES, *EXPERT_OPS}
