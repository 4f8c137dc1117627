"""Order between streams: each fake stream knows which work precedes its own. No memory is allocated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.libraries import imported

from launchopt.devices.cublaslt.launch_tables import ContextWord

module: Any = imported("launchopt.devices.cuda.streams")
Streams = module.Streams

MAIN, WORKSPACE_BYTES = 0x1000, 512
properties = settings(deadline=None, max_examples=60)


class FakeStream:
    """`seen` has the work, of this stream and of others, that is complete before this stream's next work begins."""

    made = 0

    def __init__(self, non_blocking: bool = True) -> None:
        FakeStream.made += 1
        self.ptr, self.seen = MAIN + FakeStream.made, set[int]()

    def wait_event(self, event: FakeEvent) -> None:
        self.seen |= event.seen


class FakeEvent:
    def __init__(self, disable_timing: bool) -> None:
        assert disable_timing
        self.seen: set[int] = set()

    def record(self, stream: FakeStream) -> None:
        self.seen = set(stream.seen)


def made(count: int) -> tuple[Streams, FakeStream, list[int]]:
    """Return `count` streams, the main one, and the sizes of the allocated workspaces."""
    asked: list[int] = []

    def empty(size: int, kind: Any) -> Any:
        asked.append(size)
        return SimpleNamespace(data=SimpleNamespace(ptr=0x9000 + len(asked)))

    stand_in = SimpleNamespace(cuda=SimpleNamespace(Stream=FakeStream, Event=FakeEvent), empty=empty)
    context = np.zeros(len(ContextWord), np.int64)
    context[[ContextWord.FUNCTION, ContextWord.HANDLE, ContextWord.STREAM, ContextWord.WORKSPACE]] = (
        7,
        8,
        MAIN,
        0x9000,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "cupy", stand_in)
        main = FakeStream()
        return Streams(main, count, context, WORKSPACE_BYTES), main, asked


@pytest.mark.parametrize("count", [1, 2, 8])
def test_each_has_a_stream_and_a_workspace_of_its_own_and_shares_the_rest(count: int) -> None:
    streams, main, asked = made(count)
    contexts = streams.contexts
    assert contexts.shape == (count, len(ContextWord))
    assert streams.all[0] is main
    assert contexts[0, ContextWord.STREAM] == MAIN, "the main one's context is as it was"
    assert contexts[1:, ContextWord.STREAM].tolist() == [stream.ptr for stream in streams.all[1:]]
    assert asked == [WORKSPACE_BYTES] * (count - 1)
    assert (
        len(set(contexts[:, ContextWord.WORKSPACE].tolist()))
        == len(set(contexts[:, ContextWord.STREAM].tolist()))
        == count
    )
    assert contexts[:, [ContextWord.FUNCTION, ContextWord.HANDLE]].tolist() == [[7, 8]] * count


@properties
@given(st.sampled_from([2, 4, 8]), st.lists(st.integers(0, 2**32 - 1), max_size=12))
def test_a_request_stays_on_one_stream_which_is_the_loops(count: int, requests: list[int]) -> None:
    streams, _, _ = made(count)
    for request in requests:
        assert streams.of(request) is streams.all[request & (count - 1)]  # as lt_launch.launch_at picks the context
    others = sorted({request % count for request in requests} - {0})
    assert streams.numbers(np.array(requests, np.uint64)) == others


@properties
@given(
    st.sampled_from([2, 4]),
    st.lists(st.tuples(st.sampled_from(["work", "fork", "join"]), st.integers(0, 3)), max_size=20),
)
def test_work_is_seen_by_whoever_comes_after(count: int, actions: list[tuple[str, int]]) -> None:
    streams, main, _ = made(count)
    number = 0
    for what, which in actions:
        which %= count
        others = None if which == 0 else [which]
        numbers = range(1, count) if others is None else others
        if what == "work":
            streams.all[which].seen.add(number)
            number += 1
        elif what == "fork":
            before = set(main.seen)
            streams.fork(others)
            assert all(before <= streams.all[i].seen for i in numbers)
            assert main.seen == before
        else:
            own = [set(streams.all[i].seen) for i in range(count)]
            streams.join(others)
            assert all(own[i] <= main.seen for i in numbers)
            assert main.seen == own[0].union(*(own[i] for i in numbers)), "and nobody else's is waited for"
