"""The benchmark of posting does what a run does: it posts and records each command once, in blocks or alone."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps.launching import recorded

from launchopt.devices.cublaslt.launch import MOST_POSTED
from launchopt.queue.ring import MOST_AT_ONCE
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn
from launchopt.recording.recorder import Recorder
from runner.bench import posting


@pytest.mark.parametrize(("block", "size"), [(MOST_AT_ONCE, MOST_POSTED), (1, 1)])
def test_each_command_is_posted_and_noted_once(block: int, size: int) -> None:
    recorder, commands = Recorder(3 * MOST_AT_ONCE, MOST_AT_ONCE), 3 * MOST_AT_ONCE
    assert posting.Posting().run(recorder, block, commands) > 0
    found = recorded(recorder)
    assert found.commands[:, CommandColumn.SEQ].tolist() == list(range(commands))
    assert np.unique(found.launches[:, LaunchColumn.SIZE]).tolist() == [size]
    assert recorder.launch_calls == 0
    assert recorder.faults() == []


def test_both_ways_and_their_ratio_are_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "COMMANDS", MOST_AT_ONCE)
    figures = list(posting.suite(2))
    assert [figure.unit for figure in figures] == ["ns", "ns", "x"]
    together, alone, ratio = (figure.samples for figure in figures)
    assert ratio == [ours / theirs for ours, theirs in zip(together, alone, strict=True)]
