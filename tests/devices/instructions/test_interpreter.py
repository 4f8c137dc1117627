"""Interpreted instruction lists: tokens are right in any order that respects the waits, and wrong without a wait."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.megakernel.instruction_interpreter import FIRST_ADDRESS, Memory, execute, random_order, run
from support.megakernel.instruction_runs import InstructionRun, Ordered, after_second_step, ancestors, in_order, without
from support.steps.program_interpreter import NONE
from support.steps.programs import program_streams, stream_of
from support.steps.step_runs import StepRun, batches

from launchopt.command import Dtype
from launchopt.devices.instructions.accesses import accesses
from launchopt.devices.instructions.dependencies import Span
from launchopt.devices.instructions.order import waits_of
from launchopt.devices.instructions.words import Instructions
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream

NAMES = ("linear", "layer", "paged", "qkv", "linear_epilogue", "elementwise")
SIZES = {1: [(0, 4)], 2: [(3, 2), (0, 4)], 4: [(0, 3)] * 3 + [(2, 3)]}


def at_random(seed: int) -> Ordered:
    """Return a function that gives each list another random order."""
    seeds = count(1000 * seed)
    return lambda program: random_order(program, next(seeds))


def checked(stream: ChainStream, seed: int | None, ordered: Ordered = in_order, most: int = 4) -> InstructionRun:
    rig = InstructionRun(stream, NONE if stream.vocab is None else Sampling(SamplingKind.greedy))
    rig.all(most, seed, ordered)
    found = rig.verify()
    assert found.ok, found.first_wrong
    return rig


@pytest.mark.parametrize("requests", SIZES)
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_token_is_right_and_the_same_in_any_order(name: str, dtype: Dtype, requests: int) -> None:
    stream = stream_of(name, SIZES[requests], dtype, replicas=2)
    expected = checked(stream, None).contents()
    for seed in range(2):
        assert checked(stream, None, at_random(seed)).contents() == expected


@settings(deadline=None, max_examples=40)
@given(program_streams(most_layers=3), st.integers(1, 4), st.integers(0, 9))
def test_arbitrary_batches(stream: ChainStream, most: int, seed: int) -> None:
    checked(stream, seed or None, at_random(seed), most)


@pytest.mark.parametrize("name", ["layer", "linear"])
def test_with_an_lm_head_and_sampling(name: str) -> None:
    checked(stream_of(name, [(3, 3), (0, 4)], Dtype.bf16, vocab=50), None, at_random(1))


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_the_cpu_device_gives_the_same_bits(dtype: Dtype) -> None:
    """Bits are equal for ops that compute each element alone. Matrix products agree within the bounds of the check."""
    stream = stream_of("elementwise", [(4, 3), (0, 3), (2, 2)], dtype)
    ours, device = checked(stream, 2, at_random(0)), StepRun("graph", stream, 4)
    try:
        device.run(2)
        device.check()
        arrays = device.device.arenas.arrays
        assert {str(key): array.tobytes() for key, array in arrays.items()} == ours.contents()
    finally:
        device.close()


def inside(rig: InstructionRun, spans: list[Span]) -> dict[int, Any]:
    """Return, by address, masks of the bytes that these spans cover."""
    masks = {start: np.zeros(array.size, np.bool_) for start, array in rig.placed.memory.bytes.items()}
    for first, length, stride, times in spans:
        start = max(each for each in masks if each <= first)
        for i in range(times):
            at = first + i * stride - start
            assert at + length <= masks[start].size
            masks[start][at : at + length] = True
    return masks


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", NAMES)
def test_only_known_spans_are_read_or_written(name: str, dtype: Dtype) -> None:
    """Run prompts and single tokens. Other bytes of memory neither influence the result nor change."""
    stream, generator = stream_of(name, [(3, 3), (0, 3)], dtype, layers=1), np.random.default_rng(0)
    rig = InstructionRun(stream)
    memory = rig.placed.memory
    for batch in batches(stream, 2):
        for row in rig.compiler.compile(batch):
            reads, writes = (inside(rig, spans) for spans in accesses(row, dtype.itemsize))
            before = {start: array.copy() for start, array in memory.bytes.items()}
            execute(row, memory, dtype)
            after = {start: array.copy() for start, array in memory.bytes.items()}
            for start, array in memory.bytes.items():
                other = generator.integers(0, 256, array.size, np.uint8)
                array[:] = np.where(reads[start], before[start], other)
                before[start] ^= after[start]
            with np.errstate(all="ignore"):
                execute(row, memory, dtype)
            for start, array in memory.bytes.items():
                changed = before[start] != 0
                assert not (changed & ~writes[start]).any()
                assert (array[changed] == after[start][changed]).all(), "the result depends on bytes outside the spans"
                array[:] = after[start]
        rig.feed_back(batch)
    assert rig.verify().ok


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_wait_is_necessary(name: str, requests: int) -> None:
    """Each wait protects something that no other wait does: without it some order gives another result."""
    stream = stream_of(name, [(0, 3)] * requests, layers=2)
    expected = after_second_step(stream)
    program = InstructionRun(stream).compiler.compile(list(batches(stream, 4))[1])
    waits = waits_of(program)
    behind = [ancestors(waits, i) for i in range(len(program))]
    # An instruction with mail may wait for others that precede the sender anyway: see `with_dependencies`.
    pairs = [(i, j) for i, own in enumerate(waits) for j in own if not any(j in behind[k] for k in own)]
    assert len(pairs) > len(program) / 2
    harmless = [(i, j) for i, j in pairs if after_second_step(stream, i, j) == expected]
    assert harmless == []


@pytest.mark.parametrize("name", ["layer", "linear_epilogue"])
def test_the_check_finds_a_missing_wait_by_chance(name: str) -> None:
    """The list lacks its last wait and runs in random orders."""
    stream = stream_of(name, [(0, 3)] * 2)

    def change(program: Instructions) -> Instructions:
        return without(program, len(program) - 1, waits_of(program)[-1][0])

    found = []
    for seed in range(8):
        rig = InstructionRun(stream, change=change)
        rig.all(2, None, at_random(seed))
        found.append(rig.verify().ok)
    assert not all(found)


def test_an_order_that_breaks_a_wait_is_refused() -> None:
    stream = stream_of("linear", [(0, 2)])
    rig = InstructionRun(stream)
    program = rig.compiler.compile(next(iter(batches(stream, 1))))
    for order, why in (([1, 0, 2, 3], "waits for"), ([0, 0, 1, 2, 3], "twice"), ([0, 1, 2], "only 3")):
        with pytest.raises(ValueError, match=why):
            run(program, rig.placed.memory, stream.dtype, order)


def test_random_orders_differ_and_respect_the_waits() -> None:
    stream = stream_of("qkv", [(0, 2)] * 2)
    program = InstructionRun(stream).compiler.compile(next(iter(batches(stream, 2))))
    orders = [random_order(program, seed) for seed in range(6)]
    assert len(set(map(tuple, orders))) > 1
    assert random_order(program, 0) == orders[0]
    for order in orders:
        place = {each: at for at, each in enumerate(order)}
        assert sorted(order) == list(range(len(program)))
        assert all(place[j] < place[i] for i, own in enumerate(waits_of(program)) for j in own)


def test_views_of_memory() -> None:
    low, high = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.uint16)
    memory = Memory({FIRST_ADDRESS: low, FIRST_ADDRESS + 4096: high}, 0.0)
    view = memory.view(FIRST_ADDRESS + 4, (2, 2), (12, 4), np.float32)
    assert view.tolist() == [[1, 2], [4, 5]]
    view[1, 1] = 7
    assert low[1, 2] == 7
    assert memory.view(FIRST_ADDRESS + 4096, (3, 2), (0, 2), np.uint16).tolist() == [[0, 1]] * 3
    outside = [(-4, 1), (16, 3), (24, 1), (4096 + 8, 1), (1 << 20, 1)]
    for offset, elements in outside:
        with pytest.raises(IndexError, match="not within"):
            memory.view(FIRST_ADDRESS + offset, (elements,), (4,), np.float32)
