"""kernels/megakernel.cu on the host (cuda_on_host): every row of every step is right, in any order of threads.

Feedback at the end of a step equals the host's own from the same results, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import can_build
from support.megakernel import kernel_runs
from support.megakernel.kernel_runs import (
    BLOCKS,
    GREEDY,
    PROGRAMS,
    TOKENS,
    TOP_K,
    TOP_P,
    KernelRun,
    after_all_steps,
    with_real_addresses,
)
from support.steps.program_interpreter import NONE
from support.steps.programs import requests_of
from support.steps.step_runs import batches
from support.thorough import some

from launchopt.command import Dtype, Op
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.instructions.words import Word
from launchopt.devices.megakernel.task_structs import TaskWord
from launchopt.kernels import source
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import layer_program, linear_program
from launchopt.streams.model import ModelShape

Weights = NDArray[np.float32]

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

# fp32 multiplies by multiply-adds, bf16 by tensor cores. bf16 runs every program, since it takes less time here.
CASES = [(Dtype.fp32, *each) for each in (("decode", 3), ("large", 9), ("deep", 1), ("odd", 2), ("layer", 4))]
CASES += [
    (Dtype.bf16, *each)
    for each in (("decode", 1), ("decode", 18), ("large", 1), ("large", 2), ("deep", 1), ("deep", 5))
]
CASES += [
    (Dtype.bf16, *each) for each in (("linear_epilogue", 2), ("odd", 2), ("layer", 1), ("layer", 4), ("apart", 4))
]
CASES += [(dtype, "norms", requests) for dtype in (Dtype.fp16, Dtype.bf16) for requests in (1, 5)]


@pytest.mark.parametrize(("dtype", "name", "requests"), some(CASES), ids=str)
def test_every_row_of_every_step(dtype: Dtype, name: str, requests: int) -> None:
    stream = ChainStream(PROGRAMS[name], 1, requests_of([(0, TOKENS)] * requests), dtype, 1)
    run = KernelRun(stream)
    for batch in batches(stream, requests):
        run.step(batch)
    assert run.launches >= TOKENS - 1
    assert run.verify().ok
    of_layer = [Op.NORM, Op.ROPE, Op.ADD, Op.SILU_MUL]
    fused = {"layer": of_layer, "apart": of_layer, "norms": [Op.NORM]}.get(name, [])
    assert {each.defines["FUSED"] for each in run.lists.values()} == {sum(1 << op for op in fused)}


def test_a_block_waits_for_addends_of_other_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GEMM of `o` is not streamed, so no block gets add1's outputs by mail.

    A block also has a share of `down`, and none of the GEMMs in between.
    """
    monkeypatch.setattr(kernel_runs, "BLOCKS", 9)
    program = layer_program(ModelShape("narrow", 256, 2, 1, 1, 32, 64), 2 * TOKENS)
    run = KernelRun(ChainStream(program, 1, requests_of([(0, TOKENS)]), Dtype.fp32, 1))
    for batch in batches(run.stream, 1):
        run.step(batch)
    (shares, *_) = [each.tasks[:, TaskWord.SHARE].tolist() for each in run.lists.values()]
    assert shares[-2:] == [8, 9]
    assert run.verify().ok


# -- Feedback

FED = [(dtype, sampling, BLOCKS + 2) for dtype in Dtype for sampling in (NONE, GREEDY)]
FED += [(Dtype.bf16, TOP_K, 2), (Dtype.fp32, TOP_P, 2), (Dtype.bf16, GREEDY, 1), (Dtype.bf16, NONE, 1)]
FED += [(Dtype.bf16, TOP_K, 1)]  # by a single block
# Two waits before a row is fed back, and their replacements: for all blocks to end, and for the blocks' largest logits.
THROUGH = "while ((int)(load_acquire(ended) - gridDim.x * launch) < 0) {}", ";"
FOUND = "while (!word);", "while (false);"


def fed_stream(dtype: Dtype, sampling: Sampling, requests: int) -> ChainStream:
    vocab = None if sampling is NONE else 300
    return ChainStream(PROGRAMS["decode"], 1, requests_of([(0, TOKENS)] * requests), dtype, 1, ChainSettings(vocab))


@pytest.mark.parametrize(("dtype", "sampling", "requests"), some(FED), ids=str)
def test_feedback_equals_that_of_the_host(dtype: Dtype, sampling: Sampling, requests: int) -> None:
    """Some cases have more rows than blocks, and some have one row that all blocks share.

    The reference is the same kernel with feedback switched off.
    """
    stream = fed_stream(dtype, sampling, requests)
    ours, theirs = (
        after_all_steps(KernelRun(stream, sampling)),
        after_all_steps(KernelRun(stream, sampling, feeds=False)),
    )
    assert ours.launches == theirs.launches >= TOKENS - 1
    assert ours.ids == theirs.ids
    assert len(set(ours.ids)) > 1 or sampling is NONE
    assert ours.contents() == theirs.contents()
    assert ours.verify().ok
    assert (int(ours.ns[0]) > 0) == (sampling is not NONE)
    assert not theirs.ns.any()
    assert not any(each.found.any() for each in ours.lists.values())


@pytest.mark.parametrize(("sampling", "wait"), [(NONE, THROUGH), (TOP_K, THROUGH), (GREEDY, FOUND)], ids=str)
def test_feedback_of_a_row_waits_for_all_blocks(sampling: Sampling, wait: tuple[str, str]) -> None:
    """Without the wait, some order of the threads feeds back old values."""
    text, stream = source("megakernel"), fed_stream(Dtype.fp32, sampling, BLOCKS)
    assert text.count(wait[0]) == 1
    right = after_all_steps(KernelRun(stream, sampling))
    assert right.verify().ok
    hasty = (after_all_steps(KernelRun(stream, sampling, text=text.replace(*wait)), seed) for seed in range(0, 80, 10))
    assert any(run.contents() != right.contents() for run in hasty)


def as_it_is(weights: Weights) -> None:
    """Change nothing: an entry of `CHANGES`."""


def all_alike(weights: Weights) -> None:
    weights[:] = weights[0]


def twice(weights: Weights) -> None:
    weights[1000:2000] = weights[:1000]


def nan_in_one(weights: Weights) -> None:
    weights[2050] = np.nan


def nan_but_in_one(weights: Weights) -> None:
    weights[:-1] = np.nan


CHANGES: dict[Callable[[Weights], None], tuple[int, int]] = {  # all ids are then in this range
    as_it_is: (0, 2100),
    all_alike: (0, 0),
    twice: (0, 2100),
    nan_in_one: (-1, -1),
    nan_but_in_one: (-1, -1),
}


class Headed(KernelRun):
    """A run in which `change` modifies the weights of the LM head."""

    def __init__(self, stream: ChainStream, change: Callable[[Weights], None], feeds: bool) -> None:
        super().__init__(stream, GREEDY, feeds)
        batch = next(iter(batches(stream, stream.requests)))
        head = with_real_addresses(self.compiler.compile(batch), self.placed)[-1]
        (array,) = (each for each in self.arenas.arrays.values() if 0 <= head[Word.A] - each.ctypes.data < each.nbytes)
        first, (m, k) = (head[Word.A] - array.ctypes.data) // array.itemsize, head[[Word.M, Word.K]]
        rows = np.lib.stride_tricks.as_strided(array[first:], (m, k), (head[Word.LDA] * array.itemsize, array.itemsize))
        weights = to_float32(rows, stream.dtype)
        change(weights)
        rows[:] = from_float32(weights, stream.dtype)


@pytest.mark.parametrize("change", some(CHANGES, 2), ids=lambda change: change.__name__)
@pytest.mark.parametrize(("dtype", "requests"), [(Dtype.fp32, 1), (Dtype.bf16, 1), (Dtype.bf16, 18)], ids=str)
def test_logits_with_ties_and_nans(dtype: Dtype, requests: int, change: Callable[[Weights], None]) -> None:
    """The kernel finds the largest logit while it stores logits, over several passes of each block."""
    small = linear_program([(128, 128)])
    stream = ChainStream(small, 1, requests_of([(0, 3)] * requests), dtype, 1, ChainSettings(vocab=2100))
    ours, theirs = (after_all_steps(Headed(stream, change, feeds)) for feeds in (True, False))
    assert all(each.defines["LOGITS"] for each in ours.lists.values())
    assert ours.ids == theirs.ids
    assert ours.contents() == theirs.contents()
    first, last = CHANGES[change]
    ids = np.array(ours.ids[: stream.tokens], np.uint32).view(np.int32)
    assert first <= ids.min() <= ids.max() <= last
    if change is twice:
        assert not ((ids >= 1000) & (ids < 2000)).any()
