"""The tasks of one fused layer, by name, for tests of their words, boxes and macros."""

from __future__ import annotations

from typing import Any

import pytest

from launchopt.command import Dtype
from launchopt.devices.instructions.words import Word
from launchopt.devices.megakernel.task_structs import TaskWord
from launchopt.devices.megakernel.tasks import tasks_of
from support.steps.fused_layers import STAGES, compiled, layer_stream, names_of, stages_of

BLOCKS = 5
SLOTS, QKV, ATTENTION, OUT, GATE_UP, DOWN = range(1 + len(STAGES))
WIDTHS = {QKV: 384, ATTENTION: 256, OUT: 256, GATE_UP: 384, DOWN: 256}  # features of each task's final result
STREAMED = [QKV, OUT, GATE_UP, DOWN]
EVERY = [(1, Dtype.fp32), (3, Dtype.fp32), (1, Dtype.bf16), (3, Dtype.bf16)]
every = pytest.mark.parametrize(("requests", "dtype"), EVERY, ids=lambda value: getattr(value, "name", value))


class Layer:
    """The list of a layer, its rows by name, and its tasks."""

    def __init__(self, requests: int, dtype: Dtype = Dtype.fp32, blocks: int = BLOCKS, **how: Any) -> None:
        stream = layer_stream(requests, dtype, **how)
        self.itemsize, self.program, names = dtype.itemsize, compiled(stream), names_of(stream)
        assert stages_of(self.program, names) == ["slots", *STAGES * stream.layers]
        self.rows = dict(zip(names, self.program, strict=True))
        self.tasks, self.box_bytes = tasks_of(self.program, blocks, self.itemsize)

    def words(self, i: int, *columns: TaskWord) -> list[int]:
        found: list[int] = self.tasks[i, list(columns)].tolist()
        return found

    def of(self, name: str, *columns: Word) -> list[int]:
        found: list[int] = self.rows[name][list(columns)].tolist()
        return found
