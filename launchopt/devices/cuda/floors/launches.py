"""Measure floors of launches, and the stages of one launch. This module decides what to time; a `Gpu` calls CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from launchopt.devices.cublaslt.launch_tables import ContextWord
from launchopt.devices.cuda.floors.loops import call_burst, empty_function, launch_burst, lone_launches
from launchopt.devices.floors import CALLS, Measured
from launchopt.devices.launch_breakdown import LaunchTime, Stage, gaps_ns, stage, traced_stages
from launchopt.errors import DeviceError, RunError
from launchopt.timing.activity import Activity, CallColumn
from launchopt.types import Table

LONE = 1000  # launches with a wait after each, without CUPTI
TRACED = 400  # launches with a wait after each, with CUPTI
BURSTS = 100  # bursts that measure the stage `arguments`
QUEUED = 512  # launches while a kernel holds the queue, whose capacity is 1,024
NODES = 1024  # null kernels in a graph
TRACED_FLOORS = ("launch_delay_us", "null_kernel_us", "cupti_launch_host_us", "stages by CUPTI")
Parts = dict[str, Table]


class Gpu(Protocol):
    """The CUDA calls that floors need besides launches."""

    def check(self, status: int) -> None:
        """Raise RunError for a status that is not 0."""

    def synchronize(self) -> None:
        """Wait for everything submitted."""

    def address(self, name: str) -> int:
        """Return the address of a function of the driver."""

    def event(self) -> int:
        """Return the handle of an event."""

    def graph(self, record: Callable[[], None]) -> int:
        """Return the handle of an executable graph of the work that `record` submits, uploaded to the GPU."""

    def elapsed_us(self, work: Callable[[], None]) -> float:
        """Return the GPU us of the work that `work` submits. A kernel holds the queue until all of it is submitted."""

    def traced(self, work: Callable[[], None], held: bool) -> Activity:
        """Return CUPTI's records of `work`. held: a kernel holds the queue. DeviceError: CUPTI cannot trace."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to measure: its plan and operands, and the call that launches it."""

    name: str  # key in a calibration file
    words: str  # description
    call: str  # name of the library function that launches it
    plan: Table
    operands: Table


class LaunchFloors:
    """The floors of launches of an empty kernel `null` and of `gemm`, with one context (`ContextWord`).

    absent: gets the name of each floor that cannot be measured, and the reason.
    """

    def __init__(self, gpu: Gpu, context: Table, null: Kernel, gemm: Kernel, absent: dict[str, str]) -> None:
        self._gpu, self._context, self._null, self._gemm = gpu, context, null, gemm
        self._kernels, self._absent = (null, gemm), absent
        self._found: dict[str, dict[str, Stage]] = {}
        self._synchronize = gpu.address("cuStreamSynchronize")
        # A context whose functions do nothing. Launches in it measure the cost of the launch loop alone.
        self._hollow = context.copy()
        self._hollow[[ContextWord.FUNCTION, ContextWord.LAUNCH_FUNCTION]] = empty_function()

    def measure(self, repeats: int) -> Iterator[Measured]:
        """Measure each floor. Floors by CUPTI come last, since the driver may stay slower after tracing."""
        for kernel in self._kernels:  # load the kernels and the compiled loops
            self._burst(self._context, kernel)
            self._lone(kernel, CALLS)
        burst = f"{CALLS} of them into an idle queue, host time of each"
        yield self._of("null_launch_host_us", f"{self._null.call}, {self._null.words}: {burst}", repeats, self._null_us)
        yield from self._lone_floors(repeats)
        yield self._of("lt_launch_host_us", f"{self._gemm.call}, {self._gemm.words}: {burst}", repeats, self._gemm_us)
        yield from self._graphs(repeats, burst)
        how = f"({QUEUED + 1} launches - 1 launch) / {QUEUED} by events, behind a kernel that holds the queue"
        yield self._of("kernel_gap_us", f"{self._null.words}, its time and the gap: {how}", repeats, self._queued_us)
        record = partial(self._calls_us, "cuEventRecord", self._gpu.event())
        yield self._of("event_record_host_us", f"cuEventRecord: {burst}", repeats, record)
        self._found = {kernel.name: self._untraced_stages(kernel) for kernel in self._kernels}
        yield from self._traced_floors(repeats, burst)

    def _of(self, name: str, how: str, repeats: int, sample: Callable[[], float]) -> Measured:
        sample()  # warm-up
        return Measured(name, "us", [sample() for _ in range(repeats)], how)

    def _null_us(self) -> float:
        return self._burst(self._context, self._null)

    def _gemm_us(self) -> float:
        return self._burst(self._context, self._gemm)

    def _burst(self, context: Table, kernel: Kernel, count: int = CALLS) -> float:
        """Return the mean host us per launch, in a burst of `count` launches into an idle queue."""
        self._gpu.synchronize()
        spent_ns, status = launch_burst(context, kernel.plan, kernel.operands, count)
        self._gpu.check(status)
        self._gpu.synchronize()
        return float(spent_ns) / count / 1e3

    def _calls_us(self, function: str, handle: int) -> float:
        """Return the mean host us per call, in a burst of a driver function that takes a handle and the stream."""
        self._gpu.synchronize()
        spent_ns = self._call(function, handle, CALLS)
        self._gpu.synchronize()
        return spent_ns / CALLS / 1e3

    def _call(self, function: str, handle: int, count: int = 1) -> int:
        """Return the total ns of `count` calls. RunError: a call failed."""
        arguments = (np.int64(handle), np.int64(self._context[ContextWord.STREAM]))
        spent_ns, status = call_burst(np.int64(self._gpu.address(function)), arguments, count)
        if status:
            raise RunError(f"{function} failed with CUresult {status}")
        return int(spent_ns)

    def _lone(self, kernel: Kernel, count: int) -> Table:
        """Make `count` launches with a wait after each; return their times, [count, LaunchTime]."""
        times = np.zeros((count, len(LaunchTime)), np.int64)
        self._gpu.synchronize()
        self._gpu.check(lone_launches(self._context, kernel.plan, kernel.operands, np.int64(self._synchronize), times))
        return times

    def _lone_floors(self, repeats: int) -> Iterator[Measured]:
        lone = [self._lone(self._null, LONE) for _ in range(repeats)]
        for percent in (50, 99):
            each = [
                float(np.percentile(times[:, LaunchTime.KNOWN_NS] - times[:, LaunchTime.ENTERED_NS], percent)) / 1e3
                for times in lone
            ]
            how = f"launch and cuStreamSynchronize, {self._null.words}, {LONE:,} in turn: percentile {percent}"
            yield Measured(f"null_launch_sync_p{percent}_us", "us", each, how)

    def _graphs(self, repeats: int, burst: str) -> Iterator[Measured]:
        one, many = (self._gpu.graph(partial(self._submit, self._null, count)) for count in (1, NODES))
        replay = partial(self._calls_us, "cuGraphLaunch", one)
        yield self._of("graph_replay_host_us", f"cuGraphLaunch of a graph of one null kernel: {burst}", repeats, replay)

        def node_us() -> float:
            spent_us = [self._gpu.elapsed_us(partial(self._replay, graph)) for graph in (many, one)]
            return (spent_us[0] - spent_us[1]) / (NODES - 1)

        how = f"(replay of {NODES:,} null kernels in a row - of 1) / {NODES - 1:,} by events, behind a held queue"
        yield self._of("graph_node_gpu_us", how, repeats, node_us)

    def _submit(self, kernel: Kernel, count: int) -> None:
        _, status = launch_burst(self._context, kernel.plan, kernel.operands, count)
        self._gpu.check(status)

    def _replay(self, graph: int) -> None:
        self._call("cuGraphLaunch", graph)

    def _queued_us(self) -> float:
        many, one = (self._gpu.elapsed_us(partial(self._submit, self._null, count)) for count in (QUEUED + 1, 1))
        return (many - one) / QUEUED

    def _traced_floors(self, repeats: int, burst: str) -> Iterator[Measured]:
        """Measure the floors and stages that need CUPTI, or add them to `absent`."""
        spent_us: list[float] = []

        def bursts() -> None:
            spent_us.extend([self._null_us() for _ in range(repeats + 1)])

        try:
            parts = {kernel.name: [self._parts(kernel) for _ in range(repeats)] for kernel in self._kernels}
            self._gpu.traced(bursts, held=False)
            for kernel in self._kernels:
                self._found[kernel.name] |= self._traced_stages(kernel, parts[kernel.name])
        except DeviceError as error:
            self._absent.update(dict.fromkeys(TRACED_FLOORS, str(error)))
            return
        how = f"CUPTI, {self._null.words}, {TRACED} launches into an idle queue, median"
        each = parts[self._null.name]
        for name, part, what in (
            ("launch_delay_us", "launch_delay", "return of the driver's call to start of the kernel"),
            ("null_kernel_us", "kernel", "start to end of the kernel"),
        ):
            yield Measured(name, "us", [float(np.median(one[part])) / 1e3 for one in each], f"{what}: {how}")
        kinds = "with CUPTI's records of kernels, copies, runtime and driver calls"
        yield Measured("cupti_launch_host_us", "us", spent_us[1:], f"{self._null.call} {kinds}: {burst}")

    def _parts(self, kernel: Kernel) -> Parts:
        """Return the ns of the stages that need CUPTI, by name, for TRACED launches with a wait after each."""
        made: list[Table] = []
        activity = self._gpu.traced(lambda: made.append(self._lone(kernel, TRACED)), held=False)
        calls = activity.calls[:, [CallColumn.START_NS, CallColumn.END_NS]]
        parts = traced_stages(made[0], calls, activity.kernel_times())
        if not len(parts["kernel"]):
            raise DeviceError(f"CUPTI saw none of {TRACED} launches: is another profiler attached?")
        return parts

    def stages(self) -> dict[str, dict[str, Stage]]:
        """Return the stages of a launch of each kernel. Call `measure` first."""
        return self._found

    def _untraced_stages(self, kernel: Kernel) -> dict[str, Stage]:
        self._burst(self._hollow, kernel)
        hollow_ns = [1e3 * self._burst(self._hollow, kernel) for _ in range(BURSTS)]
        self._lone(kernel, CALLS)
        lone = self._lone(kernel, LONE)
        call_ns = lone[:, LaunchTime.RETURNED_NS] - lone[:, LaunchTime.ENTERED_NS] - np.median(hollow_ns)
        loop = f"{kernel.words}: the launch loop with a call of nothing; mean of {CALLS}, over {BURSTS} bursts"
        how = f"{LONE:,} launches, each waited for; one reading of the clock, about 25 ns, included"
        return {
            "arguments": stage(hollow_ns, loop),
            "call": stage(call_ns, f"{kernel.call}, {how}"),
            "whole": stage(
                lone[:, LaunchTime.KNOWN_NS] - lone[:, LaunchTime.ENTERED_NS], f"launch and cuStreamSynchronize, {how}"
            ),
        }

    def _traced_stages(self, kernel: Kernel, repeats: Sequence[Parts]) -> dict[str, Stage]:
        parts = {name: np.concatenate([each[name] for each in repeats]) for name in repeats[0]}
        how = f"CUPTI, {len(parts['kernel']):,} launches, each waited for"
        queued = self._gpu.traced(partial(self._submit, kernel, QUEUED), held=True)
        gaps = gaps_ns(queued.kernel_times())[1:]  # the first gap follows the kernel that held the queue
        return {
            "driver": stage(parts["driver"], f"{how}: the driver's call, which tracing lengthens"),
            "launch_delay": stage(parts["launch_delay"], f"{how}: that call's return to the kernel's start"),
            "kernel": stage(parts["kernel"], f"{how}: start to end"),
            "completion": stage(parts["completion"], f"{how}: the kernel's end to the return of cuStreamSynchronize"),
            "gap": stage(gaps, f"CUPTI, {QUEUED} launches behind a held queue: a kernel's end to the next one's start"),
        }
