"""Programs, streams of steps, and fakes of Inductor and CUDA graphs, for tests of PyTorch's modes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.devices.prepared import Counters
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import (
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    qkv_program,
)
from launchopt.streams.model import ModelShape

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)

NAMES = ("torch_eager", "torch_compile", "torch_graph")
MODEL = ModelShape("tiny", 64, 2, 4, 2, 16, 96)
PROGRAMS = {
    "layer": layer_program(MODEL, 16),
    "paged": layer_program(MODEL, 19, 4),
    "one_head": layer_program(ModelShape("tiny", 64, 2, 2, 1, 32, 96, gated=False, qk_norm=True, norm_epsilon=0.1), 16),
    "apart": layer_program(ModelShape("tiny", 64, 2, 2, 1, 128, 128), 16, merged=False),
    "qkv": qkv_program(ModelShape("tiny", 128, 2, 4, 2, 64, 128)),
    "epilogue": linear_epilogue_program(70),
    "elementwise": elementwise_program(33),
}
MOST, REPLICAS, LAYERS = 4, 2, 2


def users(program: Program, dtype: Dtype, requests: int, tokens: int) -> ChainStream:
    """Return a stream of equal requests without prompts."""
    asked = Requests(np.arange(requests), np.zeros(requests, np.int64), np.full(requests, tokens))
    return ChainStream(program, LAYERS, asked, dtype, REPLICAS, ChainSettings(seed=5))


class Listed:
    """A fake of CUDA graphs: a list of one call."""

    def __init__(self, counters: Counters) -> None:
        counters.spend("capture", 1)

    def make(self, record: Callable[[], None]) -> Any:
        return type("Replay", (), {"replay": staticmethod(record)})()


def use_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a compiler that generates no code in place of Inductor, and `Listed` in place of CUDA graphs."""
    monkeypatch.setattr("launchopt.modes.torch_compile.BACKEND", "aot_eager")
    monkeypatch.setattr("launchopt.devices.pytorch.graphs.Graphs", Listed)


def unique_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def cuda_device() -> Any:
    """Return the first GPU as a device. It is imported here because the CPU tests have no CuPy."""
    from launchopt.devices.cuda.device import CudaDevice

    return CudaDevice(0)
