"""kernels/copies.cu on the host (cuda_on_host): its copies, its counts, and that it checks both."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import built_of, can_build, launch

from launchopt.devices.cuda.floors import bulk_copies as bc
from launchopt.errors import RunError
from launchopt.kernels import source
from launchopt.kernels.shared import COPY_ROWS, LINE_BYTES, MOST_COPY_SLOTS, CopyResult

BLOCKS, SHARE_SLOTS, SAMPLES, GAP = 2, 5, 12, 400
COPY = "copy_bulk(row(filling.index, lane), (u64)source(begun, lane), ROW_BYTES, barrier, policy)"


class Launched:
    """A launch of the kernel `text` with this number of slots under way."""

    def __init__(self, slots: int, offset: int, pitch: int, text: str, lines: NDArray[np.uint8]) -> None:
        share = np.random.default_rng(slots).integers(0, 255, BLOCKS * SHARE_SLOTS * bc.SLOT_BYTES, dtype=np.uint8)
        self.waits = np.zeros((SAMPLES, BLOCKS), np.uint32)
        self.results = np.zeros((BLOCKS, len(CopyResult)), np.uint64)
        copies = bc.Copies(share.ctypes.data, SHARE_SLOTS, offset, pitch, slots)
        loads = bc.Loads(lines.ctypes.data, SAMPLES, GAP, self.waits.ctypes.data)
        words = bc.words_of(copies, loads, self.results.ctypes.data)
        kernel = built_of(text, "copies(*(const Copies*)arguments)", DTYPE=1)
        shared_bytes = offset + MOST_COPY_SLOTS * COPY_ROWS * pitch
        launch(kernel, (BLOCKS,), 2 * bc.WARP, shared_bytes, words.ctypes.data, seed=slots)


def lines() -> NDArray[np.uint8]:
    memory = np.zeros(SAMPLES * bc.WARP * LINE_BYTES + 128, np.uint8)
    begin = -memory.ctypes.data % 128
    return memory[begin:-128] if begin == 0 else memory[begin : begin - 128]


@pytest.mark.skipif(not can_build(), reason="needs g++")
@pytest.mark.parametrize(("slots", "offset", "pitch"), [(1, 0, 2048), (2, 16, 2112), (3, 48, 2176), (16, 0, 2112)])
def test_slots_hold_what_was_copied(slots: int, offset: int, pitch: int) -> None:
    found = Launched(slots, offset, pitch, source("copies"), lines())
    copied = bc.copied_of(found.results, found.waits)
    assert (found.results[:, CopyResult.BYTES] % bc.SLOT_BYTES == 0).all()
    assert (found.results[:, CopyResult.BYTES] > slots * bc.SLOT_BYTES).all(), "slots were used again"
    assert copied.gb_per_s > 0
    assert copied.waits.all()


@pytest.mark.skipif(not can_build(), reason="needs g++")
def test_nothing_under_way() -> None:
    found = Launched(0, 0, 2112, source("copies"), lines())
    copied = bc.copied_of(found.results, found.waits)
    assert copied.gb_per_s == 0
    assert copied.waits.all()


@pytest.mark.skipif(not can_build(), reason="needs g++")
def test_a_missing_copy_is_found() -> None:
    text = source("copies")
    assert text.count(COPY) == 1
    elsewhere = Launched(
        3, 0, 2112, text.replace("row(filling.index, lane), (u64)source", "row(0, lane), (u64)source"), lines()
    )
    with pytest.raises(RunError, match="2 blocks found something else than was copied"):
        bc.copied_of(elsewhere.results, elsewhere.waits)


@pytest.mark.skipif(not can_build(), reason="needs g++")
def test_a_changed_line_is_found() -> None:
    written = lines()
    written[LINE_BYTES * 5 * bc.WARP] = 1  # a line that block 0 reads
    found = Launched(1, 0, 2112, source("copies"), written)
    with pytest.raises(RunError, match="1 blocks found"):
        bc.copied_of(found.results, found.waits)


def test_waits_have_a_mean_and_the_maximum_over_blocks() -> None:
    results = np.zeros((2, len(CopyResult)), np.uint64)
    results[:, CopyResult.BYTES], results[:, CopyResult.BEGIN_NS], results[:, CopyResult.END_NS] = (
        4000,
        (1000, 1100),
        (2000, 3000),
    )
    copied = bc.copied_of(results, np.array([[400, 500], [300, 900], [700, 200]], np.uint32))
    assert (copied.gb_per_s, copied.mean_cycles, copied.slowest_cycles) == (4.0, 500.0, 700.0)
