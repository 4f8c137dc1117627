"""A fake of kernels/megakernel.cu on the fake CUDA device: it reads a program from memory and interprets it.

`fake_megakernel()` yields a device on which mode=megakernel runs, and records every launch. It runs instructions over
the host's arenas, in a random order that respects their waits. It tracks the memory that CuPy would allocate. A launch
fails if it points to freed memory. A test fails if it frees memory that a launch still uses.

A gated launch waits for the host's word. The fake runs it when the word arrives. The word must arrive before the next
launch, and before a wait for all launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions.fusion import ATTENTION
from launchopt.devices.instructions.words import NOBODY, WORDS, Instructions, Word, compiled_columns
from launchopt.devices.megakernel.memory import box_stride, emptied_boxes
from launchopt.devices.megakernel.task_structs import Tasks, TaskWord, packed
from launchopt.devices.megakernel.tasks import tasks_of
from launchopt.kernels.shared import FEEDBACK, ROW_WORDS, word_of
from launchopt.kernels.shared_megakernel import GATE, JOIN, LAUNCH, PROGRAM, TAG_BITS, TASK, WEIGHTS
from support.cuda.copying_kernels import fed_back, memory_at
from support.cuda.fake_cuda import FakeCuda, fake_cuda
from support.cuda.fake_memory import FakeMemory
from support.megakernel.instruction_interpreter import Memory, random_order, run

MULTIPROCESSORS, SHARED_BYTES = 3, 227 << 10
GATE_AT, TAG_AT = word_of(LAUNCH, "gate"), word_of(LAUNCH, "gate", "tag")
ARGUMENTS_AT = word_of(LAUNCH, "feedback", "arguments")
FEEDBACK_COUNTS = [name for name in FEEDBACK.names or () if FEEDBACK[name].kind == "u"]


class FakeMegakernel:
    """The megakernel's side of the fake device.

    launched: the instructions of each launch. rows: the number of rows that each launch fed back. waited: the number of
    gated launches that were admitted. in_vain: the number that were called off. split: for each program, the number of
    GEMMs that pairs of blocks share. each_lane: for each kernel, whether it is the variant for racecheck.
    """

    def __init__(self, device: FakeCuda, memory: FakeMemory, multiprocessors: int, clusters: int) -> None:
        self.device, self.memory = device, memory
        self.blocks, self._clusters = multiprocessors, clusters
        self.split: list[int] = []
        self.each_lane: list[bool] = []
        self.launched: list[Instructions] = []
        self.rows: list[int] = []
        self.waited = self.in_vain = 0
        self._waits: tuple[dict[str, int], int, NDArray[np.int64]] | None = None
        self._numbers: dict[int, int] = {}
        self._tables: list[Tasks] = []  # the tasks of each program
        self._lists: dict[bytes, Instructions] = {}  # by the words of their tasks, which omit fused instructions

    def tasks_of(self, instructions: Instructions, blocks: int, itemsize: int, pairs: bool) -> Any:
        """Replace `megakernel.program.tasks_of`: record the list that a program's tasks belong to."""
        tasks, box_bytes = tasks_of(instructions, blocks, itemsize, pairs)
        self.split.append(int(tasks[:, TaskWord.SPLIT].sum()))
        self._lists[tasks[:, :WORDS].tobytes()] = instructions.copy()
        self._tables.append(tasks)
        return tasks, box_bytes

    def clusters_at_once(self, function: Any, size: int, threads: int, shared_bytes: int) -> int:
        """Replace `kernel_plans.clusters_at_once`."""
        assert (function.defines, size, threads, shared_bytes) == ({}, 2, 288, SHARED_BYTES)
        return self._clusters

    def function(self, file: str, name: str, head: str = "", **defines: int) -> Any:
        """Replace `KernelPlans.function` for the megakernel and for its probe of clusters."""
        if name == "null_kernel":
            return SimpleNamespace(defines=defines)
        feedback = self.device.launch_feedback
        assert head == ("" if feedback is None else feedback.head)
        self.each_lane.append(bool(defines.pop("EACH_LANE", 0)))
        assert defines.pop("SLOTS") == {1: 11, 16: 8}[defines["COLUMNS"]]
        return SimpleNamespace(defines=defines, max_dynamic_shared_size_bytes=0)

    def launch(self, function: Any, threads: int, parameters: Any, stream: Any, shared_bytes: int) -> Any:
        """Replace `KernelLaunch`."""
        assert shared_bytes == function.max_dynamic_shared_size_bytes <= SHARED_BYTES
        assert (threads, stream) == (288 + 32 * function.defines["SHORT"], self.device.stream)
        assert [each.nbytes for each in parameters] == [PROGRAM.itemsize, FEEDBACK.itemsize, 4, GATE.itemsize]
        return SimpleNamespace(with_words=partial(self._launch, function.defines))

    def _launch(self, defines: dict[str, int], blocks: int, words: NDArray[np.int64], early: bool = False) -> None:
        self.settle()
        assert early == bool(words[GATE_AT]), "only a gated launch may start before the previous one has ended"
        if words[GATE_AT]:
            self._waits = defines, blocks, words.copy()
        else:
            self._run(defines, blocks, words)

    def _word(self, words: NDArray[np.int64]) -> tuple[bool, int]:
        """Return whether the host has written a word to a gated launch, and that word."""
        tag, word = divmod(int(memory_at(int(words[GATE_AT]), (1,), np.uint64)[0]), 1 << 64 - TAG_BITS)
        return tag == words[TAG_AT] > 0, word

    def enter(self, enter: Callable[..., int], index: int, size: int, request: int = 0) -> int:
        """Replace the device's `enter`.

        A gated launch that has got its word runs first, since another launch may follow.
        """
        if self._waits is not None and self._word(self._waits[2])[0]:
            self.settle()
        return enter(index, size, request)

    def settle(self) -> None:
        """Run or call off the gated launch, by the word that the host has written."""
        if self._waits is None:
            return
        (defines, blocks, words), self._waits = self._waits, None
        is_written, words[ARGUMENTS_AT] = self._word(words)
        assert is_written, "else the GPU would wait"
        if words[ARGUMENTS_AT]:
            self.waited += 1
            self._run(defines, blocks, words)
        else:
            self.in_vain += 1

    def all_done(self) -> None:
        """End all launches and release the memory that they use."""
        self.settle()
        self.memory.under_way.clear()

    def _run(self, defines: dict[str, int], blocks: int, words: NDArray[np.int64]) -> None:
        assert blocks == self.blocks, "all must be there at once"
        (launch,) = words.view(LAUNCH)
        program, number = launch["program"], int(launch["number"])
        tasks_at = int(program["tasks"])
        assert number in (1, self._numbers.get(tasks_at, 0) + 1), "launches are numbered from 1 on"
        self._numbers[tasks_at] = number
        places = [int(program[name]) for name in ("tasks", "counters", "weights")]
        tasks, counters, weights = (np.asarray(self.memory.at(place)) for place in places)
        count, box_bytes, stamps = (int(program[name]) for name in ("count", "box_bytes", "stamps"))
        assert self.memory.at(stamps).size == 0, "the clock is only read on demand"
        assert (tasks.dtype, tasks.nbytes) == (np.uint64, count * TASK.itemsize)
        tasks = next(each for each in self._tables if packed(each).tobytes() == tasks.tobytes())
        assert (counters.dtype, len(counters)) == (np.uint32, count + 1)
        assert not counters.any(), "nobody but the kernel counts"
        self._check(tasks, weights.view(WEIGHTS), box_bytes)
        assert defines["PAIRS"] == tasks[:, TaskWord.SPLIT].any()
        requests, instructions = int(tasks[:, Word.REQUESTS].max()), self._lists[tasks[:, :WORDS].tobytes()]
        assert defines["COLUMNS"] == (1 if requests == 1 else 16)
        is_alone = instructions[:, Word.FUSED] == 0
        for i, row in enumerate(instructions):
            if row[Word.OP] not in (JOIN, Op.GEMM):
                assert defines["OPS" if is_alone[i] else "FUSED"] >> _compiled_as(row, is_alone[i]) & 1
        arrays = {array.ctypes.data: array for array in self.device.arenas.arrays.values()}
        order = random_order(instructions, len(self.launched))
        work = self.device.work
        run(instructions, Memory(arrays, work.norm_epsilon), work.dtype, order)
        self.launched.append(instructions.copy())
        feed = {name: int(launch["feedback"][name]) for name in FEEDBACK_COUNTS}
        found = np.asarray(self.memory.at(feed["found"]))
        assert (found.dtype, found.tolist()) == (np.uint64, [0] * requests * blocks), "a word a request of each block"
        self._feed_back(feed)

    def _feed_back(self, feed: dict[str, int]) -> None:
        """Feed back the rows that struct Feedback names."""
        self.rows.append(feed["rows"])
        if feed["rows"]:
            row_words = memory_at(feed["arguments"], (ROW_WORDS, feed["pitch"]), np.uint64)[:, : feed["rows"]].copy()
            fed_back(feed, row_words, self.device.work.dtype, self.device.cupy.sampling)

    def _check(self, tasks: NDArray[np.int64], weights: NDArray[Any], box_bytes: int) -> None:
        """Check that boxes lie within their memory, without overlap, and that weights belong to the streamed GEMMs."""
        itemsize, columns = self.device.work.dtype.itemsize, compiled_columns(int(tasks[:, Word.REQUESTS].max()))
        streamed = tasks[tasks[:, TaskWord.STREAMED] == 1]
        assert weights["a"].tolist() == [*streamed[:, Word.A].tolist(), 0, 0]
        assert weights["rows"].tolist() == [*streamed[:, Word.M].tolist(), 0, 0]
        assert weights["split"].tolist() == [*streamed[:, TaskWord.SPLIT].tolist(), 0, 0]
        units = self.blocks >> streamed[:, TaskWord.SPLIT]
        tiles = streamed[:, TaskWord.TILES_EACH] * units + streamed[:, TaskWord.TILES_MORE]
        assert tiles.tolist() == (-(-streamed[:, TaskWord.RESULT_M] // 8)).tolist()
        boxes = []
        for i, row in enumerate(tasks):
            assert bool(row[TaskWord.MAILED]) == (row[Word.MAIL] != NOBODY)
            if row[TaskWord.MAILED]:
                assert row[TaskWord.FROM] == tasks[row[Word.MAIL], TaskWord.BOX]
                assert row[TaskWord.STREAMED] or row[TaskWord.ATTENDS]
            if row[TaskWord.BOX]:
                assert i in tasks[:, Word.MAIL]
                stride, together = box_stride(int(row[TaskWord.RESULT_M]), columns, itemsize)
                size = -(-int(row[Word.REQUESTS]) // together) * stride
                boxes.append((int(row[TaskWord.BOX]), int(row[TaskWord.BOX]) + size))
        boxes.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(boxes))
        if boxes:
            own = self.memory.holding(boxes[0][0])
            assert own.nbytes == 2 * box_bytes
            at_first = tasks.copy()
            box = tasks[:, TaskWord.BOX]
            at_first[:, TaskWord.BOX] = np.where(box > 0, box - own.data.ptr, NOBODY)
            emptied = emptied_boxes(at_first, box_bytes, columns, itemsize)
            assert (own == np.tile(emptied, 2)).all(), "until the kernel fills it"
            assert boxes[-1][1] <= own.data.ptr + box_bytes


def _compiled_as(row: NDArray[np.int64], is_alone: bool) -> int:
    """Return the op under whose name the kernel compiles an instruction: ROPE for all of a fused attention."""
    return int(Op.ROPE if not is_alone and row[Word.OP] in ATTENTION else row[Word.OP])


@contextmanager
def fake_megakernel(multiprocessors: int = MULTIPROCESSORS, clusters: int = 0) -> Iterator[FakeMegakernel]:
    """Yield the device. At the end check that no memory was freed while in use.

    clusters: the number of two-block clusters that can run at the same time.
    """
    with fake_cuda() as device, pytest.MonkeyPatch.context() as patch:
        from launchopt.devices.cublaslt import kernel_plans
        from launchopt.devices.megakernel import launch_ahead
        from launchopt.devices.megakernel import launcher as megakernel
        from launchopt.devices.megakernel import program as megakernel_program

        memory = FakeMemory(multiprocessors, SHARED_BYTES)
        made = FakeMegakernel(device, memory, multiprocessors, clusters)
        function = kernel_plans.KernelPlans.function

        def replaced(plans: Any, file: str, name: str, head: str = "", **defines: int) -> Any:
            ours = name in ("megakernel", "null_kernel")
            return made.function(file, name, head, **defines) if ours else function(plans, file, name, head, **defines)

        patch.setattr(kernel_plans.KernelPlans, "function", replaced)
        device.cupy.on_wait = made.all_done
        patch.setattr(device, "enter", partial(made.enter, device.enter))
        patch.setattr(megakernel, "cupy", memory)
        patch.setattr(megakernel_program, "cupy", memory)
        patch.setattr(launch_ahead, "cupy", memory)
        patch.setattr(launch_ahead, "pinned", np.zeros)
        patch.setattr(megakernel_program, "tasks_of", made.tasks_of)
        patch.setattr(megakernel, "KernelLaunch", made.launch)
        patch.setattr(megakernel, "clusters_at_once", made.clusters_at_once)
        yield made
        assert memory.freed_early == []
