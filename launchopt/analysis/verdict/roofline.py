"""Predicted time of a line: T = max(bytes / BW, FLOPs / peak) + launches x cost, beside the measured one.

In: a `strategies.StrategyLine` (a line of untraced repeats, with its traced twin if there is one), and the calibration
of its device, if any. Out: a `Prediction`. Pure: reads no file, prints nothing.

    BW         the larger of the two ceilings that the run measured itself, read and copy (a GEMV mostly reads)
    bytes      bytes from memory. Commands of one batch that belong to different requests share one read of a weight.
               Inputs of a hot cache count once per run. Packing adds one read and one write of the packed bytes
    launches   recorded launches; a call that only packs is part of the launch it packs for
    cost       us per launch. With a calibration: the host's time in the kind of call that the mode makes, or the gap
               between kernels on the GPU if that is longer. Without one: the run's own first calls, made before the
               launch queue could fill. Unknown on the CPU without a calibration, since a call there is also the work

The sum assumes that nothing overlaps; launches that are queued ahead hide behind kernels. The headroom is a bound: no
launches, full rates, and every weight read once for all requests. Bytes and FLOPs are those of the whole run. Where
prompts are bound by FLOPs and tokens by bytes, the true floor is higher, up to the sum of both.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.analysis.stack_choices import launches_cublaslt, launches_own_kernels
from launchopt.analysis.submits import submits
from launchopt.analysis.tables.bandwidth import bytes_share
from launchopt.analysis.tables.rows import Line
from launchopt.analysis.tables.strategies import StrategyLine
from launchopt.analysis.verdict.calibration import Calibration
from launchopt.recording.impossible import CEILINGS, Limits, above_ceiling
from launchopt.recording.results import Row
from launchopt.timing.activity import Ceilings

_MIXED = frozenset(
    {"layer", "linear_epilogue", "elementwise_chain"}
)  # workloads with other ops than GEMMs, for files without `gemms`


@dataclass(frozen=True, slots=True)
class Work:
    """Demand of the stream on the device, in ms at the ceilings that the run measured. None: no ceiling, or no rate."""

    bytes_ms: float | None  # bytes from memory, with the batches of the run
    all_bytes_ms: float | None  # every command reads and writes all of its operands
    least_bytes_ms: float | None  # minimum bytes: each weight is read once for all requests
    packing_ms: float | None  # bytes that the mode copied to and from scratch memory, read and written
    flops_ms: float | None
    shared_by: float  # commands of a batch that may read one weight together
    bandwidth: str  # the ceiling: `4,448 GB/s (read)`
    is_cached: bool  # True: inputs stay in a cache, so that memory bandwidth is no limit

    @property
    def moved_ms(self) -> float | None:
        """Time of the bytes, including those that packing copies."""
        return None if self.bytes_ms is None else self.bytes_ms + (self.packing_ms or 0.0)

    @property
    def floor_ms(self) -> float | None:
        """Least time of the work on this device: no launch, no gap, no packing, full rates.

        None for inputs in a cache with hardly any FLOPs: the bandwidth of a cache was not measured.
        """
        if self.is_cached and (self.flops_ms or 0.0) < (self.all_bytes_ms or 0.0):
            return None
        return _largest(self.least_bytes_ms, self.flops_ms)

    @property
    def is_compute(self) -> bool:
        """Whether the FLOPs take longer than the bytes."""
        return self.flops_ms is not None and (self.bytes_ms is None or self.flops_ms > self.bytes_ms)


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Cost of the launches: `us` each on the host or the GPU, whichever is slower, and `nodes_ms` of graph nodes."""

    launches: float
    us: float
    nodes_ms: float
    source: str  # source of the cost, in words

    @property
    def total_ms(self) -> float:
        """Cost of all launches."""
        return self.launches * self.us / 1e3 + self.nodes_ms


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted and measured time. `total_ms` is None if a part is unknown."""

    measured_ms: float | None
    work: Work
    launches: LaunchCost | None

    @property
    def total_ms(self) -> float | None:
        """max(bytes / BW, FLOPs / peak) + launches x cost."""
        work_ms = _largest(self.work.moved_ms, self.work.flops_ms)
        return None if work_ms is None or self.launches is None else work_ms + self.launches.total_ms

    @property
    def ratio(self) -> float | None:
        """Predicted over measured time."""
        return self.total_ms / self.measured_ms if self.total_ms is not None and self.measured_ms else None

    @property
    def headroom(self) -> float | None:
        """Speed-up if all launches vanished and every byte and FLOP ran at its ceiling."""
        return self.measured_ms / self.work.floor_ms if self.measured_ms and self.work.floor_ms else None


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def predict(strategy: StrategyLine, calibration: Calibration | None = None) -> Prediction:
    """Return the predicted and the measured time of `strategy`."""
    line = strategy.line
    return Prediction(line.median("wall_ms"), work(line), launch_cost(strategy, calibration))


def work(line: Line) -> Work:
    """Return the bytes and FLOPs of a line at the ceilings of its run."""
    ceilings = {"read": line.median("read_gb_per_s"), "copy": line.median("copy_gb_per_s")}
    rate, name = max(((rate, name) for name, rate in ceilings.items() if rate), default=(None, "copy"))
    all_bytes, footprint, packed = (line.median(c) for c in ("bytes_moved", "input_footprint_bytes", "packed_bytes"))
    shared_by, is_cached = sharing(line), line["cache"] == "hot"
    most = (footprint if is_cached and footprint else None, all_bytes)

    def once(shared: float) -> float | None:
        moved = None if all_bytes is None else all_bytes * bytes_share(line.rows[0], shared)
        return None if moved is None else min(moved, *(each for each in most if each is not None))

    def ms(moved: float | None) -> float | None:
        return None if moved is None or rate is None else moved / rate / 1e6

    peak, tflops = line.median("peak_tflops"), line.median_ratio("achieved_tflops", "peak_tflops")
    span_ms = line.median("wall_ms") if line.median("gpu_span_ms") is None else line.median("gpu_span_ms")
    flops_ms = tflops * span_ms if peak and tflops is not None and span_ms is not None else None
    bandwidth = "no measured bandwidth" if rate is None else f"{rate:,.0f} GB/s ({name})"
    # Packing copies: one more read and one more write of the packed bytes.
    packing_ms = ms(2 * packed if packed else None)
    moved = (ms(once(shared_by)), ms(all_bytes), ms(once(_requests(line))))
    return Work(*moved, packing_ms, flops_ms, shared_by, bandwidth, is_cached)


def _requests(line: Line) -> float:
    """Return the number of requests that share weights; 1 if every command has a weight of its own."""
    return 1.0 if line.median("tokens") is None else max(1.0, float(line["requests"] or 1))


def sharing(line: Line) -> float:
    """Return how many commands of a batch share one read of a weight: the requests, at most the batch's size."""
    return max(1.0, min(_requests(line), line.median("batch_size_mean") or 1.0))


def recorded_launches(line: Line) -> float | None:
    """Return the number of launches, without calls that pack for them, and without posts to a resident kernel."""
    calls, timed = line.median("launch_calls"), line.median_of(submits)
    return calls if calls is None or timed is None else min(calls, timed)


def replays_graphs(line: Line) -> bool:
    """Return whether the line's launches replay captured graphs, whatever its mode is called."""
    return bool(line.median("graph_replays"))


def launch_cost(strategy: StrategyLine, calibration: Calibration | None) -> LaunchCost | None:
    """Return the cost from the device's calibration if it knows the mode's launches, else from the run itself."""
    line, launches = strategy.line, recorded_launches(strategy.line)
    if launches is None:
        return None
    if calibration is not None and is_of(calibration, line.rows[0]) and not _is_mixed(line.rows[0]):
        cost = _calibrated(strategy, launches, calibration)
        if cost is not None:
            return cost
    us = first_calls_us(line)
    return (
        None
        if us is None or line["device"] == "cpu"
        else LaunchCost(launches, us, 0.0, f"the run's own first calls, {us:.2f} us each")
    )


def _is_mixed(row: Row) -> bool:
    """Return whether the commands are not all GEMMs, so that launches differ in cost."""
    return bool(row["workload"] in _MIXED if row["gemms"] is None else row["gemms"] < row["commands"])


def first_calls_us(line: Line) -> float | None:
    """Return the host time of a launch call before the launch queue could fill; at most the mean."""
    known = [ns for ns in map(line.median, ("host_submit_burst_ns", "host_submit_ns_per_launch")) if ns is not None]
    return min(known) / 1e3 if known else None


def is_of(calibration: Calibration, row: Row) -> bool:
    """Return whether `calibration` was made on the device of `row`."""
    name, kind = calibration.device.get("name"), calibration.device.get("kind")
    return bool(name == row["gpu"]) if row["gpu"] is not None else kind == row["device"]


def _calibrated(strategy: StrategyLine, launches: float, calibration: Calibration) -> LaunchCost | None:
    line = strategy.line
    gap_us, made = calibration.value("kernel_gap_us") or 0.0, f"calibration of {calibration.made_utc}"
    if replays_graphs(line):
        host_us, node_us = calibration.value("graph_replay_host_us"), calibration.value("graph_node_gpu_us")
        if host_us is None:
            return None
        counted = strategy.kernels if strategy.kernels is not None and node_us is not None else None
        nodes_ms = 0.0 if counted is None or node_us is None else counted * node_us / 1e3
        left_out = "" if counted is not None else "; GPU time of nodes left out: not counted in a traced run"
        return LaunchCost(launches, host_us, nodes_ms, f"{made}: graph_replay_host_us {host_us:.2f}{left_out}")
    is_own = launches_own_kernels(line) or line["weights"] is not None  # cuBLASLt reads no quantised weights
    name = "null_launch_host_us" if is_own else "lt_launch_host_us" if launches_cublaslt(line) else None
    host_us = calibration.value(name) if name else None
    if name is None or host_us is None:
        return None
    us, what = max((host_us, name), (gap_us, "kernel_gap_us"))
    return LaunchCost(launches, us, 0.0, f"{made}: {what} {us:.2f}")


def impossible(row: Row) -> str | None:
    """Return why a rate of `row` is above a measured ceiling without an explanation; None if it is not."""
    ceilings = Ceilings(*(float(row[name] or 0.0) for name in CEILINGS))
    reason = row["above_ceiling"]
    explained = reason if reason is not None and "nothing explains it" not in reason else None
    why, is_error = above_ceiling(row, Limits(ceilings, row["device"], explained))
    return why if is_error else None
