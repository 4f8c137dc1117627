"""Modes that take whole steps, with requests that share pages of the KV cache. Every token and page is checked."""

from __future__ import annotations

import pytest
from support.modes.torch_runs import NAMES, needs_torch, use_stand_ins
from support.steps.shared_prompts import stream_of
from support.steps.step_runs import StepRun

from launchopt.command import Dtype
from launchopt.sampling import Sampling, SamplingKind

MODES = (
    "coalesced",
    "engine",
    "graph",
    "fused_elementwise",
    *(pytest.param(name, marks=needs_torch) for name in NAMES),
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [None, 3])
def test_cached_tokens_need_no_step(mode: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode.startswith("torch"):
        use_stand_ins(monkeypatch)
    stream = stream_of(dtype=Dtype.fp32, chunk=chunk, vocab=50, replicas=2)
    run = StepRun(mode, stream, 3, sampling=Sampling(SamplingKind.greedy))
    for seed in (None, 1, 2):  # the second run starts behind the cached tokens again
        run.run(seed)
        run.check()
    run.close()
