"""kernels/attention/fused_attention.cuh on the host: contexts around the limits of its loops, and many head sizes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import can_build
from support.megakernel import kernel_runs
from support.megakernel.kernel_runs import attended

from launchopt.command import Dtype

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

# (dtype; KV heads, queries per KV head, features; tokens of a page; (prompt, output) tokens of each request)

ATTENTION: list[tuple[Dtype, tuple[int, int, int], int | None, list[tuple[int, int]]]] = [
    (Dtype.bf16, (1, 4, 64), 16, [(0, 2)]),
    (Dtype.bf16, (2, 4, 64), 16, [(14, 4)]),
    (Dtype.bf16, (1, 4, 64), None, [(62, 4)]),  # contiguous
    (Dtype.bf16, (2, 3, 32), 2, [(62, 4)]),  # more pages than SLOT_MAP reads ahead, fewer than attention reads at once
    (Dtype.bf16, (1, 8, 128), 5, [(30, 2)]),
    (Dtype.bf16, (1, 1, 256), 16, [(14, 2)]),
    (Dtype.bf16, (1, 2, 16), 16, [(62, 3)]),
    (Dtype.fp16, (1, 4, 64), 8, [(30, 4)]),
    (Dtype.fp32, (1, 4, 64), 16, [(14, 3)]),
    (Dtype.fp32, (2, 8, 8), 16, [(30, 3)]),
    (Dtype.bf16, (2, 4, 64), 16, [(5, 2), (15, 2), (31, 2)]),
]


@pytest.mark.parametrize(("dtype", "heads", "page", "sizes"), ATTENTION, ids=str)
def test_attention_of_contexts_and_heads(
    dtype: Dtype, heads: tuple[int, int, int], page: int | None, sizes: list[tuple[int, int]]
) -> None:
    """Contexts end around the capacity of a warp, of a block and of the prefetch. Heads have features of all sizes."""
    assert attended(dtype, heads, page, sizes).verify().ok


@pytest.mark.parametrize("dtype", [Dtype.bf16, Dtype.fp32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("heads", [(1, 8, 128), (2, 3, 32)], ids=str)
def test_attention_of_normed_heads(dtype: Dtype, heads: tuple[int, int, int]) -> None:
    run = attended(dtype, heads, 16, [(14, 3)], qk_norm=True)
    assert any("QK_NORM" in each.defines for each in run.lists.values())
    assert run.verify().ok


@pytest.mark.parametrize(("dtype", "page"), [(Dtype.bf16, 5), (Dtype.fp32, 16)], ids=str)
def test_attention_whose_shape_is_not_compiled_in(monkeypatch: pytest.MonkeyPatch, dtype: Dtype, page: int) -> None:
    compiled, shape = kernel_runs.defines_of, ("HEAD_DIM", "GROUP", "PAGE_TOKENS")

    def without_shape(tasks: NDArray[np.int64]) -> dict[str, int]:
        return {name: value for name, value in compiled(tasks).items() if name not in shape}

    monkeypatch.setattr(kernel_runs, "defines_of", without_shape)
    run = attended(dtype, (1, 4, 32), page, [(15, 2)])
    assert not any(name in each.defines for name in shape for each in run.lists.values())
    assert run.verify().ok
