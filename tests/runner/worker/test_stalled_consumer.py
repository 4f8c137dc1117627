"""A consumer that stands still for a while shows in the latency of what arrived meanwhile."""

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.processes.own_run import Victim, eventually, on_linux

from launchopt.queue.segment import CLOSED_BIT, HeaderWord
from launchopt.recording import results

COMMON = "workload.cache=hot record.launches=none arrival=constant"
STALL_S = 0.4
STALLED = {
    # Arrivals go on for 2 s; a fifth of them come while nobody takes them.
    "gemv": f"workload=gemv_256 {COMMON} workload.commands=4000 arrival.rate_per_s=2000",
    "requests": f"workload=decode model=tiny {COMMON} workload.requests=200 workload.tokens=1 arrival.rate_per_s=100",
}


def is_under_way(run: Victim) -> bool:
    """Return whether commands come as they are due: few have been pushed. In the audit run before, all come at once."""
    for ring in run.rings():
        with contextlib.suppress(OSError, IndexError):
            words: Any = np.fromfile(ring, np.uint64, count=HeaderWord.TAIL + 1)
            head, tail = int(words[HeaderWord.HEAD]) & ~CLOSED_BIT, int(words[HeaderWord.TAIL])
            if 300 <= tail <= head < 1200:
                return True
    return False


@on_linux
@pytest.mark.parametrize("name", STALLED)
def test_a_consumer_that_stands_still_is_seen_in_what_came_meanwhile(
    name: str, victim: Callable[[str], Victim]
) -> None:
    """No coordinated omission: arrivals do not wait for it, and their latency counts from when they were due."""
    run = victim(STALLED[name])
    eventually(lambda: is_under_way(run) or run.process.poll() is not None)
    consumer, _ = run.children()
    consumer.send_signal(signal.SIGSTOP)
    time.sleep(STALL_S)
    consumer.send_signal(signal.SIGCONT)
    assert run.end() == (0, "")
    (row,) = results.read_summaries([run.results_folder()])
    late = row["latency_p99_us"] / 1e3 if name == "gemv" else row["ttft_p99_ms"]
    most = row["latency_max_us"] / 1e3 if name == "gemv" else row["ttft_max_ms"]
    assert late > 0.7 * STALL_S * 1e3
    assert late <= most
    assert row["latency_p90_us"] > 0.3 * STALL_S * 1e6  # a fifth waited, evenly from nothing to all of it
    assert row["wall_ms"] >= 1990
