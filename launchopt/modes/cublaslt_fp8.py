"""cublaslt_fp8: two launches per command: one quantises its inputs to fp8, then a cuBLASLt call multiplies fp8 by fp8.

Engines run fp8 weights in this way (W8A8). Inputs are quantised in the timed region, as the weights are: with a scale
for each column, or one for all columns. So outputs differ from those of other modes by the error of quantising inputs.
The result says so, in column `quantised_inputs`. Outputs are compared with float64 products of the quantised inputs. On
the CPU device a launch is a call of NumPy that quantises and multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch, FlushReason
from launchopt.command import Dtype, Op, ShapeKey, as_records
from launchopt.devices.base import Device, HostDevice, gpu_of, is_host
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream
from launchopt.types import Words
from launchopt.weights.packing import Scales, WeightFormat

MULTIPLE = 16  # of which cuBLASLt needs m and k of fp8 operands
FP8_SINCE = 89  # compute capability whose tensor cores multiply fp8, times 10
OUTER_VECTOR = 90  # the only one for which cuBLASLt takes a scale per row
MOST_COLUMNS = 16  # that share a scale: one block of threads quantises them

Launch = Callable[[Words, NDArray[np.int32], int], None]  # records, their shapes, and the time of their flush, ns


class CublasltFp8(Mode):
    """Two launches per command: quantise its inputs, multiply."""

    name = "cublaslt_fp8"
    takes = Takes.commands
    keeps_order = True
    ops = frozenset({Op.GEMM})
    quantised = ("cpu", "cuda")
    quantises_inputs = True

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It needs independent commands with fp8 weights."""
        is_independent = not stream.has_steps and {shape.op for shape in stream.shapes} <= cls.ops
        if not is_independent or stream.packing.format is not WeightFormat.fp8:
            return (
                "multiplies independent commands with fp8 weights:"
                " use workload=gemv_micro or gemv_256, workload.weights=fp8 and workload.dtype=bf16"
            )
        return super().refusal(kind, stream)

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot compute with the quantised weights of `stream`, or None if it can."""
        scales, widest = stream.packing.scales, max(shape.n for shape in stream.shapes)
        if stream.dtype is Dtype.fp32:
            return "multiplies fp8 to fp16 and bf16: use workload.dtype=bf16"
        if scales is Scales.block:
            return "has no scales per block: use workload.scales=channel or tensor"
        if scales is Scales.tensor and widest > MOST_COLUMNS:
            most = f"quantises up to {MOST_COLUMNS} columns with one scale"
            return f"{most}, and this workload has {widest}: use workload.scales=channel"
        for shape in stream.shapes:
            if not shape.packing:
                return f"multiplies fp8, and this workload has weights that are not quantised: {shape}"
            if shape.m % MULTIPLE or shape.k % MULTIPLE:
                return f"multiplies fp8 if m and k are multiples of {MULTIPLE}, and this workload has {shape}"
        return None

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, has no such product; or None if it has."""
        own = f"and this GPU has {capability / 10}"
        if capability < FP8_SINCE:
            return f"needs compute capability 8.9 or newer for fp8, {own}: use mode=kernel or batched"
        if stream.packing.scales is Scales.channel and capability != OUTER_VECTOR:
            return (
                f"multiplies fp8 with a scale per channel on compute capability 9.0, {own}: use workload.scales=tensor"
            )
        return None

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes of the quantised inputs of a command."""
        return max((shape.packing.end(shape.n, shape.k) for shape in limits if shape.packing), default=0)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedFp8:
        """Compile the kernel that quantises; make a plan for each weight."""
        unpacked = [0] * len(limits)
        if is_host(device):
            for shape in limits:
                device.plan(self.name, shape, [1], scratch=False)
            return PreparedFp8(self, device, partial(_launch_on_host, device), LaunchPath(packable_bytes=unpacked))
        gpu = gpu_of(device)
        from launchopt.devices.cuda.fp8_gemms import Fp8Gemms

        for index in range(len(limits)):
            gpu.name_ranges(self.name, index, [1])
        gemms = Fp8Gemms(gpu, list(limits))
        return PreparedFp8(self, gpu, gemms.submit, LaunchPath(packable_bytes=unpacked, tables=gemms.tables))


class PreparedFp8(Prepared):
    """Launches commands with the function `launch`."""

    def __init__(self, mode: Mode, device: Device, launch: Launch, path: LaunchPath) -> None:
        super().__init__(mode, device, path)
        self._launch = launch

    def submit_each(self, words: Words, shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch each command."""
        self._launch(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch each command of a batch."""
        self._launch(batch.words, shape_of_all(batch), flush_ns)


def _launch_on_host(host: HostDevice, words: Words, shape_of: NDArray[np.int32], flush_ns: int) -> None:
    records = as_records(words)
    slots = zip(*(records[f"slot_{role}"].tolist() for role in "abc"), strict=True)
    for i, (index, own) in enumerate(zip(shape_of.tolist(), slots, strict=True)):
        a, b, c = (view[slot : slot + 1] for view, slot in zip(host.compute.views[index], own, strict=True))
        start_ns = host.enter(index, 1)
        host.compute.multiply_quantised(index, a, b, c)
        batch = Batch(index, words[i : i + 1], FlushReason.full)
        host.leave(batch, slice(0, 1), Strategy.single, flush_ns, start_ns)
