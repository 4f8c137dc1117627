"""kernels/megakernel.cu itself on the host (cuda_on_host): every row of every step right, in any order of threads.

What is fed back at its end is what the host makes of the same results, to the bit.
"""

from __future__ import annotations

import ctypes
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_on_host import built_of, can_build, launch
from instruction_runs import InstructionRun, Ordered, in_order
from numpy.typing import NDArray
from program_interpreter import NONE
from programs import requests_of
from step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices import lt_chain as lc
from launchopt.devices.feedback_source import ARGUMENTS, FOUND, ROWS, LaunchFeedback, head_of, words_of
from launchopt.devices.feedback_stages import WORDS, FeedbackStages
from launchopt.devices.instruction_interpreter import Placed
from launchopt.devices.instruction_words import NOBODY, Instructions, Word
from launchopt.devices.megakernel_tasks import SLOT_BYTES, Extra, defines_of, fixed_bytes, tasks_of, weights_of
from launchopt.devices.steps import facts_of
from launchopt.kernels import source
from launchopt.sampling import Sampling, SamplingKind
from launchopt.step_batcher import StepBatch
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.model import ModelShape
from launchopt.workloads.program import Program, layer_program, linear_epilogue_program, linear_program

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = "u64* w = (u64*)arguments; megakernel(*(Program*)w, *(Feedback*)(w + 6), (u32)w[19], *(Gate*)(w + 20))"
BLOCKS, THREADS, SLOTS, PROGRAM_WORDS, NUMBER, GATE, GATE_WORDS = 3, 288, 6, 6, 19, 20, 5
ADDRESSES = (Word.A, Word.B, Word.C, Word.POSITIONS, Word.TABLE)


class Launched:
    """A list in memory of the host, as devices/megakernel_program.py has it on a GPU."""

    def __init__(self, instructions: Instructions, dtype: Dtype, feedback: LaunchFeedback, text: str) -> None:
        itemsize = dtype.itemsize
        tasks, box_bytes = tasks_of(instructions, BLOCKS, itemsize)
        self.boxes = np.full(2 * box_bytes + 16, 0xFF, np.uint8)
        first = -(-self.boxes.ctypes.data // 16) * 16
        tasks[tasks[:, Extra.MAILED] == 1, Extra.FROM] += first
        box = tasks[:, Extra.BOX]
        box[:] = np.where(box == NOBODY, 0, box + first)
        self.tasks, self.weights = tasks, weights_of(tasks, itemsize)
        self.counters = np.zeros(len(tasks) + 1, np.uint32)
        places = [part.ctypes.data for part in (self.tasks, self.counters, self.weights)]
        program = np.array([*places, len(tasks), box_bytes, 0], np.int64)
        self.words: NDArray[np.int64] = np.concatenate([program, feedback.words, np.zeros(1 + GATE_WORDS, np.int64)])
        self.found = np.zeros(BLOCKS, np.uint64)
        self.words[PROGRAM_WORDS + FOUND] = self.found.ctypes.data
        self.defines = defines = defines_of(tasks)
        self.kernel: ctypes.CDLL = built_of(feedback.head + text, CALL, DTYPE=int(dtype), SLOTS=SLOTS, **defines)
        self.shared_bytes = fixed_bytes(defines["COLUMNS"]) + SLOTS * SLOT_BYTES

    def launch(self, seed: int, arguments: int = 0, rows: int = 0, gate: NDArray[np.int64] | None = None) -> None:
        self.words[[PROGRAM_WORDS + ARGUMENTS, PROGRAM_WORDS + ROWS]] = arguments, rows
        self.words[GATE:] = 0 if gate is None else gate
        self.words[NUMBER] += 1
        launch(self.kernel, (BLOCKS,), THREADS, self.shared_bytes, self.words.ctypes.data, seed, at_once=BLOCKS)


class KernelRun(InstructionRun):
    """A stream whose steps the kernel `text` runs, those that are compilable; the others are interpreted.

    feeds: whether it also feeds back what they computed.
    """

    def __init__(
        self, stream: ChainStream, sampling: Sampling = NONE, feeds: bool = True, text: str | None = None
    ) -> None:
        super().__init__(stream, sampling, fuse=True)
        self.lists: dict[bytes, Launched] = {}
        self.launches, self.feeds, self.text = 0, feeds, text or source("megakernel")
        base, flights = self.arenas.arrays[stream.activations].ctypes.data, self._flights
        history = self.arenas.arrays.get(stream.history)
        facts = facts_of(stream, base, 0 if history is None else history.ctypes.data, flights.done.ctypes.data)
        memory = np.zeros((2, WORDS, stream.requests), np.uint64)
        self.stages = FeedbackStages(flights, stream.table, facts, memory, synchronize=lambda: None)
        self.ns = np.zeros(1, np.uint64)
        sizes = stream.hidden, stream.vocab or 1, stream.requests, base, int(facts[lc.ROW_BYTES])
        words = words_of(sampling, *sizes, ns=self.ns.ctypes.data)
        self.feedback = LaunchFeedback(head_of(sampling.kind), words)

    def step(self, batch: StepBatch, ordered: Ordered = in_order) -> Instructions:
        if not self.compiler.compilable(batch):
            return super().step(batch, ordered)
        program = self.compiler.compile(batch)
        key = program.tobytes()
        if key not in self.lists:
            at = really_at(program, self.placed)
            self.lists[key] = Launched(at, self.stream.dtype, self.feedback, self.text)
        self.launches += 1
        arguments = self.stages.stage(batch) if self.feeds else 0
        self.launch(self.lists[key], arguments, batch.size if arguments else 0)
        if not self.stages.was_staged():
            self.feed_back(batch)
        return program

    def launch(self, made: Launched, arguments: int, rows: int) -> None:
        made.launch(self.launches, arguments, rows)

    @property
    def ids(self) -> list[int]:
        found: list[int] = (self._flights.done & lc.LOW).tolist()
        return found


def really_at(program: Instructions, placed: Placed) -> Instructions:
    """With the addresses of the arrays in place of those made up for them."""
    moved = program.copy()
    for start, array in placed.memory.bytes.items():
        for word in ADDRESSES:
            column = program[:, word]
            here = (column >= start) & (column < start + array.size)
            moved[here, word] = column[here] - start + array.ctypes.data
    return moved


MODEL = ModelShape("small", 256, 2, 8, 2, 32, 384)
TOKENS = 4
PROGRAMS: dict[str, Program] = {
    "decode": linear_program([(m, k) for _, m, k in MODEL.linears()]),
    # Several passes of a block, rows that are no whole tile.
    "large": linear_program([(1100, 1024), (1024, 1024)]),
    # Several pieces of k, the last one not whole; of passes with 4 tiles, with 2, and with 1.
    "deep": linear_program([(4224, 128), (128, 4224)]),
    "odd": layer_program(ModelShape("odd", 72, 2, 3, 1, 24, 100, gated=False), 2 * TOKENS, 3),
    "layer": layer_program(MODEL, 2 * TOKENS),
    "linear_epilogue": linear_epilogue_program(128),
}
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
    monkeypatch.setattr(sys.modules[__name__], "BLOCKS", 9)
    program = layer_program(ModelShape("narrow", 256, 2, 1, 1, 32, 64), 2 * TOKENS)
    run = KernelRun(ChainStream(program, 1, requests_of([(0, TOKENS)]), Dtype.fp32, 1))
    for batch in batches(run.stream, 1):
        run.step(batch)
    (shares, *_) = [each.tasks[:, Extra.SHARE].tolist() for each in run.lists.values()]
    assert shares[-2:] == [8, 9]
    assert run.verify().ok


# -- Attention by itself: kv heads, queries of each, features; tokens a page; (prompt, output) tokens of each request

ATTENTION: list[tuple[Dtype, tuple[int, int, int], int | None, list[tuple[int, int]]]] = [
    (Dtype.bf16, (1, 4, 64), 16, [(0, 2)]),
    (Dtype.bf16, (2, 4, 64), 16, [(14, 4)]),
    (Dtype.bf16, (1, 4, 64), None, [(62, 4)]),  # contiguous
    (Dtype.bf16, (2, 3, 32), 2, [(62, 4)]),  # more pages than SLOT_MAP reads ahead, less than are read at once here
    (Dtype.bf16, (1, 8, 128), 5, [(30, 2)]),
    (Dtype.bf16, (1, 1, 256), 16, [(14, 2)]),
    (Dtype.bf16, (1, 2, 16), 16, [(62, 3)]),
    (Dtype.fp16, (1, 4, 64), 8, [(30, 4)]),
    (Dtype.fp32, (1, 4, 64), 16, [(14, 3)]),
    (Dtype.fp32, (2, 8, 8), 16, [(30, 3)]),
    (Dtype.bf16, (2, 4, 64), 16, [(5, 2), (15, 2), (31, 2)]),
]


def attention_run(
    dtype: Dtype, heads: tuple[int, int, int], page: int | None, sizes: list[tuple[int, int]]
) -> KernelRun:
    kv_heads, group, head_dim = heads
    requests = requests_of(sizes)
    shape = ModelShape("attention", 64, 1, kv_heads * group, kv_heads, head_dim, 64)
    run = KernelRun(ChainStream(layer_program(shape, requests.longest, page), 1, requests, dtype, 1))
    for batch in batches(run.stream, len(sizes)):
        run.step(batch)
    assert any(each.defines["FUSED"] >> Op.ROPE & 1 for each in run.lists.values())
    return run


@pytest.mark.parametrize(("dtype", "heads", "page", "sizes"), ATTENTION, ids=str)
def test_attention_of_contexts_and_heads(
    dtype: Dtype, heads: tuple[int, int, int], page: int | None, sizes: list[tuple[int, int]]
) -> None:
    """Contexts about where a warp, a block, and what is read ahead have all they can; features of all sizes."""
    assert attention_run(dtype, heads, page, sizes).verify().ok


@pytest.mark.parametrize(("dtype", "page"), [(Dtype.bf16, 5), (Dtype.fp32, 16)], ids=str)
def test_attention_whose_shape_is_not_compiled_in(monkeypatch: pytest.MonkeyPatch, dtype: Dtype, page: int) -> None:
    compiled, shape = defines_of, ("HEAD_DIM", "GROUP", "PAGE_TOKENS")

    def without_shape(tasks: NDArray[np.int64]) -> dict[str, int]:
        return {name: value for name, value in compiled(tasks).items() if name not in shape}

    monkeypatch.setattr(sys.modules[__name__], "defines_of", without_shape)
    run = attention_run(dtype, (1, 4, 32), page, [(15, 2)])
    assert not any(name in each.defines for name in shape for each in run.lists.values())
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


def done_by(run: KernelRun, seed: int = 0) -> KernelRun:
    run.launches = seed
    for batch in batches(run.stream, run.stream.requests):
        run.step(batch)
    return run


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


# -- Launches that wait for the host's word


class Gated(KernelRun):
    """Launches are made before their commands are there, two of each that are called off, or hear nothing, first."""

    patience_ns = 60_000_000_000

    def __init__(self, stream: ChainStream, sampling: Sampling = NONE) -> None:
        super().__init__(stream, sampling)
        self.said, self.heard, self.tag = np.zeros(2, np.uint64), np.zeros(1, np.uint64), 0

    def launch(self, made: Launched, arguments: int, rows: int) -> None:
        self.done_in_vain(made, rows, says=True)
        self.done_in_vain(made, rows, says=False)
        before = self.bytes_of(made)
        with ThreadPoolExecutor(1) as pool:
            launched = pool.submit(self.gated, made, rows)
            time.sleep(0.02)
            assert not launched.done()
            assert self.bytes_of(made) == before, "nothing is stored before"
            self.said[0] = self.tag << 48 | arguments
            launched.result()
        assert self.said[1] == 0

    def done_in_vain(self, made: Launched, rows: int, says: bool) -> None:
        """A launch that is called off, or gives up."""
        before = self.bytes_of(made)
        if says:
            self.said[0] = self.tag + 1 << 48
        self.gated(made, rows, self.patience_ns if says else 1_000_000)
        made.words[NUMBER] -= 1
        assert self.bytes_of(made) == before
        assert self.said[1] == (0 if says else self.tag)
        self.said[1] = 0

    def gated(self, made: Launched, rows: int, patience_ns: int = patience_ns) -> None:
        self.tag += 1
        words = self.said.ctypes.data, self.said[1:].ctypes.data, self.heard.ctypes.data, self.tag, patience_ns
        made.launch(self.launches, 0, rows, np.array(words, np.int64))
        assert self.heard[0] >> np.uint64(48) == self.tag

    def bytes_of(self, made: Launched) -> bytes:
        """All that a launch stores, but for what the gate is."""
        arrays = made.counters, made.boxes, made.found, self.ns
        return b"".join((*self.contents().values(), *(each.tobytes() for each in arrays)))


@pytest.mark.parametrize(("name", "requests"), [("decode", 1), ("decode", 3), ("large", 1), ("layer", 2)], ids=str)
def test_launches_that_wait_for_their_commands(name: str, requests: int) -> None:
    """Of lists with fewer slots of weights than there are, and with more: as others, once they are admitted."""
    stream = ChainStream(PROGRAMS[name], 1, requests_of([(0, TOKENS)] * requests), Dtype.bf16, 1)
    ours, theirs = done_by(Gated(stream)), done_by(KernelRun(stream))
    assert ours.launches == theirs.launches >= TOKENS - 1
    assert ours.contents() == theirs.contents()
    assert ours.verify().ok
