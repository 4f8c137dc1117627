"""Streams whose steps kernels/megakernel.cu runs on the host in gated launches, which wait for the host's word."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from launchopt.kernels.shared_megakernel import GATE
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainStream
from support.megakernel.kernel_runs import KernelRun, Launched
from support.steps.program_interpreter import NONE


class Gated(KernelRun):
    """A run whose launches start before their commands exist.

    Before each admitted launch it makes one launch that is called off, and one that gives up.
    """

    patience_ns = 60_000_000_000

    def __init__(self, stream: ChainStream, sampling: Sampling = NONE, text: str | None = None) -> None:
        super().__init__(stream, sampling, text=text)
        self.host_words, self.word_copy, self.tag = np.zeros(2, np.uint64), np.zeros(1, np.uint64), 0

    def launch(self, made: Launched, arguments: int, rows: int) -> None:
        self.launch_in_vain(made, rows, is_called_off=True)
        self.launch_in_vain(made, rows, is_called_off=False)
        before = self.bytes_of(made)
        with ThreadPoolExecutor(1) as pool:
            launched = pool.submit(self.gated, made, rows)
            time.sleep(0.02)
            assert not launched.done()
            assert self.bytes_of(made) == before, "nothing is stored before"
            self.host_words[0] = self.tag << 48 | arguments
            launched.result()
        assert self.host_words[1] == 0

    def launch_in_vain(self, made: Launched, rows: int, is_called_off: bool) -> None:
        """Make a launch that is called off (`is_called_off`), or one that gets no word and gives up."""
        before = self.bytes_of(made)
        if is_called_off:
            self.host_words[0] = self.tag + 1 << 48
        self.gated(made, rows, self.patience_ns if is_called_off else 1_000_000)
        made.words["number"] -= 1
        assert self.bytes_of(made) == before
        assert self.host_words[1] == (0 if is_called_off else self.tag)
        self.host_words[1] = 0

    def gated(self, made: Launched, rows: int, patience_ns: int = patience_ns) -> None:
        self.tag += 1
        places = [each.ctypes.data for each in (self.host_words, self.host_words[1:], self.word_copy)]
        gate = np.array([(*places, self.tag, patience_ns)], GATE)
        made.launch(self.launches, 0, rows, gate)
        assert self.word_copy[0] >> np.uint64(48) == self.tag

    def bytes_of(self, made: Launched) -> bytes:
        """Return everything that a launch stores, except the words of the gate."""
        arrays = made.counters, made.boxes, made.found, self.ns
        return b"".join((*self.contents().values(), *(each.tobytes() for each in arrays)))
