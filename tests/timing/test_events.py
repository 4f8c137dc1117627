"""Event times on the host's clock, with a stand-in for CuPy's events whose clock runs fast and started elsewhere."""

from __future__ import annotations

import importlib
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

DRIFT = 1.001  # of the device's clock
STARTED_MS = 12_345.0


class Event:
    def record(self, stream: Any = None) -> None:
        self.ms = STARTED_MS + time.monotonic_ns() * 1e-6 * DRIFT

    def synchronize(self) -> None:
        """Passed already."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    elapsed = lambda start, end: end.ms - start.ms  # noqa: E731
    fake: Any = ModuleType("cupy")
    fake.cuda = SimpleNamespace(Event=Event, get_elapsed_time=elapsed)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "launchopt.timing.events", raising=False)
    module = importlib.import_module("launchopt.timing.events")
    monkeypatch.delitem(sys.modules, "launchopt.timing.events")  # nobody else gets the one with the stand-in
    return module


def test_samples_are_on_the_hosts_clock_to_within_the_stated_error(events: ModuleType) -> None:
    timer = events.EventTimer(SimpleNamespace(synchronize=lambda: None), most_samples=3000)
    timer.start()
    timer.mark_start()
    before_ns = time.monotonic_ns()
    around = []
    for number in range(2000):  # more than there are events
        begin_ns = time.monotonic_ns()
        timer.begin()
        assert timer.end() == number
        around.append((begin_ns, time.monotonic_ns()))
    timer.mark_end()
    time.sleep(0.15)  # long enough for the drift to be taken out
    span_ns, samples, error_ns = timer.finish()
    assert 0 < error_ns < 1_000_000
    assert samples.shape == (2000, 2)
    bounds = np.array(around)
    slack_ns = 2 * error_ns + 1000
    assert (samples[:, 0] >= bounds[:, 0] - slack_ns).all()
    assert (samples[:, 1] <= bounds[:, 1] + slack_ns).all()
    assert (samples[:, 0] <= samples[:, 1]).all()
    assert span_ns >= (bounds[-1, 1] - before_ns) * 0.99


def test_there_is_room_for_so_many_samples(events: ModuleType) -> None:
    timer = events.EventTimer(SimpleNamespace(synchronize=lambda: None), most_samples=2)
    timer.start()
    timer.mark_start()
    for _ in range(2):
        assert not timer.full
        timer.begin()
        timer.end()
    assert timer.full
    timer.mark_end()
    _, samples, _ = timer.finish()
    assert len(samples) == 2
