"""Stages of our own attention: the memory that their launches share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_memory import OnGpu
from support.cuda.libraries import imported

from launchopt.command import Dtype
from launchopt.devices.cublaslt.kernel_plans import KernelPlans
from launchopt.devices.cuda import step_attention
from launchopt.streams.chains.attention import Attention, AttentionShape


@pytest.mark.parametrize(("ctx", "page", "most"), [(40, None, 1), (5000, 16, 3), (70_000, None, 64)])
@pytest.mark.parametrize("heads", [(32, 8, 64), (8, 8, 128)])
def test_the_estimate_of_memory_is_what_is_allocated(
    ctx: int, page: int | None, most: int, heads: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(shape: Any, kind: Any) -> Any:
        return np.zeros(shape, kind).view(OnGpu)

    module = imported("launchopt.devices.steps.fusions.own_attention")
    fake = SimpleNamespace(asarray=lambda array: array.view(OnGpu), empty=empty, zeros=empty)
    monkeypatch.setattr(module, "cupy", fake)
    shape = Attention.of(AttentionShape(*heads, ctx, page), most)
    state = SimpleNamespace(positions=empty(1, int), table=empty(1, int), requests=most)
    kernels = KernelPlans(Dtype.bf16)
    steps = SimpleNamespace(most=most, device=SimpleNamespace(kernels=kernels))
    first = module._addresses(steps, shape, state, 0)
    assert module._addresses(steps, shape, state, 0) == first, "stages share the memory"
    allocated = sum(array.nbytes for array in kernels._memory.values())
    assert step_attention.memory_bytes(shape, most) == allocated > 4 * ctx * heads[2]
    assert step_attention.memory_bytes(Attention.of(AttentionShape(9, 1, 64, ctx), 1), most) == 0, "the kernel declines"
