"""Whole steps of bias, ReLU and scale as one launch of a Triton kernel, for all requests of a batch and all layers.

Each of the commands' outputs is stored, also those that the next one takes from a register: every mode leaves the same
outputs behind, and all of them are checked. They are rounded as if each had been launched by itself, so the numbers are
the same to the bit. What is saved is reading them again, and the launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from launchopt.command import W_MN, Dtype, ShapeKey
from launchopt.devices.lt_launch import Table
from launchopt.devices.pointers import Pointers
from launchopt.devices.step_pointers import NODES, launch_steps, pointers_of_steps
from launchopt.devices.triton_kernels import bias_relu_scale
from launchopt.devices.triton_plans import TYPES, Loaded, Variant, load_variants
from launchopt.recorder import Strategy
from launchopt.step_batcher import NO_SHAPE, StepBatch
from launchopt.workloads.chain import ChainStream

BLOCK, WARPS = 512, 4
AHEAD = 8  # layers whose vectors are loaded before the first of them is needed
UPLOAD_CALLS = 1
HIGH = np.uint64(32)
STRATEGY = int(Strategy.fused)


def step_variant(m: int, row_elements: tuple[int, int, int], dtype: Dtype, layers: int) -> Variant:
    """The kernel for steps of `layers` layers of m features."""
    constants = {"M": m, "LEADING": row_elements, "DTYPE": TYPES[dtype], "LAYERS": layers}
    return Variant(bias_relu_scale, constants | {"BLOCK": BLOCK, "AHEAD": AHEAD}, WARPS, fuses_products=False)


def step_grid(m: int, n: int, size: int) -> tuple[int, int, int]:
    """Blocks for `size` steps of n columns."""
    return n * -(-m // BLOCK), size, 1


class TritonSteps:
    """Plans for up to `limits` steps of each kind, and their launches. `device`: a CudaDevice."""

    def __init__(self, device: Any, limits: Mapping[ShapeKey, int]) -> None:
        self._device = device
        stream: ChainStream = device.work
        self._layers = stream.layers
        self._shapes: dict[int, Table] = {}  # by columns: rows of lt_launch's shapes, of the three nodes
        self._plans: dict[tuple[int, int], Table] = {}  # by columns and steps
        widest = max(stream.shapes, key=lambda shape: shape.n)  # how far apart rows are matters where there are some
        rows = device.row_elements(widest)
        (kernel,) = load_variants([step_variant(widest.m, rows, stream.dtype, stream.layers)])
        assert kernel is not None  # it needs no shared memory
        for n in sorted({shape.n for shape in stream.shapes}):
            shapes = [next(shape for shape in stream.shapes if (shape.op, shape.n) == (op, n)) for op in NODES]
            self._shapes[n] = device.base.shapes[[stream.shapes.index(shape) for shape in shapes]]
            for size in range(1, min(limits[shape] for shape in shapes) + 1):
                self._plans[n, size] = self._plan(kernel, step_grid(widest.m, n, size))
        most = max(size for _, size in self._plans)
        self._pointers = Pointers(device.stream, pointers_of_steps(self._layers, most))

    def _plan(self, kernel: Loaded, grid: tuple[int, int, int]) -> Table:
        return np.array(self._device.kernels.row(kernel.function, kernel.launch(grid)), np.int64)

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Fill and upload the tables, launch once."""
        device, recorder, words, size = self._device, self._device.recorder, batch.words, batch.size
        n = int(words[0, W_MN] >> HIGH)
        staged = self._pointers.stage()
        device.enter(NO_SHAPE, size)
        what = (recorder.next_batch(), NO_SHAPE, STRATEGY, int(batch.reason), flush_ns)
        plan, context = self._plans[n, size], device.base.contexts[0]
        common = (device.records, what, staged, self._pointers.words)
        device.check(launch_steps(words, size, self._shapes[n], plan, context, *common))
        self._pointers.uploaded()
        recorder.mark_packed(8 * pointers_of_steps(self._layers, size), UPLOAD_CALLS)
        device.left()
