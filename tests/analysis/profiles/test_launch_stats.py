"""Launch statistics: the published traces' figures, and cases by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.results.kineto_events import TRACES, Event, call, kernel, written

from launchopt.analysis.profiles.gpu_time import DeviceTime
from launchopt.analysis.profiles.launch_pairs import pair
from launchopt.analysis.profiles.launch_rows import LAUNCH_KERNELS, launch_rows
from launchopt.analysis.profiles.launch_stats import LaunchStats, Share, Spread, launch_stats
from launchopt.traces.kineto import read_kineto

Stats = Callable[..., LaunchStats]


@pytest.fixture
def stats(tmp_path: Path) -> Stats:
    """Statistics of some events."""
    return lambda *events: launch_stats(read_kineto(written(tmp_path, events)))


def published(name: str) -> LaunchStats:
    path = TRACES / f"{name}.kineto.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name}: download it from its source")
    return launch_stats(read_kineto(path))


def test_h100_bert_small() -> None:
    found = published("h100_bert_small")
    assert found.launch_calls_by_name == {"cudaLaunchKernel": 34, "cuLaunchKernel": 22, "cudaLaunchKernelExC": 4}
    assert (found.launch_calls, found.kernels, found.kernels_launched) == (60, 60, 60)
    assert (found.gpu_events, found.memory_calls, found.memory_calls_without_gpu_event) == (61, 23, 22)
    assert (found.host.sum_us, found.host.p50_us) == (324.734, 4.925)
    # Published from microseconds as doubles, which at this trace's times are 0.24 ns apart: 97.673, 422.407, and
    # 0.309438 / 3.598387 ms. In whole nanoseconds, as the trace has them:
    assert found.launch_delay.sum_us == pytest.approx(97.673, abs=0.0011)
    assert found.launch_delay.p50_us == pytest.approx(1.666, abs=0.00051)
    assert found.start_to_start.sum_us == pytest.approx(422.407, abs=0.0011)
    assert (found.launch_delay.sum_us, found.launch_delay.p50_us, found.start_to_start.sum_us) == (
        97.672,
        1.6665,
        422.406,
    )
    assert found.launch_delays_clipped == 0
    assert found.gpu_time is not None
    assert (found.gpu_time.busy_ms, found.gpu_time.idle_ms) == (0.309437, 3.598388)
    assert [(queue.stream, queue.largest) for queue in found.queues] == [(7, 1)]


def test_sampled_rank0() -> None:
    found = published("sampled_rank0")
    assert (found.launch_calls, found.kernels, found.kernels_launched) == (1_154, 1_154, 1_154)
    assert (found.gpu_events, found.memory_calls, found.memory_calls_without_gpu_event) == (1_204, 50, 0)
    assert found.host.sum_us == 9_475
    assert (found.launch_delay.sum_us, found.launch_delays_clipped) == (19_174_542, 79)
    assert found.launch_delay_unclipped_sum_us == 19_174_413
    assert found.start_to_start.sum_us == 19_183_888
    assert found.gpu_time is not None
    assert (found.gpu_time.busy_ms, found.gpu_time.idle_ms) == (547.656, 675.191)
    assert (found.queues[0].stream, found.queues[0].largest) == (7, 80)


def test_idle_is_split_by_what_the_host_had_done(stats: Stats) -> None:
    found = stats(
        *(call(0, 2, 1), kernel(3, 2, 1)),  # idle up to 3: before the first event, and so in no figure
        *(call(8, 4, 2), kernel(15, 5, 2)),  # 5 to 8 nothing launched, 8 to 12 in a call, 12 to 15 launched
        *(kernel(24, 1, 99),),  # without a call: 20 to 24 counts as nothing launched
    )
    assert found.gpu_time == DeviceTime(None, None, 0.022, 0.008, 0.014, 0.007, 0.004, 0.003)
    assert found.kernels_without_call == 1


def test_a_wait_behind_other_work_is_no_idle_time(stats: Stats) -> None:
    found = stats(call(0, 1, 1), kernel(2, 10, 1), call(2, 1, 2), kernel(12, 3, 2))
    assert found.gpu_time is not None
    assert (found.gpu_time.busy_ms, found.gpu_time.idle_ms) == (0.013, 0.0)
    assert (found.launch_delay.sum_us, found.queues[0].largest) == (1 + 9, 1)


def test_a_graph_launch_is_one_call_of_many_kernels(stats: Stats) -> None:
    nodes = [kernel(20 + 5 * node, 4, 1, stream=7 + node % 2) for node in range(4)]
    copy = kernel(50, 1, 1, cat="gpu_memcpy")
    found = stats(call(0, 10, 1, "cudaGraphLaunch"), *nodes, copy)
    assert (found.launch_calls, found.kernels, found.kernels_per_call) == (1, 4, 4.0)
    assert found.launch_delay == Spread(1, 10.0, 10.0, 10.0, 10.0, 10.0)
    assert found.start_to_start.sum_us == 20
    assert found.shorter_than_call == Share(4, 1.0)
    assert [(queue.stream, queue.calls, queue.events, queue.largest) for queue in found.queues] == [
        (7, 1, 3, 1),
        (8, 1, 2, 1),
    ]


def test_a_kernel_that_began_during_its_call_is_clipped_and_counted(stats: Stats) -> None:
    found = stats(call(0, 10, 1), kernel(4, 3, 1), call(20, 2, 2), kernel(25, 1, 2))
    assert (found.launch_delay.sum_us, found.launch_delay_unclipped_sum_us, found.launch_delays_clipped) == (3, -3, 1)
    assert found.start_to_start.sum_us == 4 + 5


def test_orphans_on_both_sides(stats: Stats) -> None:
    found = stats(call(0, 10, 1), kernel(4, 3, 2), kernel(9, 3, 0), call(9, 1, 0), kernel(9, 1, None), call(9, 1, None))
    assert (found.launch_calls, found.launch_calls_without_kernel) == (3, 3)
    assert (found.kernels, found.kernels_launched, found.kernels_without_call) == (3, 0, 3)
    assert found.launch_delay == Spread(0, 0.0, None, None, None, None)
    assert (found.queues, found.kernels_per_call) == ((), 0.0)


def test_what_counts_as_a_launch_call(stats: Stats) -> None:
    launches = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cuGraphLaunch", "cudaLaunchKernel_ptsz"]
    launches += ["cudaLaunchCooperativeKernel", "hipExtModuleLaunchKernel", "cuLaunchGridAsync", "cudaLaunch"]
    memory = ["cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cudaMemset2DAsync", "cuMemsetD8Async", "hipMemcpy"]
    others = ["cudaLaunchHostFunc", "cudaGraphInstantiate", "cudaMalloc", "cudaMemPrefetchAsync", "cuKernelGetFunction"]
    found = stats(*(call(at, 1, at + 1, name) for at, name in enumerate(launches + memory + others)))
    assert found.launch_calls_by_name == dict.fromkeys(launches, 1)
    assert found.memory_calls_by_name == dict.fromkeys(memory, 1)
    assert found.memory_calls_without_gpu_event == len(memory)


def test_any_call_that_started_a_kernel_is_a_launch_call(stats: Stats) -> None:
    found = stats(call(0, 1, 1, "cudaMemsetAsync"), kernel(2, 1, 1), call(3, 1, 2, "cudaMemsetAsync"))
    assert (found.launch_calls_by_name, found.memory_calls) == ({"cudaMemsetAsync": 1}, 1)


def test_records_of_one_call(stats: Stats) -> None:
    inner = call(2, 3, 1, "cuLaunchKernel", cat="cuda_driver")
    found = stats(inner, call(0, 10, 1), kernel(12, 1, 1))
    assert (found.launch_calls_by_name, found.doubled_calls) == ({"cudaLaunchKernel": 1}, 1)
    assert found.host.sum_us == 10
    # Another thread's or process's call of the same id is another call, and so is a later one of the same thread.
    found = stats(call(0, 10, 1), call(1, 5, 1, tid=2), call(2, 5, 1, pid=2), call(40, 1, 1), kernel(30, 1, 1))
    assert (found.launch_calls, found.doubled_calls, found.start_to_start.sum_us) == (4, 0, 28)


def test_gpus_have_their_own_time(stats: Stats) -> None:
    found = stats(kernel(0, 5, 1, device=0), kernel(3, 4, 2, device=1), kernel(10, 5, 3, device=0))
    assert [(time.device, time.busy_ms, time.idle_ms) for time in found.gpu_time_by_device] == [
        (0, 0.010, 0.005),
        (1, 0.004, 0.0),
    ]
    assert found.gpu_time is not None
    assert (found.gpu_time.busy_ms, found.gpu_time.idle_ms) == (0.014, 0.005)


def test_processes_that_each_see_a_gpu_0_have_one_each(stats: Stats) -> None:
    """Process 1 runs 5 us from 10 and from 30, process 2 from 12 and from 32. No call started the last event."""
    events = [
        event
        for number, (at, process) in enumerate(((10, 1), (12, 2), (30, 1), (32, 2)), 1)
        for event in (call(at - 5, 1, number, pid=process), kernel(at, 5, number, stream=process))
    ]
    found = stats(*events, kernel(40, 5, 99, stream=2))
    of_each = [(time.device, time.process, time.busy_ms, time.idle_ms) for time in found.gpu_time_by_device]
    assert of_each == [(0, "1", 0.010, 0.015), (0, "2", 0.015, 0.018)]


def test_short_kernels_are_those_below_a_limit(stats: Stats) -> None:
    found = stats(*(kernel(20 * at, length, 0) for at, length in enumerate(("0.999", 1, "1.999", 2, 5, 10))))
    assert [share.count for share in found.short_kernels.values()] == [1, 3, 4, 5]
    assert found.short_kernels["under_2_us"] == Share(3, 0.5)


def test_nothing_at_all(stats: Stats) -> None:
    found = stats()
    assert (found.events, found.launch_calls, found.gpu_time, found.shorter_than_call) == (0, 0, None, Share(0, None))


def test_rows_of_pairs(tmp_path: Path) -> None:
    events: list[Event] = [call(10, 5, 1, "cudaGraphLaunch"), kernel(20, 1, 1), kernel(12, 2, 1, name="first")]
    events += [call(30, 1, 2, "cudaMemcpyAsync"), kernel(31, 1, 2, cat="gpu_memcpy"), kernel(40, 1, 9)]
    trace = read_kineto(written(tmp_path, events))
    table = launch_rows("a.json", trace, pair(trace))
    assert table.schema.equals(LAUNCH_KERNELS)
    assert all(field.metadata[b"doc"] for field in LAUNCH_KERNELS)
    shared = {"file": "a.json", "call": 0, "correlation": 1, "process": "1", "thread": "1", "api": "cudaGraphLaunch"}
    shared |= {"call_start_ns": 0, "call_end_ns": 5_000, "is_graph": False, "device": 0}
    shared |= {"context": -1, "stream": 7}
    first = {"kernel": "first", "kernel_in_call": 0, "kernel_start_ns": 2_000, "kernel_end_ns": 4_000}
    second = {"kernel": "gemm", "kernel_in_call": 1, "kernel_start_ns": 10_000, "kernel_end_ns": 11_000}
    assert table.to_pylist() == [
        {**shared, **first, "launch_delay_ns": 0, "start_to_start_ns": 2_000},
        {**shared, **second, "launch_delay_ns": 5_000, "start_to_start_ns": 10_000},
    ]
