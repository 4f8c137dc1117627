"""Which graphs are kept, and which are updated or dropped. CUDA's runtime is a stand-in that counts what is alive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_copy import STREAM
from support.cuda.fake_graphs import FakeRuntime
from support.cuda.libraries import imported

from launchopt.devices.prepared import Counters
from launchopt.errors import RunError

module: Any = imported("launchopt.devices.cuda.graph_cache")
Graphs = module.Graphs

keys = st.integers(0, 8)
properties = settings(deadline=None, max_examples=100)


class Rig:
    def __init__(self, patch: pytest.MonkeyPatch, bound: int, **how: Any) -> None:
        self.runtime = FakeRuntime(**how)
        patch.setattr(module, "cudart", self.runtime)
        self.counters = Counters()
        self.graphs = Graphs(SimpleNamespace(ptr=STREAM), bound, self.counters)

    def record(self, what: Any) -> None:
        assert self.runtime.recording is not None, "nothing is being captured"
        self.runtime.recording.append(what)


@properties
@given(st.lists(keys, max_size=40), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_what_is_replayed_is_what_was_asked_for_and_few_are_kept(
    asked: list[int], bound: int, families: int, updates: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        rig = Rig(patch, bound, updates=updates)
        made, recent = 0, list[int]()
        for key in asked:
            graph = rig.graphs.get(key)
            assert (graph is not None) >= (key in recent[-bound:] and families == 1)
            if graph is None:
                graph = rig.graphs.make(key, key % families, lambda key=key: rig.record(key))
                made += 1
            recent = [each for each in recent if each != key] + [key]
            rig.graphs.replay(graph)
            assert len(rig.runtime.executables) <= bound
            assert rig.runtime.graphs == [], "a graph that was made executable is not needed"
        assert rig.runtime.replayed == asked
        if families == 1 and updates:
            assert rig.runtime.updated == max(0, made - bound), "of the same family: updated, not made anew"
        rig.graphs.close()
        assert rig.runtime.executables == []


def test_the_longest_unused_of_the_family_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, 3)
    for key, family in (("a", 0), ("b", 1), ("c", 0)):
        rig.graphs.make(key, family, lambda key=key: rig.record(key))
    assert rig.graphs.get("a") is not None  # now c is the least recently used of its family
    rig.graphs.make("d", 0, lambda: rig.record("d"))
    assert [rig.graphs.get(key) is None for key in "abcd"] == [False, False, True, False]
    rig.graphs.make("e", 2, lambda: rig.record("e"))  # no kept graph is of its family, so one is dropped
    assert [rig.graphs.get(key) is None for key in "abde"] == [True, False, False, False]


def test_a_graph_that_may_not_be_updated_is_dropped_and_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, 1)
    graphs = Graphs(SimpleNamespace(ptr=STREAM), 1, rig.counters, updates=False)
    for key in ("a", "b"):
        graphs.make(key, 0, lambda key=key: rig.record(key))
    assert (rig.runtime.updated, len(rig.runtime.executables), graphs.get("a")) == (0, 1, None)
    assert "update" not in rig.counters.costs_ns


def test_costs_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, 1)
    assert rig.counters.costs_ns == {"capture": 0, "instantiate": 0, "upload": 0}
    rig.graphs.make(1, 0, lambda: rig.record(1))
    assert "update" not in rig.counters.costs_ns
    first = dict(rig.counters.costs_ns)
    assert all(first[name] > 0 for name in ("capture", "instantiate", "upload"))
    rig.graphs.make(2, 0, lambda: rig.record(2))
    assert rig.counters.costs_ns["update"] > 0
    assert rig.counters.costs_ns["capture"] > first["capture"]
    assert (rig.counters.costs_ns["instantiate"], rig.counters.costs_ns["upload"]) == (
        first["instantiate"],
        first["upload"],
    )


def test_a_capture_that_fails_is_an_error_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, 1, fail="capture")
    with pytest.raises(RunError, match="CUDA graph: error 910"):
        rig.graphs.make(1, 0, lambda: rig.record(1))
    assert rig.graphs.get(1) is None

    def fails() -> None:
        raise RuntimeError("no launch")

    with pytest.raises((RuntimeError, RunError)):
        rig.graphs.make(2, 0, fails)
    assert rig.runtime.recording is None, "the stream is not left capturing"
