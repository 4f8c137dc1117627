"""Launch statistics of random traces, worked out again the slow and obvious way."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.analysis.profiles.gpu_event_owners import gpus
from launchopt.analysis.profiles.launch_pairs import Pairs, pair
from launchopt.analysis.profiles.launch_stats import Share, Spread, StreamQueue, launch_stats
from launchopt.traces.events import CALL, GPU_EVENT, NONE, Format, Kind, Trace

NAMES = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaEventRecord", "p", "q")
CANNOT_START = 2
SMALL = st.integers(0, 30)
CALLS = st.lists(
    st.tuples(SMALL, SMALL, st.integers(-1, 5), st.integers(3, 4), st.integers(3, 4), st.integers(0, 2)), max_size=12
)
KINDS = st.sampled_from([Kind.KERNEL, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.GRAPH])


def gpu_rows(process: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[int, ...]]]:
    device, context = st.integers(0, 1), st.integers(-1, 0)
    one = st.tuples(SMALL, SMALL, st.integers(-1, 5), st.integers(7, 8), process, device, context, KINDS)
    return st.lists(one, max_size=12)


GPU = gpu_rows(st.just(NONE)) | gpu_rows(st.integers(3, 4)) | gpu_rows(st.integers(-1, 4))


def made(calls: Sequence[tuple[int, ...]], gpu: Sequence[tuple[int, ...]]) -> Trace:
    called = [
        (start, start + length, correlation, at, *rest) for at, (start, length, correlation, *rest) in enumerate(calls)
    ]
    ran = []
    for at, (start, length, correlation, stream, process, device, context, kind) in enumerate(gpu, len(calls)):
        ran.append(
            (start, start + length, correlation, at, stream, process, NONE, device, context, 3, kind, NONE, NONE)
        )
    return Trace(Format.JSON, np.array(called, CALL), np.array(ran, GPU_EVENT), NAMES, len(calls) + len(gpu), 0)


def dicts(rows: Any) -> list[dict[str, int]]:
    return [dict(zip(rows.dtype.names, row, strict=True)) for row in rows.tolist()]


def merged(calls: list[dict[str, int]]) -> list[dict[str, int]]:
    """Calls, each once: records of one thread and id that overlap, unless two of one name stand beside each other."""
    found: list[dict[str, int]] = []
    last: dict[
        tuple[int, ...], tuple[dict[str, int], int]
    ] = {}  # by thread and id: the call, and its last record's name
    for one in sorted(calls, key=lambda each: (each["start_ns"], -each["end_ns"])):
        key = one["process"], one["thread"], one["correlation"]
        call, name = last.get(key, (None, NONE)) if one["correlation"] > 0 else (None, NONE)
        covered = max((each["end_ns"] for each in found if call and same_call(each, call)), default=NONE)
        is_beside = one["end_ns"] > covered and one["name"] == name
        if call is None or one["start_ns"] > covered or is_beside:
            call = dict(one)
            found.append(call)
        else:
            call["end_ns"] = max(call["end_ns"], one["end_ns"])
        last[key] = call, one["name"]
    return found


def same_call(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(one[key] == other[key] for key in ("process", "thread", "correlation"))


def overlong_calls(calls: list[dict[str, int]]) -> list[dict[str, int]]:
    """Launch and memory calls that end after a later one of their thread."""
    launching = sorted((each for each in calls if each["name"] < CANNOT_START), key=lambda each: each["end_ns"])
    launching.sort(key=lambda each: each["start_ns"])
    return [
        one
        for at, one in enumerate(launching)
        if any(
            other["start_ns"] < other["end_ns"] < one["end_ns"]
            and all(one[key] == other[key] for key in ("process", "thread"))
            for other in launching[at + 1 :]
        )
    ]


def kept(gpu: list[dict[str, int]]) -> list[dict[str, int]]:
    """The events by start, each once."""
    found: list[dict[str, int]] = []
    for one in gpu:
        if not any({**one, "place": 0} == {**other, "place": 0} for other in found):
            found.append(one)
    return sorted(found, key=lambda event: (event["start_ns"], event["place"]))


def call_of(event: dict[str, int], calls: list[dict[str, int]], processes: set[int]) -> int:
    """Position of the event's call among those of `processes`, or NONE."""
    fitting = [
        at
        for at, each in enumerate(calls)
        if each["correlation"] == event["correlation"] > 0
        and each["process"] in processes
        and each["name"] != CANNOT_START
    ]
    before = [at for at in fitting if calls[at]["start_ns"] <= event["start_ns"]]
    if before:
        latest = max(calls[at]["start_ns"] for at in before)
        return max(at for at in before if calls[at]["start_ns"] == latest)
    return min(fitting, key=lambda at: (calls[at]["start_ns"], at), default=NONE)


def with_calls(gpu: list[dict[str, int]], calls: list[dict[str, int]], process_of: dict[int, int]) -> list[int]:
    """Position of each event's call. `process_of`: by place, the process of events whose id two processes have."""
    found = []
    together: dict[tuple[int, int], list[int]] = {}
    for at, event in enumerate(gpu):
        having = {
            each["process"]
            for each in calls
            if each["correlation"] == event["correlation"] and each["name"] != CANNOT_START
        }
        owner = {event["process"]} if event["process"] != NONE else having
        if len(owner) > 1:
            owner = {process_of.get(event["place"], NONE)}
        found.append(call_of(event, calls, owner))
        if len(owner) == 1 and event["correlation"] > 0:
            together.setdefault((*owner, event["correlation"]), []).append(at)
    for (process, correlation), events in together.items():
        key = {"process": process, "correlation": correlation}
        own = [at for at, each in enumerate(calls) if key.items() <= each.items() and each["name"] != CANNOT_START]
        for by in ("start_ns", "place"):  # the last one counts
            pairs = list(
                zip(sorted(events, key=lambda at: gpu[at][by]), sorted(own, key=lambda at: calls[at][by]), strict=False)
            )
            is_right = all(calls[call]["start_ns"] <= gpu[event]["start_ns"] for event, call in pairs)
            if len(own) == len(events) > 1 and is_right:
                for event, call in pairs:
                    found[event] = call
    return found


def overlong_places(gpu: list[dict[str, int]], of: list[int]) -> set[int]:
    """Places of events that end after one that began later on their stream, with another call in between or its own."""
    judged = [each for each in zip(gpu, of, strict=True) if each[0]["kind"] != Kind.GRAPH]
    several = len({event["process"] for event, _ in judged if event["process"] != NONE}) > 1
    streams: dict[tuple[int, ...], list[tuple[dict[str, int], int]]] = {}
    for event, at in sorted(judged, key=lambda each: (each[0]["start_ns"], each[0]["end_ns"])):
        key = event["device"], event["context"], event["stream"], event["process"] if several else 0
        streams.setdefault(key, []).append((event, at))
    found = set()
    for events in streams.values():
        for first, (event, at) in enumerate(events):
            is_other = False
            for other, call in events[first + 1 :]:
                is_other |= call != at or call == NONE
                if is_other and other["start_ns"] < other["end_ns"] < event["end_ns"]:
                    found.add(event["place"])
    return found


def percentile(values: list[int], share: float) -> float:
    values, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def spread(values: list[int]) -> Spread:
    if not values:
        return Spread(0, 0.0, None, None, None, None)
    p50, p99 = percentile(values, 0.5) / 1e3, percentile(values, 0.99) / 1e3
    near = (pytest.approx(number) for number in (sum(values) / 1e3, p50, p99, min(values) / 1e3, max(values) / 1e3))
    return Spread(len(values), *near)


def idle_parts(here: list[tuple[dict[str, int], int]], calls: list[dict[str, int]]) -> Counter[str]:
    """Each ns of a GPU's window, as what it was. here: its events, each with the position of its call."""
    window = range(min(event["start_ns"] for event, _ in here), max(event["end_ns"] for event, _ in here))
    found: Counter[str] = Counter()
    for t in window:
        waiting = [calls[at] for event, at in here if at != NONE and calls[at]["start_ns"] <= t < event["start_ns"]]
        if any(event["start_ns"] <= t < event["end_ns"] for event, _ in here):
            found["busy"] += 1
        elif any(each["end_ns"] <= t for each in waiting):
            found["launched"] += 1
        else:
            found["in call" if waiting else "not launched"] += 1
    return found


def queues(gpu: list[dict[str, int]], calls: list[dict[str, int]], of: list[int]) -> list[StreamQueue]:
    streams: dict[tuple[int, int, int, int], dict[int, list[int]]] = {}
    for at, event in enumerate(gpu):
        if of[at] != NONE:
            key = calls[of[at]]["process"], event["device"], event["context"], event["stream"]
            streams.setdefault(key, {}).setdefault(of[at], []).append(event["start_ns"])
    found = []
    for (process, device, context, stream), begun in streams.items():
        waits = [(calls[at]["start_ns"], min(starts)) for at, starts in begun.items()]
        lengths = [sum(called <= t < first for called, first in waits) for t, _ in waits]
        events = sum(map(len, begun.values()))
        counts = len(waits), events, max(lengths), statistics.median(lengths)
        found.append(StreamQueue(NAMES[process], device, None if context == NONE else context, stream, *counts))
    return sorted(found, key=str)


@settings(max_examples=250, deadline=None)
@given(rows=st.tuples(CALLS, GPU))
def test_calls_and_pairs_are_those_of_the_obvious_way(rows: tuple[Any, Any]) -> None:
    trace = made(*rows)
    pairs = pair(trace)
    once = merged(dicts(trace.calls))
    too_long = overlong_calls(once)
    assert (pairs.doubled, pairs.overlong_calls) == (len(trace.calls) - len(once), len(too_long))
    assert sorted(map(str, dicts(pairs.calls))) == sorted(str(each) for each in once if each not in too_long)
    assert (np.diff(pairs.calls["start_ns"]) >= 0).all()
    assert (np.diff(pairs.gpu["start_ns"]) >= 0).all()
    calls, gpu = dicts(pairs.calls), kept(dicts(trace.gpu))
    assert pairs.repeated == len(trace.gpu) - len(gpu)
    of_place = dict(zip(pairs.gpu["place"].tolist(), pairs.call_of.tolist(), strict=True))
    process_of = {place: calls[at]["process"] for place, at in of_place.items() if at != NONE}
    of = with_calls(gpu, calls, process_of)
    if pairs.shared_ids and pairs.overlong:
        return  # nothing tells the process of an event that was left out
    overlong = overlong_places(owned(gpu, of, calls), of)
    wanted = [(event["place"], at) for event, at in zip(gpu, of, strict=True) if event["place"] not in overlong]
    assert (list(of_place.items()), pairs.overlong) == (wanted, len(overlong))


def owned(gpu: list[dict[str, int]], of: list[int], calls: list[dict[str, int]]) -> list[dict[str, int]]:
    """The events with the process of their call."""
    return [
        {**event, "process": event["process"] if at == NONE else calls[at]["process"]}
        for event, at in zip(gpu, of, strict=True)
    ]


def launch_calls_of(pairs: Pairs, of: list[int]) -> list[int]:
    started = {of[at] for at, event in enumerate(dicts(pairs.gpu)) if event["kind"] in (Kind.KERNEL, Kind.GRAPH)}
    return [at for at, each in enumerate(dicts(pairs.calls)) if each["name"] == 0 or at in started]


@settings(max_examples=250, deadline=None)
@given(rows=st.tuples(CALLS, GPU))
def test_statistics_are_those_of_the_obvious_way(rows: tuple[Any, Any]) -> None:
    trace = made(*rows)
    pairs = pair(trace)
    found = launch_stats(trace, pairs)
    gpu, calls, of = dicts(pairs.gpu), dicts(pairs.calls), pairs.call_of.tolist()
    launches = launch_calls_of(pairs, of)
    host = [each["end_ns"] - each["start_ns"] for each in calls]
    begun = {
        at: min(starts)
        for at in launches
        if (starts := [e["start_ns"] for e, o in zip(gpu, of, strict=True) if o == at and e["kind"] in (0, 3)])
    }
    delays = [start - calls[at]["end_ns"] for at, start in begun.items()]
    assert found.launch_calls == len(launches)
    assert found.launch_calls_by_name == Counter(NAMES[calls[at]["name"]] for at in launches)
    assert found.launch_calls_without_kernel == len(launches) - len(begun)
    assert found.host == spread([host[at] for at in launches])
    assert found.launch_delay == spread([max(0, delay) for delay in delays])
    assert found.launch_delays_clipped == sum(delay < 0 for delay in delays)
    assert found.launch_delay_unclipped_sum_us == pytest.approx(sum(delays) / 1e3)
    assert found.start_to_start == spread([start - calls[at]["start_ns"] for at, start in begun.items()])
    memory = [at for at, each in enumerate(calls) if each["name"] == 1 and at not in launches]
    assert (found.memory_calls, found.memory_calls_without_gpu_event) == (len(memory), len(set(memory) - set(of)))
    assert sorted(found.queues, key=str) == queues(gpu, calls, of)


@settings(max_examples=150, deadline=None)
@given(rows=st.tuples(CALLS, GPU))
def test_gpu_time_and_kernels_are_those_of_the_obvious_way(rows: tuple[Any, Any]) -> None:
    trace = made(*rows)
    pairs = pair(trace)
    found = launch_stats(trace, pairs)
    gpu, calls, of = dicts(pairs.gpu), dicts(pairs.calls), pairs.call_of.tolist()
    for one, time in zip(gpus(pairs.gpu), found.gpu_time_by_device, strict=True):
        assert (time.device, time.process) == (one.device, None if one.process == NONE else NAMES[one.process])
        here = [(gpu[at], of[at]) for at in np.flatnonzero(one.rows).tolist()]
        parts = idle_parts(here, calls)
        wanted = [parts.total(), parts["busy"], parts.total() - parts["busy"]]
        wanted += [parts["not launched"], parts["in call"], parts["launched"]]
        got = [time.window_ms, time.busy_ms, time.idle_ms, time.idle_not_launched_ms, time.idle_in_call_ms]
        assert [*got, time.idle_launched_ms] == pytest.approx([part / 1e6 for part in wanted])
    lengths = [
        (event["end_ns"] - event["start_ns"], at) for event, at in zip(gpu, of, strict=True) if event["kind"] == 0
    ]
    own = [length < calls[at]["end_ns"] - calls[at]["start_ns"] for length, at in lengths if at != NONE]
    assert found.shorter_than_call == Share(sum(own), pytest.approx(sum(own) / len(own)) if own else None)
    assert (found.kernels, found.kernels_launched) == (len(lengths), len(own))
