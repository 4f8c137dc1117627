"""Streams whose steps kernels/megakernel.cu runs on the host (cuda_on_host), and small programs for it."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import StepBatch
from launchopt.command import LOW_HALF, Dtype, Op
from launchopt.devices.feedback.flights import facts_of
from launchopt.devices.feedback.in_launch import FeedbackLayout, LaunchFeedback, head_of, words_of
from launchopt.devices.feedback.landing import FeedbackFact
from launchopt.devices.feedback.stages import WORDS, FeedbackStages
from launchopt.devices.instructions.words import Instructions, Word
from launchopt.devices.megakernel.memory import SLOT_BYTES, emptied_boxes, fixed_bytes, place_boxes
from launchopt.devices.megakernel.task_structs import packed, weights_of
from launchopt.devices.megakernel.tasks import defines_of, tasks_of
from launchopt.kernels import source
from launchopt.kernels.shared import FEEDBACK, word_of
from launchopt.kernels.shared_megakernel import GATE, LAUNCH
from launchopt.modes.megakernel import MegakernelMode
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import (
    INPUT,
    Node,
    Program,
    layer_program,
    linear_epilogue_program,
    linear_program,
)
from launchopt.streams.model import ModelShape
from support.cuda_on_host import built_of, launch
from support.megakernel.instruction_interpreter import Placed
from support.megakernel.instruction_runs import InstructionRun, Ordered, in_order
from support.steps.program_interpreter import NONE
from support.steps.programs import NORM_EPSILON, requests_of
from support.steps.step_runs import batches

MODEL = ModelShape("small", 256, 2, 8, 2, 32, 384, norm_epsilon=NORM_EPSILON)
TOKENS = 4
PROGRAMS: dict[str, Program] = {
    "decode": linear_program([(m, k) for _, m, k in MODEL.linears()]),
    # A block makes several passes; the rows do not fill the last tile.
    "large": linear_program([(1100, 1024), (1024, 1024)]),
    # Several pieces of k, the last one partly used; passes of 4, 2 and 1 tiles.
    "deep": linear_program([(4224, 128), (128, 4224)]),
    "odd": layer_program(ModelShape("odd", 72, 2, 3, 1, 24, 100, gated=False), 2 * TOKENS, 3),
    "layer": layer_program(MODEL, 2 * TOKENS),
    "apart": layer_program(ModelShape("apart", 256, 2, 4, 2, 64, 384), 2 * TOKENS, merged=False),
    "linear_epilogue": linear_epilogue_program(128),
    # Two pairs of norm and GEMM in a row. With several columns, a thread holds every other row of k.
    "norms": Program(
        (
            Node("norm1", Op.NORM, 128, 128, INPUT),
            Node("one", Op.GEMM, 1152, 128, "norm1"),
            Node("norm2", Op.NORM, 1152, 1152, "one"),
            Node("other", Op.GEMM, 128, 1152, "norm2"),
        ),
        128,
    ),
}
# From 9 requests on, two blocks share GEMMs of these programs; with 16-bit elements k must be twice as large.
HEAD = linear_program([(64, 1600), (1600, 64)])  # an LM head with k = 1600
TALL = layer_program(ModelShape("tall", 128, 2, 4, 2, 32, 1600), 2 * TOKENS)  # `down` is shared
WIDE = layer_program(ModelShape("wide", 1600, 2, 2, 1, 32, 40), 2 * TOKENS)  # GEMMs that read hidden rows are shared
ONE_TILE = linear_program([(24, 3200), (3200, 24)])
HEAD_OF_HALVES = linear_program([(64, 3200), (3200, 64)])
# For one request: on 16 blocks, and with 16-bit elements on 68, some of which have no share. The second program has two
# pieces of k and a partial one.
SHORT, SHORT_IN_PIECES = linear_program([(512, 128), (128, 512)]), linear_program([(2176, 128), (128, 2176)])
TALL_OF_HALVES = layer_program(ModelShape("tall", 256, 2, 4, 2, 64, 3200), 2 * TOKENS)
WIDE_OF_HALVES = layer_program(ModelShape("wide", 3200, 2, 2, 1, 32, 40), 2 * TOKENS)
GREEDY, TOP_K = Sampling(SamplingKind.greedy), Sampling(SamplingKind.top_k, 0.7, 20, seed=3)
TOP_P = Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)

PLACES = {field: word_of(LAUNCH, field) for field in ("feedback", "number", "gate")}
CALL = (
    f"u64* w = (u64*)arguments; megakernel(*(Program*)w, *(Feedback*)(w + {PLACES['feedback']}), "
    f"(u32)w[{PLACES['number']}], *(Gate*)(w + {PLACES['gate']}))"
)
BLOCKS, THREADS, STORERS, SLOTS = 3, 288, 32, 6
ADDRESSES = (Word.A, Word.B, Word.C, Word.POSITIONS, Word.TABLE)


class Launched:
    """A list in the host's memory, laid out as devices/megakernel/program.py does on a GPU."""

    def __init__(self, instructions: Instructions, stream: ChainStream, feedback: LaunchFeedback, text: str) -> None:
        itemsize = stream.dtype.itemsize
        tasks, box_bytes = tasks_of(instructions, BLOCKS, itemsize, pairs=BLOCKS % 2 == 0)
        self.defines = defines = defines_of(tasks)
        self.boxes = np.zeros(2 * box_bytes + 16, np.uint8)
        first = -self.boxes.ctypes.data % 16
        self.boxes[first : first + 2 * box_bytes] = np.tile(
            emptied_boxes(tasks, box_bytes, defines["COLUMNS"], itemsize), 2
        )
        place_boxes(tasks, self.boxes.ctypes.data + first)
        self.tasks, self.packed, self.weights = tasks, packed(tasks), weights_of(tasks, itemsize)
        self.counters = np.zeros(len(tasks) + 1, np.uint32)
        self.words = np.zeros(1, LAUNCH)
        places = [part.ctypes.data for part in (self.packed, self.counters, self.weights)]
        self.words["program"] = (*places, len(tasks), box_bytes, 0)
        self.words["feedback"] = feedback.words.view(FEEDBACK)
        self.found = np.zeros(BLOCKS * int(tasks[:, Word.REQUESTS].max()), np.uint64)
        self.words["feedback"]["found"] = self.found.ctypes.data
        macros = {"DTYPE": int(stream.dtype), "NORM_EPSILON": f"{stream.norm_epsilon}f", "SLOTS": SLOTS}
        self.kernel: ctypes.CDLL = built_of(feedback.head + text, CALL, **macros, **defines)
        self.shared_bytes = fixed_bytes(defines["COLUMNS"], itemsize) + SLOTS * SLOT_BYTES

    def launch(self, seed: int, arguments: int = 0, rows: int = 0, gate: NDArray[np.void] | None = None) -> None:
        self.words["feedback"]["arguments"], self.words["feedback"]["rows"] = arguments, rows
        self.words["gate"] = np.zeros(1, GATE) if gate is None else gate
        self.words["number"] += 1
        threads = THREADS + STORERS * self.defines["SHORT"]
        launch(self.kernel, (BLOCKS,), threads, self.shared_bytes, self.words.ctypes.data, seed, at_once=BLOCKS)


class KernelRun(InstructionRun):
    """A run in which the kernel `text` runs the compilable steps; the others are interpreted.

    feeds: whether the kernel also feeds back its results.
    """

    unwritten = MegakernelMode.unwritten

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
        row_bytes = int(facts[FeedbackFact.ROW_BYTES])
        layout = FeedbackLayout(stream.hidden, stream.vocab or 1, stream.requests, base, row_bytes)
        words = words_of(sampling, layout, ns=self.ns.ctypes.data)
        self.feedback = LaunchFeedback(head_of(sampling.kind), words, self.stages)

    def step(self, batch: StepBatch, ordered: Ordered = in_order) -> Instructions:
        if not self.compiler.compilable(batch):
            return super().step(batch, ordered)
        program = self.compiler.compile(batch)
        key = program.tobytes()
        if key not in self.lists:
            at = with_real_addresses(program, self.placed)
            self.lists[key] = Launched(at, self.stream, self.feedback, self.text)
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
        found: list[int] = (self._flights.done & LOW_HALF).tolist()
        return found


def with_real_addresses(program: Instructions, placed: Placed) -> Instructions:
    """Return the list with the real addresses of arrays instead of the invented ones."""
    moved = program.copy()
    for start, array in placed.memory.bytes.items():
        for word in ADDRESSES:
            column = program[:, word]
            here = (column >= start) & (column < start + array.size)
            moved[here, word] = column[here] - start + array.ctypes.data
    return moved


def after_all_steps(run: KernelRun, seed: int = 0) -> KernelRun:
    run.launches = seed
    for batch in batches(run.stream, run.stream.requests):
        run.step(batch)
    return run


def attended(
    dtype: Dtype,
    heads: tuple[int, int, int],
    page: int | None,
    sizes: list[tuple[int, int]],
    text: str | None = None,
    qk_norm: bool = False,
) -> KernelRun:
    """Run a layer for requests of (prompt, output) tokens.

    heads: (KV heads, queries per KV head, features per head). page: tokens of a page of the cache; None: contiguous.
    qk_norm: heads of queries and keys are normed.
    """
    kv_heads, group, head_dim = heads
    requests = requests_of(sizes)
    sizes_of_heads = (kv_heads * group, kv_heads, head_dim)
    shape = ModelShape("attention", 64, 1, *sizes_of_heads, 64, qk_norm=qk_norm, norm_epsilon=NORM_EPSILON)
    run = after_all_steps(
        KernelRun(ChainStream(layer_program(shape, requests.longest, page), 1, requests, dtype, 1), text=text)
    )
    assert any(each.defines["FUSED"] >> Op.ROPE & 1 for each in run.lists.values())
    return run
