"""The part copies: its cases, what it does without a GPU, and on one a case."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launchopt.devices.cuda.floors import bulk_copies as bc
from launchopt.kernels.shared import COPY_ROWS, MOST_COPY_SLOTS
from runner.bench import copies
from runner.bench.__main__ import main


class Fake:
    """A fake of `BulkCopies`: it records the calls, and each call returns different numbers."""

    asked: list[tuple[int, int, int, bool]]

    def __init__(self) -> None:
        Fake.asked = []

    def measure(self, slots: int, offset: int, pitch: int, near: bool) -> bc.Copied:
        Fake.asked.append((slots, offset, pitch, near))
        return bc.Copied(1000.0 * slots + near, np.array([[400 + offset, 600 + offset]], np.uint32))


def test_each_number_under_way_and_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BulkCopies", Fake)
    found = {figure.case: figure for figure in copies.suite(2, "cuda")}
    assert Fake.asked[::2] == Fake.asked[1::2], "repeats"
    assert Fake.asked[::2] == [
        *((slots, 0, 2112, False) for slots in (0, 1, 2, 3, 4, 11)),
        *((11, offset, 2112, False) for offset in (16, 32, 48, 64, 96)),
        (11, 0, 2112, True),
    ]
    assert found["11 slots of 16 KB under way: rate"].samples == [11000.0, 11000.0]
    assert found["11 slots of 16 KB under way: rate"].higher_is_better
    assert found["11 slots of 16 KB under way, from the L2 cache: rate"].samples == [11001.0, 11001.0]
    assert found["1 slot of 16 KB under way: rate"].samples == [1000.0, 1000.0]
    assert "nothing under way: rate" not in found
    assert found["nothing under way: a hit in the L2 cache"].samples == [500.0, 500.0]
    beside = "11 slots of 16 KB under way, 48 bytes beyond a multiple of 128"
    assert found[f"{beside}: the slowest multiprocessor's"].samples == [648.0, 648.0]
    assert {figure.suite for figure in found.values()} == {"copies"}


def test_all_cases_fit_into_the_shared_memory_of_an_h100() -> None:
    most = max(copies.OFFSETS) + max(copies.UNDER_WAY) * COPY_ROWS * copies.PITCH
    assert most <= (227 << 10) - (1 << 10)
    assert max(copies.UNDER_WAY) <= MOST_COPY_SLOTS


def test_another_device_is_left_out(tmp_path: Path) -> None:
    assert main(["copies", "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.gpu
def test_on_a_gpu_more_under_way_is_faster_and_in_the_way() -> None:
    measured = bc.BulkCopies()
    none, one, many = (measured.measure(slots, 0, copies.PITCH) for slots in (0, 1, 8))
    assert none.gb_per_s == 0 < one.gb_per_s < many.gb_per_s
    assert none.mean_cycles < many.mean_cycles
    assert measured.measure(8, 0, copies.PITCH, near=True).gb_per_s > 0  # and nothing else than was copied is found
    with pytest.raises(ValueError, match="too many"):
        measured.measure(MOST_COPY_SLOTS + 1, 0, copies.PITCH)
