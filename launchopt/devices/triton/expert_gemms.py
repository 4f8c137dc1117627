"""Compile, time and plan the launches of a step with experts: those of Triton, of cuBLASLt and of our own kernels.

In: the operands of some steps (`expert_operands`). Out: `ExpertLaunches`, whose `row` is a row of the plans table for
each launch, with the fastest configuration of each GEMM. Timing reads the workload's own weights and routing.
"""

from __future__ import annotations

from collections.abc import Iterable

import cupy
import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import PlanKind
from launchopt.devices.cublaslt.plans import Gemm
from launchopt.devices.cublaslt.tuning import by_pointers, by_strides
from launchopt.devices.cuda.expert_gemm import ExpertGemm
from launchopt.devices.cuda.op_kernels import geometry
from launchopt.devices.cuda.op_plans import three, to_launch
from launchopt.devices.steps.expert_operands import OPERANDS
from launchopt.devices.triton.expert_kernels import expert_gemm
from launchopt.devices.triton.expert_operands import LAUNCHES, OF_TRITON
from launchopt.devices.triton.expert_tuning import (
    ExpertConfig,
    align_launch,
    expert_configs,
    most_blocks,
    neighbours,
)
from launchopt.devices.triton.plans import TYPES, Loaded, Variant, load_variants
from launchopt.devices.triton.timed import ns_a_launch
from launchopt.errors import RunError
from launchopt.kernels.shared import BLOCK_WORDS
from launchopt.streams.experts.layout import ROUTER, ExpertLayout
from launchopt.streams.experts.stream import ExpertStream
from launchopt.types import Table

WORD_BYTES = 8
Configs = dict[str, tuple[ExpertConfig, float]]  # by GEMM: its fastest configuration, and the ns of it


def variant(layout: ExpertLayout, name: str, config: ExpertConfig, indirect: bool, early: bool) -> Variant:
    """Return the kernel to compile for gate_up or down. indirect: it reads addresses from a table. early: with PDL."""
    shape = shape_of(layout, name)
    _, b, c = layout.operands(shape)
    gathers, weight = name == "gate_up", layout.weights[OF_TRITON[name]]
    given = layout.layer.hidden if gathers else b.row_elements
    constants = {
        **{"M": shape.m, "K": shape.k, "EXPERTS": layout.layer.experts, "TOP_K": layout.layer.top_k if gathers else 0},
        **{"LEADING": (given, c.row_elements), "WEIGHT": weight.slot_bytes // layout.dtype.itemsize},
        **{"DTYPE": TYPES[layout.dtype], "BLOCK_M": config.rows, "BLOCK_N": config.features},
        **{"BLOCK_K": config.depth, "GROUP_M": config.group, "BLOCK_WORDS": BLOCK_WORDS},
        **{"INDIRECT": indirect, "PDL": early},
    }
    return Variant(expert_gemm, constants, config.warps, config.stages)


def shape_of(layout: ExpertLayout, name: str) -> ShapeKey:
    """Return the shape of gate_up or down, for one row."""
    return {"gate_up": layout.gate_up, "down": layout.down}[name](1)


class ExpertLaunches:
    """The launches of a step. captured: they read addresses from a table. early: with programmatic dependent launch.

    words: operands of the steps to time, [steps, launches, OPERANDS]. tried: rows of a block. chosen: what is fastest.
    """

    def __init__(
        self,
        device: GpuDevice,
        stream: ExpertStream,
        how: tuple[bool, bool],
        words: Table,
        tried: Iterable[int],
    ) -> None:
        self._device, self._stream, self._words = device, stream, words
        self._captured, self._early = how
        self._router = self._library_router()
        found = [self._tuned(rows) for rows in tried]
        self.chosen: Configs = min(found, key=lambda each: sum(ns for _, ns in each.values()))

    def row(self, name: str) -> list[int]:
        """Return the row of the plans table of a launch."""
        how = self._captured, self._early
        if name == "router":
            return self._router or self._own_row(name, *how)
        if name == "map":
            return self._blocks_row(self.chosen["down"][0].rows, *how)
        if name not in OF_TRITON:
            return self._own_row(name, *how)
        config, _ = self.chosen[name]
        (kernel,) = load_variants([variant(self._stream.layout, name, config, *how)])
        assert kernel is not None  # it needs as much shared memory as the kernel that was timed
        return self._triton_row(name, config, kernel, self._early)

    def _own_row(self, name: str, captured: bool, early: bool) -> list[int]:
        kernels, defines = self._device.kernels, {"INDIRECT": int(captured), "PDL": int(early)}
        shape, layer = self._stream.layout.singles[name], self._stream.layer
        rows = three(self._device.row_elements(shape))
        if name == "router":
            slot_bytes = self._stream.layout.weights[ROUTER].slot_bytes
            launch = ExpertGemm(shape.m, shape.k, 1, layer.columns, rows[1:], slot_bytes).launch()
            return kernels.row(kernels.function("expert_gemm", "expert_gemm", "", **defines), launch, early)
        made = geometry(shape, 1, rows, (0, 0, 0))
        return kernels.row(kernels.function("ops", made.function_name, "", **defines), to_launch(made), early)

    def _blocks_row(self, rows: int, captured: bool, early: bool) -> list[int]:
        """Return the row of the plans table of the launch that makes blocks of up to `rows` rows."""
        table = self._stream.layout.singles["top_k"]
        pitch_bytes = self._device.row_elements(table)[2] * table.dtype.itemsize
        kernels, defines = self._device.kernels, {"INDIRECT": int(captured), "PDL": int(early)}
        function = kernels.function("expert_align", "expert_align", "", **defines)
        return kernels.row(function, align_launch(self._stream.layer, pitch_bytes, rows), early)

    def _triton_row(self, name: str, config: ExpertConfig, kernel: Loaded, early: bool) -> list[int]:
        tiles = -(-shape_of(self._stream.layout, name).m // config.features)
        grid = most_blocks(self._stream.layer, config.rows) * tiles, 1, 1
        return self._device.kernels.row(kernel.function, kernel.launch(grid), early)

    def _library_router(self) -> list[int] | None:
        """Return the row of the plans table of cuBLASLt's router; None: our own is faster, or cuBLASLt has none.

        A captured launch reads arrays of pointers, of one pointer each: these are the words of the table.
        """
        device, shape, words = self._device, self._stream.layout.singles["router"], self._words[:, 0]
        index = device.work.shapes.index(shape)
        alone = Gemm(shape, 1, (0, 0, 0), device.row_elements(shape))
        try:
            made, _ = by_pointers(device, index, 1, 1) if self._captured else by_strides(device, index, alone, 1, 1)
        except RunError:
            return None
        library, table = [*made, int(PlanKind.MATMUL)], cupy.asarray(words)
        device.synchronize()
        given: list[list[int]] = words.tolist()
        own_ns = self._ns(self._own_row("router", False, False), given, "router, own")
        if self._captured:
            first, step = int(table.data.ptr), int(table.strides[0])
            given = [[first + i * step + WORD_BYTES * j for j in range(OPERANDS)] for i in range(len(words))]
        return library if self._ns(library, given, "router, cuBLASLt") < own_ns else None

    def _tuned(self, rows: int) -> Configs:
        """Return the fastest configuration of each GEMM with blocks of `rows` rows."""
        before = [self._own_row(name, False, False) for name in ("router", "top_k")]
        plans = np.array([*before, self._blocks_row(rows, False, False)], np.int64)
        for of_step in self._words:
            for plan, operands in zip(plans, of_step[: len(plans)].tolist(), strict=True):
                self._device.check(lt.launch(self._device.base.contexts[0], plan, *operands))
        self._device.synchronize()
        found = {}
        for name in OF_TRITON:
            shape = shape_of(self._stream.layout, name)
            timed = self._times(name, expert_configs(shape.m, shape.k, rows))
            best = min(timed, key=lambda config: timed[config])
            timed |= self._times(name, [each for each in neighbours(best, shape.m, shape.k) if each not in timed])
            best = min(timed, key=lambda config: timed[config])
            found[name] = best, timed[best]
        return found

    def _times(self, name: str, configs: list[ExpertConfig]) -> dict[ExpertConfig, float]:
        """Return the ns of each configuration that fits the GPU."""
        kernels = load_variants([variant(self._stream.layout, name, each, False, False) for each in configs])
        operands = self._words[:, LAUNCHES.index(name)].tolist()
        return {
            config: self._ns(self._triton_row(name, config, kernel, False), operands, f"{name}, {config}")
            for config, kernel in zip(configs, kernels, strict=True)
            if kernel is not None
        }

    def _ns(self, row: list[int], operands: list[list[int]], what: str) -> float:
        """Return the ns of a launch with each of some operands."""
        plan, context = np.array(row, np.int64), self._device.base.contexts[0]

        def launch(turn: int) -> None:
            a, b, c, more = operands[turn]
            self._device.check(lt.launch(context, plan, a, b, c, more))

        return ns_a_launch(self._device.stream, launch, len(operands), what)
