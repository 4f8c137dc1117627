"""Reported cases of launch calls and kernels that are hard to pair: merged ranks, missing and repeated ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.results.kineto_events import Event, call, kernel, written
from support.results.trace_stats import delay_us, stats

from launchopt.analysis.profiles.launch_pairs import pair
from launchopt.traces.kineto import read_kineto
from runner.profiles.trace_screen import notes


def rank(process: int, device: int, start: int, delays: list[int], **gpu: Any) -> list[Event]:
    """Launches of one process every 100 us, with these delays, and correlation ids from 1."""
    events = []
    for at, delay in enumerate(delays):
        called = start + 100 * at
        events += [call(called, 5, at + 1, pid=process), kernel(called + 5 + delay, 20, at + 1, device=device, **gpu)]
    return events


def delays_by_place(folder: Path, events: list[Event]) -> list[int]:
    """Delay of each kernel, in the order of `events`; us."""
    pairs = pair(read_kineto(written(folder, events)))
    order = pairs.gpu["place"].argsort()
    ns = pairs.gpu["start_ns"] - pairs.calls["end_ns"][pairs.call_of]
    return [int(each) // 1000 for each in ns[order]]


@pytest.mark.parametrize("devices", [(0, 1), (1, 0)])
@pytest.mark.parametrize("order", ["a rank after the other", "calls first", "kernels before calls", "by time"])
def test_merged_ranks_are_paired_in_whatever_order_they_were_merged(
    tmp_path: Path, devices: tuple[int, int], order: str
) -> None:
    first, second = [5, 95, 7, 60], [23, 5, 80, 9]
    start = 2
    if order == "by time":  # the second rank's kernels begin before the first rank's calls
        start, second = -20, [1, 2, 3, 4]
    events = rank(100, devices[0], 0, first) + rank(200, devices[1], start, second)
    wanted = {devices[0]: first, devices[1]: second}
    if order == "kernels before calls":
        events = events[:8][::-1] + events[8:][::-1]
    if order == "calls first":
        events = sorted(events[:8], key=lambda event: event["cat"]) + sorted(events[8:], key=lambda event: event["cat"])
    if order == "by time":
        events.sort(key=lambda event: event["ts"])
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert delays_by_place(tmp_path, events) == [
        wanted[event["pid"]][event["args"]["correlation"] - 1] for event in kernels
    ]


def test_ranks_of_two_hosts_that_share_a_gpu_number_are_paired_by_their_place(tmp_path: Path) -> None:
    first, second = [5, 95, 7], [23, 5, 80]
    assert delays_by_place(tmp_path, rank(100, 0, 0, first) + rank(200, 0, 2, second)) == first + second


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)])
def test_ranks_of_two_hosts_that_share_a_process_number_are_paired_in_order(
    tmp_path: Path, devices: tuple[int, int]
) -> None:
    first, second = [5, 95, 7], [23, 5, 80]
    events = rank(100, devices[0], 0, first) + rank(100, devices[1], 2, second)
    assert delays_by_place(tmp_path, events) == first + second
    found = stats(tmp_path, *events)
    assert (found.launch_calls, found.doubled_calls, found.launch_calls_without_kernel) == (6, 0, 0)


def test_a_process_with_two_gpus_keeps_both(tmp_path: Path) -> None:
    events = [*rank(100, 0, 0, [5, 5]), call(500, 5, 3, pid=100), kernel(511, 1, 3, device=1)]
    assert delays_by_place(tmp_path, events) == [5, 5, 6]


@pytest.mark.parametrize("name", ["cudaPeekAtLastError", "cudaEventQuery", "cudaGetDevice", "cuStreamSynchronize"])
def test_a_call_that_cannot_launch_is_never_paired(tmp_path: Path, name: str) -> None:
    found = stats(tmp_path, call(0, 2, 1), call(4, 1, 1, name, tid=2), kernel(5, 2, 1))
    assert (found.launch_calls_by_name, delay_us(found)) == ({"cudaLaunchKernel": 1}, (1, 3))


def test_an_external_id_of_several_launches_is_paired_in_order(tmp_path: Path) -> None:
    def external(event: Event) -> Event:
        return {**event, "args": {"External id": 24, "stream": 0, "device": 0}}

    calls = [external(call(at, 2, None, "hipLaunchKernel")) for at in (0, 10)]
    kernels = [external(kernel(at, 5, None)) for at in (20, 30)]
    found = stats(tmp_path, *calls, *kernels)
    assert (delay_us(found), found.launch_calls_without_kernel) == ((2, 18 + 18), 0)


def test_a_correlation_id_counts_before_an_external_id(tmp_path: Path) -> None:
    events = [call(0, 2, 1), kernel(5, 1, 1), call(10, 2, 2), kernel(20, 1, 2)]
    for event in events:
        event["args"]["External id"] = 9
    assert delay_us(stats(tmp_path, *events)) == (2, 3 + 8)


def test_a_trace_without_ids_names_what_is_missing(tmp_path: Path) -> None:
    assert list(notes(stats(tmp_path, call(0, 2, None), kernel(5, 1, None)))) == [
        "no launch call and kernel have a correlation id or External id in common: no launch delay is known",
        "launch calls and GPU events without correlation id or External id, in no pair: 2",
    ]
