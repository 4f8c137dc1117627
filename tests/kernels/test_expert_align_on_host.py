"""kernels/expert_align.cu on the host: the map of EXPERT_MAP, and blocks that have each row of each expert once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_on_host import built, can_build, launch

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cpu.expert_ops import apply
from launchopt.devices.triton.expert_tuning import align_launch, blocks_bytes, most_blocks
from launchopt.kernels.shared import BLOCK_WORDS
from launchopt.streams.experts.layout import ExpertLayer

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = (
    "struct Given { char *a, *b, *c, *blocks; ExpertAlign p; }; const Given& given = *(const Given*)arguments; "
    "expert_align(given.a, given.b, given.c, given.blocks, given.p)"
)
LAYERS = [(16, 4, 3, 16), (128, 8, 5, 16), (1, 1, 2, 16), (33, 33, 1, 32), (100, 1, 70, 16), (3, 2, 70, 64)]
POISON = -1


def aligned(layer: ExpertLayer, table: Any, rows: int, indirect: int = 0) -> tuple[Any, Any]:
    """Return the map and the blocks of a table, and check that nothing behind them is written."""
    mapped = np.full(layer.rows + layer.experts + 1 + 8, POISON, np.int32)
    blocks = np.full(blocks_bytes(layer, rows) // 4 + 8, POISON, np.int32)
    planned = align_launch(layer, table.strides[0], rows)
    addresses = np.array([each.ctypes.data for each in (table, table, mapped, blocks)], np.int64)
    own = np.array([addresses.ctypes.data, 0, 0, 0], np.int64) if indirect else addresses
    words = np.concatenate([own, planned.words])
    library = built("expert_align", CALL, races=True, DTYPE=int(Dtype.bf16), INDIRECT=indirect, PDL=indirect)
    launch(library, planned.grid, planned.block[0], planned.shared_bytes, words.ctypes.data, seed=1)
    assert (mapped[-8:] == POISON).all()
    assert (blocks[-8:] == POISON).all()
    return mapped[:-8], blocks[:-8]


@pytest.mark.parametrize("indirect", [0, 1])
@pytest.mark.parametrize(("experts", "top_k", "columns", "rows"), LAYERS)
def test_blocks_have_each_row_once(experts: int, top_k: int, columns: int, rows: int, indirect: int) -> None:
    layer, generator = ExpertLayer(8, 8, experts, top_k, columns), np.random.default_rng(experts)
    table = np.full((columns, 2 * top_k + 4), POISON, np.int32)
    for row in table:
        row[:top_k] = np.sort(generator.permutation(experts)[:top_k])
    mapped, blocks = aligned(layer, table, rows, indirect)
    expected = np.zeros((1, len(mapped)), np.int32)
    apply(ShapeKey(top_k, columns, experts, Dtype.bf16, Op.EXPERT_MAP), table[None], table[None], expected)
    assert (mapped == expected[0]).all()
    firsts, entry_at = mapped[layer.rows :], np.argsort(mapped[: layer.rows])
    heads = blocks[BLOCK_WORDS:].reshape(-1, BLOCK_WORDS + rows)[: blocks[0]]
    assert blocks[0] == (-(-np.diff(firsts) // rows)).sum()
    at = 0
    for expert, row, count, _, *entries in heads.tolist():
        assert firsts[expert] <= row == at < row + count <= firsts[expert + 1]
        assert count == min(rows, firsts[expert + 1] - row)
        assert entries[:count] == entry_at[row : row + count].tolist()
        at += count
    assert at == layer.rows


def test_a_table_that_nobody_wrote_writes_no_other_memory() -> None:
    layer = ExpertLayer(8, 8, 8, 4, 5)
    _, blocks = aligned(layer, np.full((5, 8), POISON, np.int32), 16)
    assert blocks[0] == 0


@settings(deadline=None)
@given(st.integers(1, 130), st.integers(1, 600), st.sampled_from([16, 32, 64, 128]), st.integers(0, 9))
def test_no_routing_needs_more_blocks_than_there_are(experts: int, columns: int, rows: int, seed: int) -> None:
    layer, generator = ExpertLayer(8, 8, experts, 1, columns), np.random.default_rng(seed)
    counts = generator.multinomial(columns, generator.dirichlet(np.full(experts, 0.1)))
    assert (-(-counts // rows)).sum() <= most_blocks(layer, rows)
