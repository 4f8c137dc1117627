"""Buffers of the slot numbers of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_buffers_are_released_once_and_a_second_time_changes_nothing() -> None:
    from launchopt.devices.pytorch.batches import Indices

    arenas: Any = SimpleNamespace(is_cuda=False, device=torch.device("cpu"))
    indices = Indices(arenas, 8)
    assert indices.device.shape == (3, 8)
    for _ in range(2):
        indices.close()
        assert indices.device.numel() == 0
