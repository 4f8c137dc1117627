"""kernels/megakernel.cu itself on the host (cuda_on_host): every row of every step right, in any order of threads.

What is fed back at its end is what the host makes of the same results, to the bit.
"""

from __future__ import annotations

import kernel_runs
import pytest
from cuda_on_host import can_build
from kernel_runs import BLOCKS, PROGRAMS, TOKENS, KernelRun, done_by
from program_interpreter import NONE
from programs import requests_of
from step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices.megakernel_tasks import Extra
from launchopt.kernels import source
from launchopt.sampling import Sampling, SamplingKind
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.model import ModelShape
from launchopt.workloads.program import layer_program

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

# Products by multiply-adds, and as the tensor cores make them: of these all, for they take less time here.
CASES = [(Dtype.fp32, *each) for each in (("decode", 3), ("large", 9), ("deep", 1), ("odd", 2), ("layer", 4))]
CASES += [
    (Dtype.bf16, *each)
    for each in (("decode", 1), ("decode", 18), ("large", 1), ("large", 2), ("deep", 1), ("deep", 5))
]
CASES += [(Dtype.bf16, *each) for each in (("linear_epilogue", 2), ("odd", 2), ("layer", 1), ("layer", 4))]


@pytest.mark.parametrize(("dtype", "name", "requests"), CASES, ids=str)
def test_every_row_of_every_step(dtype: Dtype, name: str, requests: int) -> None:
    stream = ChainStream(PROGRAMS[name], 1, requests_of([(0, TOKENS)] * requests), dtype, 1)
    run = KernelRun(stream)
    for batch in batches(stream, requests):
        run.step(batch)
    assert run.launches >= TOKENS - 1
    assert run.verify().ok
    fused = [Op.NORM, Op.ROPE, Op.ADD, Op.SILU_MUL] if name == "layer" else []
    assert {each.defines["FUSED"] for each in run.lists.values()} == {sum(1 << op for op in fused)}


def test_a_block_adds_what_others_stored_once_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """`o` is not streamed, so that nobody has add1's outputs by mail; and a block has a share of `down`, but of no GEMM
    between them."""
    monkeypatch.setattr(kernel_runs, "BLOCKS", 9)
    program = layer_program(ModelShape("narrow", 256, 2, 1, 1, 32, 64), 2 * TOKENS)
    run = KernelRun(ChainStream(program, 1, requests_of([(0, TOKENS)]), Dtype.fp32, 1))
    for batch in batches(run.stream, 1):
        run.step(batch)
    (shares, *_) = [each.tasks[:, Extra.SHARE].tolist() for each in run.lists.values()]
    assert shares[-2:] == [8, 9]
    assert run.verify().ok


# -- What is fed back

GREEDY = Sampling(SamplingKind.greedy)
TOP_K, TOP_P = Sampling(SamplingKind.top_k, 0.7, 20, seed=3), Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)
FED = [(dtype, sampling, BLOCKS + 2) for dtype in Dtype for sampling in (NONE, GREEDY)]
FED += [(Dtype.bf16, TOP_K, 2), (Dtype.fp32, TOP_P, 2), (Dtype.bf16, GREEDY, 1), (Dtype.bf16, NONE, 1)]
FED += [(Dtype.bf16, TOP_K, 1)]  # by one block
WAIT = "while ((int)(load_acquire(ended) - gridDim.x * launch) < 0) {}"


def fed_stream(dtype: Dtype, sampling: Sampling, requests: int) -> ChainStream:
    vocab = None if sampling is NONE else 300
    return ChainStream(PROGRAMS["decode"], 1, requests_of([(0, TOKENS)] * requests), dtype, 1, vocab)


@pytest.mark.parametrize(("dtype", "sampling", "requests"), FED, ids=str)
def test_what_is_fed_back_is_what_the_host_makes_of_the_same_results(
    dtype: Dtype, sampling: Sampling, requests: int
) -> None:
    """Also of more rows than there are blocks, and of one that all share.

    By the same kernel, which feeds back nothing if told so.
    """
    stream = fed_stream(dtype, sampling, requests)
    ours, theirs = done_by(KernelRun(stream, sampling)), done_by(KernelRun(stream, sampling, feeds=False))
    assert ours.launches == theirs.launches >= TOKENS - 1
    assert ours.ids == theirs.ids
    assert len(set(ours.ids)) > 1 or sampling is NONE
    assert ours.contents() == theirs.contents()
    assert ours.verify().ok
    assert (int(ours.ns[0]) > 0) == (sampling is not NONE)
    assert not theirs.ns.any()
    assert not any(each.found.any() for each in ours.lists.values())


@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=str)
def test_a_row_waits_until_all_blocks_are_through(sampling: Sampling) -> None:
    """Else it takes what was there before, in some order of the threads."""
    text, stream = source("megakernel"), fed_stream(Dtype.fp32, sampling, BLOCKS)
    assert text.count(WAIT) == 1
    right = done_by(KernelRun(stream, sampling))
    assert right.verify().ok
    hasty = (done_by(KernelRun(stream, sampling, text=text.replace(WAIT, ";")), seed) for seed in range(0, 80, 10))
    assert any(run.contents() != right.contents() for run in hasty)
