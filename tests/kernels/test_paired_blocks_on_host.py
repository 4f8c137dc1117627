"""Shared GEMMs of kernels/megakernel.cu on the host (cuda_on_host): each block of a pair multiplies half of k."""

from __future__ import annotations

import pytest
from support.cuda_on_host import can_build
from support.megakernel import kernel_runs
from support.megakernel.kernel_runs import (
    GREEDY,
    HEAD,
    HEAD_OF_HALVES,
    ONE_TILE,
    TALL,
    TALL_OF_HALVES,
    TOKENS,
    WIDE,
    WIDE_OF_HALVES,
    KernelRun,
    after_all_steps,
)
from support.steps.program_interpreter import NONE
from support.steps.programs import requests_of

from launchopt.command import Dtype, Op
from launchopt.devices.megakernel.task_structs import TaskWord
from launchopt.kernels import source
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import Program, layer_program, linear_program
from launchopt.streams.model import ModelShape

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

PEER_WAIT = "peer.wait(tiles, columns);"


class Paired(KernelRun):
    """A run of all steps. tiles: the (number of tiles, fused op) that pairs of blocks have in split GEMMs."""

    def __init__(self, stream: ChainStream, sampling: Sampling = NONE, text: str | None = None, seed: int = 0) -> None:
        super().__init__(stream, sampling, text=text)
        after_all_steps(self, seed)

    @property
    def tiles(self) -> set[tuple[int, int]]:
        pairs = kernel_runs.BLOCKS // 2
        found = set()
        for each in self.lists.values():
            assert each.defines["PAIRS"] == each.tasks[:, TaskWord.SPLIT].any()
            for row in each.tasks[each.tasks[:, TaskWord.SPLIT] == 1]:
                each_has, more = row[[TaskWord.TILES_EACH, TaskWord.TILES_MORE]].tolist()
                found |= {(each_has + (pair < more), int(row[TaskWord.THEN])) for pair in range(pairs)}
        return found


def paired_stream(
    program: Program, requests: int, dtype: Dtype, vocab: int | None = None, tokens: int = 2
) -> ChainStream:
    return ChainStream(program, 1, requests_of([(0, tokens)] * requests), dtype, 1, ChainSettings(vocab))


# For each program: tiles (or pairs of tiles) of a pair of blocks, and the fused op. Passes have 4, 2 and 1 tiles.
SPLIT = [
    (TALL, 16, Dtype.fp32, {(8, Op.ADD)}),
    (WIDE, 9, Dtype.fp32, {(8, 0), (3, Op.SILU_MUL), (2, Op.SILU_MUL)}),
    (TALL_OF_HALVES, 16, Dtype.fp16, {(16, Op.ADD)}),
    (WIDE_OF_HALVES, 9, Dtype.bf16, {(8, 0), (3, Op.SILU_MUL), (2, Op.SILU_MUL)}),
    (ONE_TILE, 34, Dtype.bf16, {(2, 0), (1, 0)}),  # columns in three groups
    (linear_program([(64, 4096), (4096, 64)]), 16, Dtype.fp32, {(4, 0)}),
    (linear_program([(64, 1664), (1664, 64)]), 16, Dtype.bf16, {(4, 0)}),
]
SPLIT_IDS = ["layer", "silu_mul", "layer of halves", "silu_mul of halves", "few tiles", "large k", "one pass"]


@pytest.mark.parametrize(("program", "requests", "dtype", "tiles"), SPLIT, ids=SPLIT_IDS)
def test_halves_of_k_are_added_up(
    program: Program, requests: int, dtype: Dtype, tiles: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_runs, "BLOCKS", 4)
    run = Paired(paired_stream(program, requests, dtype))
    assert run.launches == 1
    assert run.tiles == tiles
    assert run.verify().ok


def test_addends_of_another_block_come_by_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` is shared, and `o` is not. The outputs of `o` that `down` adds come by mail."""
    monkeypatch.setattr(kernel_runs, "BLOCKS", 4)
    for program, dtype in ((TALL, Dtype.fp32), (TALL_OF_HALVES, Dtype.bf16)):
        run = Paired(paired_stream(program, 16, dtype))
        assert [each.tasks[:, TaskWord.ADDED_MAILED].sum() for each in run.lists.values()] == [1]
        assert run.verify().ok


def test_o_and_down_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds outputs of the other one, which the same threads have stored."""
    monkeypatch.setattr(kernel_runs, "BLOCKS", 8)
    program = layer_program(ModelShape("o", 128, 2, 9, 3, 64, 1600), 2 * TOKENS)
    run = Paired(ChainStream(program, 2, requests_of([(0, 2)] * 16), Dtype.fp32, 1))
    (tasks,) = [each.tasks for each in run.lists.values()]
    shared = tasks[tasks[:, TaskWord.SPLIT] == 1]
    assert shared[:, TaskWord.THEN].tolist() == [Op.ADD] * 4
    assert not shared[:, TaskWord.ADDED_MAILED].any()
    assert run.verify().ok


@pytest.mark.parametrize(("program", "dtype"), [(HEAD, Dtype.fp32), (HEAD_OF_HALVES, Dtype.bf16)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("vocab", [4, 12, 52])
def test_the_block_that_stores_logits_finds_the_largest(
    program: Program, dtype: Dtype, vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some blocks have a share of the LM head but store no rows, and some pairs have no share."""
    stream = paired_stream(program, 16, dtype, vocab)
    alone = Paired(stream, GREEDY)
    assert alone.tiles == set()
    monkeypatch.setattr(kernel_runs, "BLOCKS", 4)
    run = Paired(stream, GREEDY)
    heads = {4: {1, 0}, 12: {1}, 52: {4, 3}}
    assert {tiles for tiles, _ in run.tiles} == {4} | heads[vocab]
    assert run.launches == 1
    assert run.ids == alone.ids
    assert len(set(run.ids)) > 1
    assert run.verify().ok
    assert not any(each.found.any() for each in run.lists.values())


@pytest.mark.parametrize("requests", [9, 34])
def test_a_block_of_a_pair_may_be_late(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer waits for it. Passes have one tile, and columns form several groups."""
    monkeypatch.setattr(kernel_runs, "BLOCKS", 4)
    late = "if (!peer.rank && !threadIdx.x) for (int i = 0; i < 300; ++i) __nanosleep(1);\n"
    text, program = source("megakernel"), linear_program([(16, 1600), (1600, 16)])
    assert text.count(PEER_WAIT) == 1
    stream = ChainStream(program, 4, requests_of([(0, 2)] * requests), Dtype.fp32, 1)
    run = Paired(stream, text=text.replace(PEER_WAIT, late + PEER_WAIT))
    assert run.tiles == {(1, 0)}
    assert run.verify().ok


def test_a_block_waits_for_the_sums_of_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait, some order of the threads adds old values."""
    monkeypatch.setattr(kernel_runs, "BLOCKS", 4)
    text, stream = source("megakernel"), paired_stream(HEAD, 16, Dtype.fp32, 12)
    assert text.count(PEER_WAIT) == 1
    right = Paired(stream, GREEDY)
    assert right.verify().ok

    def is_wrong(seed: int) -> bool:
        try:
            run = Paired(stream, GREEDY, text.replace(PEER_WAIT, ""), seed)
        except RuntimeError:  # a message to a block that has ended
            return True
        return run.contents() != right.contents()

    assert any(is_wrong(seed) for seed in range(0, 40, 10))
