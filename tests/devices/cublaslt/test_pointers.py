"""Buffers for uploads, used in turn: none is overwritten before its upload ends. CuPy is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_copy import STREAM, FakeCopy
from support.cuda.libraries import imported

from launchopt.devices.cublaslt.pointer_loops import UploadWord, upload_words

module: Any = imported("launchopt.devices.cublaslt.pointers")
TURNS, TURNS_AN_EVENT, Pointers = module.TURNS, module.TURNS_AN_EVENT, module.Pointers

MOST = 6


class Event:
    """A CUDA event that logs each of its calls."""

    def __init__(self, log: list[tuple[str, int]], number: int) -> None:
        self._log, self._number = log, number

    def record(self, stream: Any) -> None:
        assert stream.ptr == STREAM
        self._log.append(("record", self._number))

    def synchronize(self) -> None:
        self._log.append(("wait", self._number))


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, int]] = []
        self.copy = FakeCopy(MOST)
        events = iter(range(10**6))

        def empty(count: int, kind: Any) -> Any:
            assert (count, kind) == (MOST, np.int64)
            return SimpleNamespace(data=SimpleNamespace(ptr=self.copy.table.ctypes.data))

        def memcpy(to: int, source: int, size: int, kind: int, stream: int) -> None:
            assert kind == 1
            self.copy._copy(to, source, size, stream)

        cuda = SimpleNamespace(
            alloc_pinned_memory=bytearray,
            Event=lambda disable_timing: Event(self.log, next(events)),
            runtime=SimpleNamespace(memcpyHostToDevice=1, memcpyAsync=memcpy),
        )
        monkeypatch.setattr(module, "cupy", SimpleNamespace(cuda=cuda, empty=empty))
        monkeypatch.setattr(module, "upload_address", lambda: int(self.copy.upload[0]))
        self.pointers = Pointers(SimpleNamespace(ptr=STREAM), MOST)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


@pytest.mark.parametrize("by_compiled_code", [True, False])
def test_what_is_staged_is_what_arrives(rig: Rig, by_compiled_code: bool) -> None:
    pointers = rig.pointers
    for turn in range(3 * TURNS):
        staged = pointers.stage()
        assert len(staged) == MOST
        words = 1 + turn % MOST
        staged[:words] = turn * 10 + np.arange(words)
        if by_compiled_code:
            assert upload_words(pointers.words, words, STREAM) == 0
            pointers.uploaded()
        else:
            pointers.upload(words)
        assert rig.copy.table[:words].tolist() == (turn * 10 + np.arange(words)).tolist()
        assert rig.copy.copies[-1] == (8 * words, STREAM)
    assert pointers.device == pointers.words[UploadWord.TO] == rig.copy.table.ctypes.data


def test_a_buffer_is_reused_only_after_its_upload(rig: Rig) -> None:
    """The host waits for the event that was recorded after the buffer's upload."""
    pointers, places, turns = rig.pointers, [], 4 * TURNS
    for turn in range(turns):
        before = len(rig.log)
        places.append(int(pointers.stage().ctypes.data))
        assert places[-1] == pointers.words[UploadWord.FROM]
        if turn >= TURNS and turn % TURNS_AN_EVENT == 0:
            assert rig.log[before:] == [("wait", turn % TURNS // TURNS_AN_EVENT)]
        else:
            assert rig.log[before:] == []
        pointers.uploaded()
        if (turn + 1) % TURNS_AN_EVENT == 0:
            assert rig.log[-1] == ("record", turn % TURNS // TURNS_AN_EVENT)
    assert len(set(places[:TURNS])) == TURNS
    assert places == places[:TURNS] * (turns // TURNS)
    assert np.diff(sorted(places[:TURNS])).tolist() == [8 * MOST] * (TURNS - 1)
    for number in range(TURNS // TURNS_AN_EVENT):
        own = [what for what, of in rig.log if of == number]
        assert own == ["record", "wait"] * (turns // TURNS - 1) + ["record"]


def test_a_place_that_is_staged_twice_is_one_upload(rig: Rig) -> None:
    first = rig.pointers.stage()
    again = rig.pointers.stage()
    assert first.ctypes.data == again.ctypes.data
