"""The check of requests that share pages of the KV cache: right runs pass, planted faults are found."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps.program_interpreter import NONE, Run
from support.steps.shared_prompts import CACHED, stream_of

from launchopt.command import Dtype
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream

SHARER = 2  # its first 12 tokens are cached: 8 by request 0, 4 by request 1
GREEDY = Sampling(SamplingKind.greedy)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=["none", "greedy"])
def test_what_is_right_passes(dtype: Dtype, chunk: int | None, sampling: Sampling) -> None:
    stream = stream_of(dtype=dtype, chunk=chunk, vocab=None if sampling is NONE else 50, replicas=2)
    found = Run(stream, sampling).verify()
    assert found.ok, found.first_wrong
    assert found.commands == stream.commands
    assert 0 < found.compared_share <= 1


def assert_found(run: Run, start: str) -> None:
    found = run.verify()
    assert not found.ok
    assert found.first_wrong is not None
    assert found.first_wrong.startswith(start), found.first_wrong


@pytest.mark.parametrize("chunk", [None, 3])
def test_a_request_that_starts_before_its_prefix_is_computed_is_found(chunk: int | None) -> None:
    """Afterwards its pages are right, since the other request has written them by then."""
    assert Run(stream_of(chunk=chunk)).verify().ok
    assert_found(Run(stream_of(chunk=chunk), early=SHARER), f"token 0 of request {SHARER}: ")


class WithPage(Run):
    """A device whose page table has another request's page in place of a cached one."""

    def __init__(self, stream: ChainStream, block: int) -> None:
        self._block = block
        super().__init__(stream)

    def execute(self, record: object) -> None:
        assert self.table is not None
        self.table[SHARER, self._block] = self.table[3, 0]
        super().execute(record)


@pytest.mark.parametrize("block", [0, 2])
def test_a_wrong_page_is_found(block: int) -> None:
    assert_found(WithPage(stream_of(), block), f"token 0 of request {SHARER}: ")


class FromPosition(Run):
    """A device on which a request starts at a wrong position."""

    def __init__(self, stream: ChainStream, moved: int) -> None:
        self._moved: int | None = moved
        super().__init__(stream)

    def execute(self, record: object) -> None:
        if self._moved is not None:
            self.next[SHARER] += self._moved
            self._moved = None
        super().execute(record)


@pytest.mark.parametrize("moved", [-CACHED[SHARER], -1, 1])
def test_a_wrong_start_is_found(moved: int) -> None:
    assert_found(FromPosition(stream_of(), moved), "token ")


def test_a_prefix_computed_from_other_inputs_is_found() -> None:
    """The keys and values of a shared page must follow from the inputs of the request that computes it."""
    stream = stream_of()
    run = Run(stream)
    page = int(stream.page_table[SHARER, 0])
    pool = run.arenas.arrays[stream.cache][0]
    attention = stream.attention
    assert attention is not None
    size = attention.page_tokens * attention.kv_width
    pool[page * 2 * size] = pool[page * 2 * size] + np.float32(0.5)
    assert_found(run, "keys and values of layer 0, position 0 of request 0")
