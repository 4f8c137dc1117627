"""kernels/gate.cuh on the host (cuda_on_host): launches that are made before their commands are there."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cuda_on_host import can_build
from kernel_runs import NUMBER, PROGRAMS, TOKENS, KernelRun, Launched, done_by
from program_interpreter import NONE
from programs import requests_of

from launchopt.command import Dtype
from launchopt.sampling import Sampling
from launchopt.workloads.chain import ChainStream

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")


class Gated(KernelRun):
    """Launches are made before their commands are there, two of each that are called off, or hear nothing, first."""

    patience_ns = 60_000_000_000

    def __init__(self, stream: ChainStream, sampling: Sampling = NONE) -> None:
        super().__init__(stream, sampling)
        self.said, self.heard, self.tag = np.zeros(2, np.uint64), np.zeros(1, np.uint64), 0

    def launch(self, made: Launched, arguments: int, rows: int) -> None:
        self.done_in_vain(made, rows, says=True)
        self.done_in_vain(made, rows, says=False)
        before = self.bytes_of(made)
        with ThreadPoolExecutor(1) as pool:
            launched = pool.submit(self.gated, made, rows)
            time.sleep(0.02)
            assert not launched.done()
            assert self.bytes_of(made) == before, "nothing is stored before"
            self.said[0] = self.tag << 48 | arguments
            launched.result()
        assert self.said[1] == 0

    def done_in_vain(self, made: Launched, rows: int, says: bool) -> None:
        """A launch that is called off, or gives up."""
        before = self.bytes_of(made)
        if says:
            self.said[0] = self.tag + 1 << 48
        self.gated(made, rows, self.patience_ns if says else 1_000_000)
        made.words[NUMBER] -= 1
        assert self.bytes_of(made) == before
        assert self.said[1] == (0 if says else self.tag)
        self.said[1] = 0

    def gated(self, made: Launched, rows: int, patience_ns: int = patience_ns) -> None:
        self.tag += 1
        words = self.said.ctypes.data, self.said[1:].ctypes.data, self.heard.ctypes.data, self.tag, patience_ns
        made.launch(self.launches, 0, rows, np.array(words, np.int64))
        assert self.heard[0] >> np.uint64(48) == self.tag

    def bytes_of(self, made: Launched) -> bytes:
        """All that a launch stores, but for what the gate is."""
        arrays = made.counters, made.boxes, made.found, self.ns
        return b"".join((*self.contents().values(), *(each.tobytes() for each in arrays)))


@pytest.mark.parametrize(("name", "requests"), [("decode", 1), ("decode", 3), ("large", 1), ("layer", 2)], ids=str)
def test_launches_that_wait_for_their_commands(name: str, requests: int) -> None:
    """Of lists with fewer slots of weights than there are, and with more: as others, once they are admitted."""
    stream = ChainStream(PROGRAMS[name], 1, requests_of([(0, TOKENS)] * requests), Dtype.bf16, 1)
    ours, theirs = done_by(Gated(stream)), done_by(KernelRun(stream))
    assert ours.launches == theirs.launches >= TOKENS - 1
    assert ours.contents() == theirs.contents()
    assert ours.verify().ok
