"""kernels/expert_gemm.cu on the host: the GEMMs of all experts, for any routing, and no other memory is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import built, can_build, launch

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.cuda.expert_gemm import ExpertGemm

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = (
    "struct Given { char *a, *b, *c, *first; ExpertGemm p; }; const Given& given = *(const Given*)arguments; "
    "expert_gemm(given.a, given.b, given.c, given.first, given.p)"
)
HALVES = [Dtype.fp16, Dtype.bf16]
COUNTS = [
    [1],
    [0, 0, 3, 0],
    [1, 0, 17, 16, 2, 0],
    [40],
    [0] * 30 + [5] + [0] * 40 + [1, 1] + [0] * 55,
    [1] * 33,
]


def random(dtype: Dtype, *shape: int) -> Any:
    return from_float32(np.random.default_rng(7).standard_normal(shape).astype(np.float32), dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("counts", COUNTS, ids=lambda counts: f"{len(counts)} experts, {sum(counts)} columns")
@pytest.mark.parametrize(("m", "k", "padding"), [(32, 32, 0), (70, 96, 8), (33, 40, 3), (64, 520, 8), (40, 75, 5)])
@pytest.mark.parametrize("indirect", [0, 1])
def test_every_expert_multiplies_its_columns(
    dtype: Dtype, counts: list[int], m: int, k: int, padding: int, indirect: int
) -> None:
    if indirect and (m, k) != (70, 96):
        return
    columns, experts = sum(counts), len(counts)
    a, b = random(dtype, experts, m * k + padding), random(dtype, columns, k + padding)
    c = random(dtype, columns + 1, m + padding)
    before = c.copy()
    first = np.append(0, np.cumsum(counts)).astype(np.int32)
    gemm = ExpertGemm(m, k, experts, columns, (k + padding, m + padding), a.strides[0])
    planned = gemm.launch()
    addresses = np.array([each.ctypes.data for each in (a, b, c, first)], np.int64)
    own = np.array([addresses.ctypes.data, 0, 0, 0], np.int64) if indirect else addresses
    words = np.concatenate([own, planned.words])
    library = built("expert_gemm", CALL, races=True, DTYPE=int(dtype), INDIRECT=indirect, PDL=indirect)
    launch(library, planned.grid, planned.block[0], planned.shared_bytes, words.ctypes.data, seed=1)
    for expert, count in enumerate(counts):
        own_columns = slice(first[expert], first[expert] + count)
        weight = to_float32(a[expert, : m * k].reshape(m, k), dtype)
        expected = to_float32(b[own_columns, :k], dtype) @ weight.T
        got = to_float32(c[own_columns, :m], dtype)
        bound = 2 * dtype.unit_roundoff * np.abs(expected) + 1e-5 * k
        assert (np.abs(got - expected) <= bound).all()
    assert (c[:, m:] == before[:, m:]).all()
    assert (c[columns:] == before[columns:]).all()


def test_the_grid_has_a_block_for_every_piece_of_any_routing() -> None:
    generator = np.random.default_rng(3)
    for columns, experts in ((1, 128), (8, 4), (512, 128), (200, 3)):
        gemm = ExpertGemm(64, 64, experts, columns, (64, 64), 8192)
        for _ in range(50):
            shares = generator.dirichlet(np.full(experts, 0.1))
            counts = generator.multinomial(columns, shares)
            assert (-(-counts // 16)).sum() <= gemm.launch().grid[1]


def test_a_map_that_nobody_wrote_writes_no_other_memory() -> None:
    dtype = Dtype.bf16
    a, b, c = random(dtype, 4, 32 * 32), random(dtype, 8, 32), random(dtype, 9, 32)
    last = c[8].copy()
    first = np.full(5, -1, np.int32)
    first[2] = 3
    planned = ExpertGemm(32, 32, 4, 8, (32, 32), a.strides[0]).launch()
    words = np.concatenate([[each.ctypes.data for each in (a, b, c, first)], planned.words]).astype(np.int64)
    library = built("expert_gemm", CALL, races=False, DTYPE=int(dtype))
    launch(library, planned.grid, planned.block[0], planned.shared_bytes, words.ctypes.data, seed=1)
    assert (c[8] == last).all()
