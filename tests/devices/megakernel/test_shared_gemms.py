"""GEMMs that the two blocks of a cluster share: their tasks, and the sums that add their results."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.megakernel.task_checks import check_tasks
from support.steps.fused_layers import STAGES, compiled, layer_stream
from support.steps.programs import requests_of

from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import NOBODY, Instructions, Word, groups_of
from launchopt.devices.megakernel.memory import place_boxes
from launchopt.devices.megakernel.task_structs import TaskWord, packed, weights_of
from launchopt.devices.megakernel.tasks import defines_of, tasks_of
from launchopt.kernels.shared_megakernel import PIECE_BYTES
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import linear_program
from launchopt.streams.model import ModelShape

OUT, DOWN = (1 + STAGES.index(name) for name in ("o+add1", "down+add2"))
TILES = [TaskWord.SPLIT, TaskWord.TILES_EACH, TaskWord.TILES_MORE]


def shared_list(k: int, requests: int, dtype: Dtype = Dtype.bf16, m: int = 256) -> Instructions:
    """Return the list of two GEMMs: one of this k, and one whose k is `m`."""
    stream = ChainStream(linear_program([(m, k), (k, m)]), 1, requests_of([(0, 2)] * requests), dtype, 1)
    return compiled(stream)


# (requests, bytes of k). A block holds 4,096 bytes of k for 16 columns, 8,192 for 8, and 32,768 for 2.
SPLIT = [(16, 8192), (9, 16384), (16, 6400), (5, 16384), (2, 65536), (18, 8192)]
WHOLE = [
    *((1, 65536), (2, 32768), (8, 8192), (16, 4096)),  # a block holds all of k
    *((16, 4352), (16, 6144), (16, 10240), (2, 32768 + 256)),  # halves would not be whole pieces
]


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("requests", "k_bytes", "is_split"), [*((*each, 1) for each in SPLIT), *((*each, 0) for each in WHOLE)]
)
def test_gemms_are_split_if_their_inputs_do_not_fit(requests: int, k_bytes: int, is_split: int, dtype: Dtype) -> None:
    """Only GEMMs of several columns are split, and only into halves of whole pieces."""
    program = shared_list(k_bytes // dtype.itemsize, requests, dtype)
    tasks, _ = tasks_of(program, 4, dtype.itemsize, pairs=True)
    assert tasks[:, TaskWord.STREAMED].tolist() == [1, 1]
    assert tasks[:, TaskWord.SPLIT].tolist() == [is_split, 0]
    assert defines_of(tasks)["PAIRS"] == is_split
    alone, _ = tasks_of(program, 4, dtype.itemsize)
    assert not alone[:, TaskWord.SPLIT].any()
    assert defines_of(alone)["PAIRS"] == 0


@pytest.mark.parametrize(
    ("requests", "k_bytes", "blocks", "is_split"),
    [
        *((16, 4096, 16, 1), (18, 4096, 17, 1), (9, 4096, 64, 1), (16, 2304, 132, 1)),
        *((16, 4096, 14, 0), (16, 4096, 2, 0)),  # more than one pass of two blocks
        *((8, 4096, 64, 0), (14, 2304, 64, 0), (1, 4096, 64, 0)),  # inputs fill at most half of their memory
        (16, 2048, 132, 0),  # k is one piece
    ],
)
def test_gemms_of_one_pass_are_split_if_they_have_many_inputs(
    requests: int, k_bytes: int, blocks: int, is_split: int
) -> None:
    tasks, _ = tasks_of(shared_list(k_bytes // 2, requests), blocks, 2, pairs=True)
    assert tasks[:, [TaskWord.STREAMED, TaskWord.SPLIT]].tolist() == [[1, is_split], [1, 0]]


def test_a_gemm_behind_a_norm_is_not_split() -> None:
    """A norm needs all of k. In a layer whose GEMMs have one pass each, `o` is split, and `down` for its large k."""
    program = compiled(layer_stream(16, model=ModelShape("short", 1024, 2, 8, 2, 128, 2048)))
    tasks, _ = tasks_of(program, 1024, 4, pairs=True)
    assert (tasks[:, TaskWord.GAIN] != 0).sum() == 2
    assert tasks[:, TaskWord.SPLIT].tolist() == [i in (OUT, DOWN) for i in range(6)]
    assert not tasks[:, TaskWord.ADDED_MAILED].any()


def test_gemms_whose_weights_are_not_streamed_are_not_split() -> None:
    tasks, _ = tasks_of(shared_list(8192 + 8, 16), 4, 2, pairs=True)
    assert tasks[:, [TaskWord.STREAMED, TaskWord.SPLIT]].tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("blocks", [2, 4, 6, 64, 66, 132])
def test_a_pair_of_blocks_has_the_tiles_of_a_split_gemm(blocks: int) -> None:
    """Both blocks of a pair have a share, although only one stores. Later tasks wait for both, or get mail of both."""
    tasks, _ = tasks_of(shared_list(8192, 16), blocks, 2, pairs=True)
    assert tasks[:, TaskWord.SPLIT].tolist() == [1, 0]
    assert tasks[0, [TaskWord.TILES_EACH, TaskWord.TILES_MORE]].tolist() == [*divmod(32, blocks // 2)]
    assert tasks[0, TaskWord.SHARE] == 2 * min(blocks // 2, 32)
    assert tasks[1, [TaskWord.TILES_EACH, TaskWord.TILES_MORE]].tolist() == [*divmod(1024, blocks)]
    assert tasks[1, TaskWord.SHARE] == blocks


def test_a_split_gemm_is_complete_when_both_of_each_pair_are() -> None:
    tasks, _ = tasks_of(shared_list(8192, 16, m=24), 4, 2, pairs=True)
    assert tasks[:, TaskWord.STREAMED].tolist() == [1, 0], "only streamed GEMMs get mail"
    assert tasks[0, [TaskWord.SPLIT, TaskWord.SHARE, TaskWord.COUNTED]].tolist() == [1, 4, 1]
    assert tasks[1, [Word.WAIT0, TaskWord.ENOUGH0]].tolist() == [0, 4]


@pytest.mark.parametrize(("k_bytes", "pieces"), [(8192, 2), (6400, 2), (16384, 4), (16384 - 256, 4)])
def test_weights_of_a_split_gemm_are_half_the_pieces_each(k_bytes: int, pieces: int) -> None:
    tasks, _ = tasks_of(shared_list(k_bytes // 2, 16), 4, 2, pairs=True)
    weights = weights_of(tasks, 2)
    assert weights["split"].tolist() == [1, 0, 0, 0]
    assert weights["pieces"].tolist() == [pieces, 1, 0, 0]
    first = pieces * PIECE_BYTES
    assert weights["bytes"].tolist() == [first, 512, 0, 0]
    assert weights["other_bytes"].tolist() == [k_bytes - first, 0, 0, 0]
    assert packed(tasks)[["bytes", "other_bytes"]].tolist() == weights[["bytes", "other_bytes"]][:2].tolist()
    assert weights_of(tasks_of(shared_list(k_bytes // 2, 16), 4, 2)[0], 2)["pieces"].tolist() == [2 * pieces, 1, 0, 0]


def test_down_is_split_together_with_its_sum() -> None:
    tall = ModelShape("tall", 256, 2, 8, 2, 32, 2048)
    program = compiled(layer_stream(16, model=tall))
    tasks, _ = tasks_of(program, 4, 4, pairs=True)
    assert tasks[:, TaskWord.SPLIT].tolist() == [i == DOWN for i in range(6)]
    assert tasks[DOWN, [TaskWord.THEN, TaskWord.MAILED, TaskWord.SHARE]].tolist() == [Op.ADD, 1, 4]


def whom(row: NDArray[np.int64]) -> list[int]:
    found: list[int] = row[Word.WAIT0 : Word.WAIT0 + int(row[Word.WAITS])].tolist()
    return found


def tall_list(layers: int, requests: int = 16, intermediate: int = 2048) -> Instructions:
    """Return layers with a shared `down` and an unshared `out`. Each adds the stored outputs of the other one."""
    tall = ModelShape("tall", 256, 2, 8, 2, 32, intermediate)
    return compiled(layer_stream(requests, model=tall, layers=layers))


def test_addends_of_other_tiles_come_by_mail() -> None:
    """Another block may have stored the addend. With equal tiles, each thread has stored its addend itself."""
    program = tall_list(2)
    tasks, _ = tasks_of(program, 4, 4, pairs=True)
    outs, downs = ([each, each + len(STAGES)] for each in (OUT, DOWN))
    assert tasks[downs, TaskWord.SPLIT].tolist() == [1, 1]
    others = {outs[1]: downs[0], downs[0]: outs[0], downs[1]: outs[1]}
    assert np.flatnonzero(tasks[:, TaskWord.ADDED_MAILED]).tolist() == sorted(others)
    assert all(tasks[row, TaskWord.ADDED] == tasks[other, TaskWord.BOX] for row, other in others.items())
    assert not tasks[[*outs, *downs], Word.WAITS].any()
    places, before = list(others), tasks.copy()
    place_boxes(tasks, 1024)
    assert (tasks[places, TaskWord.ADDED] == before[places, TaskWord.ADDED] + 1024).all()
    assert tasks[outs[0], TaskWord.ADDED] == before[outs[0], TaskWord.ADDED]
    alone, _ = tasks_of(program, 4, 4)
    assert not alone[:, TaskWord.ADDED_MAILED].any()


def test_a_sum_adds_the_last_stored_output() -> None:
    """`out` of both layers stores to the same place. The second `down` adds the output of the second `out`."""
    program = tall_list(2)
    heads = [group[0] for group in groups_of(program)]
    (first, second), downs = ([each, each + len(STAGES)] for each in (OUT, DOWN))
    sums = program[[heads[task] + 1 for task in (first, second, *downs)]]
    assert (sums[:, Word.OP] == Op.ADD).all()
    program[heads[first] + 1, Word.C] = program[heads[downs[0]] + 1, Word.A] = sums[1, Word.C]
    tasks, _ = tasks_of(program, 4, 4, pairs=True)
    assert tasks[downs, TaskWord.ADDED].tolist() == tasks[[first, second], TaskWord.BOX].tolist()
    program[:, Word.MAIL] = NOBODY
    tasks, _ = tasks_of(program, 4, 4, pairs=True)
    assert [whom(tasks[row]) for row in downs] == [[first], [second]]


def test_a_sum_waits_for_an_addend_without_mail() -> None:
    program = tall_list(2)
    program[:, Word.MAIL] = NOBODY
    tasks, _ = tasks_of(program, 4, 4, pairs=True)
    outs, downs = ([each, each + len(STAGES)] for each in (OUT, DOWN))
    assert [whom(tasks[row]) for row in (*outs, *downs)] == [[], [downs[0]], [outs[0]], [outs[1]]]
    assert tasks[[*outs, *downs], TaskWord.COUNTED].tolist() == [1, 1, 1, 0]
    assert tasks[outs[1], TaskWord.ENOUGH0] == tasks[downs[0], TaskWord.SHARE]
    assert not tasks[:, TaskWord.ADDED_MAILED].any()


def test_nothing_is_shared_if_a_task_would_have_too_many_waits() -> None:
    program = tall_list(1)
    program[:, Word.MAIL] = NOBODY
    heads = [group[0] for group in groups_of(program)]
    assert tasks_of(program, 4, 4, pairs=True)[0][:, TaskWord.SPLIT].any()
    program[heads[-1], Word.WAITS], program[heads[-1], Word.WAIT0 : Word.WAIT3 + 1] = 4, heads[:OUT] + heads[-2:-1]
    tasks, _ = tasks_of(program, 4, 4, pairs=True)
    assert not tasks[:, TaskWord.SPLIT].any()


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([32, 200, 256]), st.integers(1, 40), st.integers(1, 18), st.sampled_from([2, 4, 34]))
def test_tasks_for_any_k(m: int, slices: int, requests: int, blocks: int) -> None:
    """Some of these GEMMs are split."""
    program = shared_list(128 * slices, requests, m=m)
    check_tasks(program, *tasks_of(program, blocks, 2, pairs=True), 2, blocks)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(2, 18), st.sampled_from([1024, 2048, 4096]), st.sampled_from([2, 4, 6, 34]))
def test_addends_are_stored_by_the_own_block_or_mailed(
    layers: int, requests: int, intermediate: int, blocks: int
) -> None:
    """The own block has stored the addend, or it comes by mail."""
    tasks, _ = tasks_of(tall_list(layers, requests, intermediate), blocks, 4, pairs=True)
    sums = np.flatnonzero(tasks[:, TaskWord.THEN] == Op.ADD)
    assert len(sums) == 2 * layers
    for before, i in pairwise(sums.tolist()):
        is_cut_alike = bool((tasks[i, TILES] == tasks[before, TILES]).all())
        assert tasks[i, TaskWord.ADDED] == tasks[before, TaskWord.RESULT if is_cut_alike else TaskWord.BOX]
        assert tasks[i, TaskWord.ADDED_MAILED] == (not is_cut_alike)
        assert whom(tasks[i]) == []
