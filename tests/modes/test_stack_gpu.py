"""Stacks on a GPU: every output is right, whoever is together, with contiguous and paged caches, in three dtypes."""

from __future__ import annotations

from typing import Any

import pytest
from support.steps.programs import requests_of, stream_of
from support.steps.step_runs import StepRun

from launchopt.command import Dtype
from launchopt.devices import open_device
from launchopt.modes import mode_class
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import layer_program
from launchopt.streams.model import ModelShape

pytestmark = pytest.mark.gpu

VLLM = ["qkv", "gate_up", "norm", "rope_kv", "attention"]
ALL = [*VLLM, "silu", "epilogue"]
LAYER: list[dict[str, Any]] = [
    {"fuse": ["norm"]},
    {"fuse": ["rope_kv"]},
    {"fuse": ["attention"]},
    {"fuse": VLLM},
    {"fuse": VLLM, "pdl": True},
    {"pdl": True},
    {"kernels": "own"},
    {"kernels": "own", "fuse": ALL},
    {"kernels": "own", "fuse": ALL, "pdl": True},
    {"kernels": "own", "fuse": ["norm", "epilogue"], "pdl": True},
    {"fuse": VLLM, "coalesce": False, "pdl": True},
]
MODELS = {
    "small": ModelShape("small", 64, 3, 2, 1, 64, 96, norm_epsilon=0.1),
    "heads of 64": ModelShape("heads", 256, 3, 4, 2, 64, 384, norm_epsilon=0.1),
}
SIZES = [(0, 5), (7, 3), (0, 5), (3, 4), (0, 4)]
dtypes = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


def checked(stream: ChainStream, mode: str, options: dict[str, Any], most: int = 3) -> StepRun:
    """Run a stack twice, in step and in random batches, and check every output."""
    device = open_device("cuda", 0, None)
    kind = mode_class(mode, options)
    assert kind.refusal("cuda", stream) is None
    run = StepRun(kind(), stream, most, device)
    for seed in (None, 3):
        run.run(seed)
        run.check()
    return run


@dtypes
@pytest.mark.parametrize("submit", ["stream", "graph"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", LAYER, ids=lambda options: mode_class("coalesced", options).label())
def test_stacks_of_a_layer(options: dict[str, Any], model: str, submit: str, dtype: Dtype) -> None:
    if options.get("kernels") == "own" and dtype is Dtype.fp32:
        pytest.skip("our GEMM takes fp16 and bf16")
    requests = requests_of(SIZES)
    program = layer_program(MODELS[model], requests.longest, 4 if submit == "graph" else None)
    stream = ChainStream(program, 3, requests, dtype, 2)
    checked(stream, "coalesced", {**options, "submit": submit}).close()


@dtypes
@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("name", ["qkv", "linear_epilogue", "elementwise"])
def test_stacks_of_other_programs(name: str, pdl: bool, dtype: Dtype) -> None:
    fuse = ["qkv"] if name == "qkv" else ["epilogue"]
    stream = stream_of(name, SIZES, dtype, 2, 2)
    run = checked(stream, "graph" if name == "elementwise" else "coalesced", {"fuse": fuse, "pdl": pdl})
    assert {Strategy.fused, Strategy.graph} & set(run.launches(LaunchColumn.STRATEGY))
    run.close()


def test_a_preset_leaves_out_what_our_kernels_do_not_support() -> None:
    checked(stream_of("layer", SIZES, Dtype.bf16), "engine", {}).close()  # heads of 16 features
