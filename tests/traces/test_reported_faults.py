"""Small traces made after public bug reports, each with its right answer, and more of the kind of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS
from support.results.kineto_events import Event, call, kernel, raw, written
from support.results.trace_stats import delay_us, stats, stats_of

from launchopt.errors import DataError
from launchopt.traces.kineto import read_kineto
from runner.profiles.trace_screen import notes

CASES = TESTS / "corpus/traces"
NOW = 1_615_207_264_505_000  # us


@pytest.mark.parametrize(
    ("case", "delay", "note"),
    [
        ("c01_kernel_ts0.json", (2, 10), "without a usable time or duration: 1"),
        ("c02_impossible_duration.json", (3, 15), "a later event of their stream ended before them: 1"),
        ("c06_graph.json", (1, 10), None),
        ("c10_na_literal.json", (1, 5), "tokens that are not JSON, replaced: 1 (the first: N/A at byte 200)"),
        ("c11_bad_utf8.json", (1, 5), r"tokens that are not JSON, replaced: 1 (the first: \xff at byte 205)"),
        ("c14_xpu.json", (1, 5), None),
        ("c16_external_id.json", (1, 5), None),
        ("c17_merged_ranks.json", (4, 128), "paired by process and GPU: 4"),
        ("c18_begin_end.json", (3, 15), None),
        ("c21_duplicate_kernel.json", (1, 5), "GPU events recorded twice, counted once: 1"),
        ("c36_no_stream_arg.json", (2, 9), None),
        ("c41_launch_without_dur.json", (0, 0), "without a usable time or duration: 1"),
        ("c42_control_char.json", (1, 5), r"tokens that are not JSON, replaced: 1 (the first: \n at byte 65)"),
        ("c57_infinity_meta.json", (1, 5), "tokens that are not JSON, replaced: 1 (the first: Infinity at byte 310)"),
        ("n02_one_row_without_pid.sqlite", (3, 33), None),
        ("n05_only_osrt.sqlite", (0, 0), "no CUDA events were collected"),
    ],
)
def test_each_reported_case_has_its_right_answer(case: str, delay: tuple[int, float], note: str | None) -> None:
    found = stats_of(CASES / case)
    assert delay_us(found) == delay
    said = "\n".join(notes(found))
    assert said == "" if note is None else note in said


def test_the_other_figures_of_reported_cases() -> None:
    first = stats_of(CASES / "c01_kernel_ts0.json")
    assert first.gpu_time is not None
    # From the start of the first kernel, as in the published traces. A window from the return of the first call, 5 us
    # earlier, would be 0.105 ms with 0.065 ms idle.
    assert (first.gpu_time.window_ms, first.gpu_time.idle_ms) == pytest.approx((0.1, 0.06))
    assert first.launch_delays_clipped == 0
    long = stats_of(CASES / "c02_impossible_duration.json")
    assert long.gpu_time is not None
    assert long.gpu_time.busy_ms == pytest.approx(0.06)
    graph = stats_of(CASES / "c06_graph.json")
    assert ([(queue.stream, queue.largest) for queue in graph.queues], graph.kernels) == ([(7, 1), (8, 1)], 100)
    assert stats_of(CASES / "c17_merged_ranks.json").launch_calls_without_kernel == 0
    assert stats_of(CASES / "c21_duplicate_kernel.json").kernels == 1
    assert [queue.stream for queue in stats_of(CASES / "c36_no_stream_arg.json").queues] == [7, 9]
    assert stats_of(CASES / "c41_launch_without_dur.json").host.count == 0
    assert stats_of(CASES / "n02_one_row_without_pid.sqlite").launch_calls_without_kernel == 0
    said = list(notes(stats_of(CASES / "n05_only_osrt.sqlite")))
    assert said[1] == "the profiler says: No CUDA events collected. Does the process use CUDA?"


@pytest.mark.parametrize(
    ("category", "name"),
    [("mtia_runtime", "MTIA"), ("mtia_ccp_events", "MTIA"), ("hpu_op", "HPU"), ("privateuse1_runtime", "PrivateUse1")],
)
def test_an_accelerator_that_is_not_supported_is_refused_by_name(tmp_path: Path, category: str, name: str) -> None:
    path = written(tmp_path, [call(1, 2, 3, cat=category)])
    with pytest.raises(DataError, match=f"{name} events: not supported; launchopt reads events of CUDA, HIP and XPU"):
        read_kineto(path)
    found = stats(tmp_path, call(1, 2, 3, cat=category), call(1, 2, 3), kernel(5, 2, 3))
    assert list(notes(found)) == [f"{name} events, which are not supported and not counted: 1"]


def test_the_reported_case_of_mtia_is_refused() -> None:
    with pytest.raises(DataError, match="MTIA events: not supported"):
        read_kineto(CASES / "c13_mtia.json")


def test_unknown_categories_are_named(tmp_path: Path) -> None:
    found = stats(tmp_path, call(1, 2, 3, cat="npu kernels"), call(1, 2, 3, cat="npu kernels"), call(1, 2, 3, cat=None))
    assert list(notes(found)) == [
        "no CUDA call and no GPU event among 3 events; categories that are not read: npu kernels 2, (none) 1"
    ]


@pytest.mark.parametrize("zero", [0, -5])
def test_a_zero_time_is_genuine_where_times_are_relative(tmp_path: Path, zero: int) -> None:
    found = stats(tmp_path, call(zero, 2, 1), kernel(3, 2, 1), call(60_000_000, 2, 2), kernel(60_000_003, 2, 2))
    assert (found.left_out, found.launch_calls) == (0, 2)


@pytest.mark.parametrize("missing", [0, -NOW])
def test_several_events_without_a_time_are_left_out(tmp_path: Path, missing: int) -> None:
    """A profiler that subtracts the start of the profile writes a missing time as a large negative number."""
    lost = [kernel(missing, 4, 8), kernel(missing + 1, 0, 9), call(missing, 1, 7)]
    found = stats(tmp_path, call(NOW, 2, 1), kernel(NOW + 3, 2, 1), *lost)
    assert (found.left_out, found.kernels, found.launch_calls) == (3, 1, 1)
    assert found.gpu_time is not None
    assert found.gpu_time.window_ms == pytest.approx(0.002)


def span(event: Event, begin: str = "B", end: str = "E", **more: Any) -> list[Event]:
    """Begin and end of a complete event."""
    first = {**{key: value for key, value in event.items() if key != "dur"}, "ph": begin, **more}
    return [first, {"ph": end, "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"], **more}]


def test_begin_and_end_nest_and_may_be_asynchronous(tmp_path: Path) -> None:
    outer = span({**call(0, 20, 0), "cat": "cpu_op", "name": "aten::mm"})
    inner = span(call(2, 3, 1))
    kernels = [span(kernel(at, 9, 1), "b", "e", id=at, cat="kernel") for at in (8, 9)]
    found = stats(tmp_path, outer[0], *inner, outer[1], *(each[0] for each in kernels), *(each[1] for each in kernels))
    assert (delay_us(found), found.host.sum_us, found.left_out) == ((1, 3), 3, 0)
    assert found.gpu_time is not None
    assert found.gpu_time.busy_ms == pytest.approx(0.01)


@pytest.mark.parametrize("order", ["ends last", "ends first", "backwards"])
def test_begins_and_ends_may_stand_in_any_order(tmp_path: Path, order: str) -> None:
    launches = [each for at in (0, 10, 20) for each in (call(at, 2, at + 1), kernel(at + 5, 4, at + 1))]
    events = [half for each in launches for half in span(each)]
    if order != "backwards":
        events.sort(key=lambda event: event["ph"], reverse=order == "ends first")
    found = stats(tmp_path, *(events[::-1] if order == "backwards" else events))
    assert (delay_us(found), found.host.sum_us, found.left_out) == ((3, 9), 6, 0)


def test_a_begin_without_an_end_is_left_out_and_counted(tmp_path: Path) -> None:
    begin, end = span(call(0, 2, 1))
    found = stats(tmp_path, begin, {**end, "tid": 9, "cat": "cuda_runtime"}, kernel(5, 1, 1))
    assert (found.left_out, found.launch_calls) == (2, 0)


@pytest.mark.parametrize(
    ("token", "count"),
    [
        *(
            (token, 1)
            for token in (
                "NaN",
                "-nan(ind)",
                "-Infinity",
                "1.#QNAN",
                "None",
                "undefined",
                "1.2.3",
                "05",
                "1e99999999999999999999",
                "+5",
            )
        ),
        *((token, 1) for token in ("", '"a\tb"', '"C:\\Users"', '"\\u12"', "[1, 2,]", '{"a": 1,}', '"\x00\x01"')),
        ('["\x1f", NaN]', 2),
    ],
)
def test_a_token_that_is_not_json_is_replaced(tmp_path: Path, token: str, count: int) -> None:
    content = '{"traceEvents": [%s, %s, %s]}'
    odd = f'{{"ph": "X", "cat": "kernel", "ts": 9, "dur": 3, "args": {{"correlation": 1, "a": {token}}}}}'
    before = (
        '{"ph": "X", "cat": "cuda_runtime", "name": "cuLaunchKernel", "ts": 1, "dur": 2, "args": {"correlation": 1}}'
    )
    trace = read_kineto(raw(tmp_path, (content % (before, odd, before)).encode()))
    assert (trace.mended, len(trace.gpu), len(trace.calls)) == (count, 1, 2)


@pytest.mark.parametrize("key", ["ts", "dur"])
def test_an_event_whose_time_is_no_number_is_left_out(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, [call(0, 2, 1), {**kernel(5, 1, 1), key: "TOKEN"}])
    path.write_text(path.read_text().replace('"TOKEN"', "Infinity"))
    found = stats_of(path)
    assert (found.left_out, found.mended, found.kernels) == (1, 1, 0)


def test_an_event_that_lasts_longer_than_its_successor_is_left_out_whatever_its_kind(tmp_path: Path) -> None:
    copy = kernel(10, 500, 1, cat="gpu_memcpy")
    found = stats(tmp_path, copy, kernel(20, 5, 2), kernel(12, 900, 3, stream=8))
    assert (found.overlong_events, found.copies, found.kernels) == (1, 0, 2)


def test_a_call_that_lasts_longer_than_its_successor_is_left_out(tmp_path: Path) -> None:
    found = stats(tmp_path, call(0, 3_400_000, 1), kernel(9, 1, 1), call(20, 4, 2), kernel(30, 1, 2))
    assert (found.overlong_calls, found.host.sum_us, delay_us(found)) == (1, 4, (1, 6))
    assert "calls left out, as a later call of their thread ended before them: 1" in notes(found)


def test_calls_within_those_of_another_library_or_thread_are_no_fault(tmp_path: Path) -> None:
    within = [call(3, 2, 2, "cuLaunchKernel"), call(4, 1, 3, tid=2), call(5, 1, 4, "cudaEventRecord")]
    assert stats(tmp_path, call(0, 10, 1), *within).overlong_calls == 0


def test_kernels_of_a_graph_and_overlapping_neighbours_are_no_fault(tmp_path: Path) -> None:
    graph = [kernel(10, 50, 1), kernel(12, 3, 1)]
    found = stats(tmp_path, call(0, 2, 1, "cudaGraphLaunch"), *graph, kernel(70, 10, 2), kernel(75, 10, 3))
    assert (found.overlong_events, found.kernels) == (0, 4)


def test_two_contexts_and_named_streams_have_queues_of_their_own(tmp_path: Path) -> None:
    events = []
    for at, context in enumerate((1, 2, 1, 2), 1):
        run = kernel(100 + 10 * at, 5, at)
        run["args"]["context"] = context
        events += [call(at, 1, at), run]
    found = stats(tmp_path, *events, call(9, 1, 9), kernel(200, 5, 9, stream="compute"))
    assert [(queue.context, queue.stream, queue.largest) for queue in found.queues] == [
        (1, 7, 2),
        (2, 7, 2),
        (None, "compute", 1),
    ]


def test_copies_and_fills_without_a_call_are_counted(tmp_path: Path) -> None:
    copies = [kernel(9, 1, 1, cat="gpu_memcpy"), kernel(12, 1, 8, cat="gpu_memset"), kernel(15, 1, 9, cat="gpu_memcpy")]
    found = stats(tmp_path, call(0, 1, 1, "cudaMemcpyAsync"), *copies)
    assert (found.copies, found.copies_without_call) == (3, 2)


def captured(*inside: Event) -> list[Event]:
    return [call(10, 2, 90, "cudaStreamBeginCapture"), *inside, call(40, 2, 91, "cudaStreamEndCapture")]


@pytest.mark.parametrize("part", [slice(None), slice(1, None), slice(None, -1)])
def test_calls_recorded_into_a_graph_are_no_samples(tmp_path: Path, part: slice) -> None:
    inside = [call(15, 9, 1), call(25, 9, 2, "cudaMemcpyAsync")]
    later = [call(50, 3, 3, "cudaGraphLaunch"), kernel(60, 1, 3), kernel(62, 1, 3)]
    found = stats(tmp_path, *captured(*inside)[part], *later)
    assert (found.launch_calls, found.host.sum_us, found.captured_calls) == (1, 3, 2)
    assert (found.memory_calls, found.launch_calls_without_kernel) == (0, 0)


def test_a_capture_is_that_of_its_thread_and_of_calls_without_a_kernel(tmp_path: Path) -> None:
    other = call(15, 9, 1, tid=2)
    found = stats(tmp_path, *captured(other, call(20, 4, 2)), kernel(30, 1, 2), call(45, 3, 3))
    assert (found.launch_calls, found.captured_calls) == (3, 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("stream 7", 7), ("Stream #13(Compute)", 13), ("stream 7 (priority 0)", 7), ("7 (default)", 7), ("7", 7)),
        *(("compute", "compute"), ("", "")),
    ],
)
@pytest.mark.parametrize("missing", [{}, {"stream": None, "device": None}])
def test_a_stream_is_known_by_the_number_in_its_name(
    tmp_path: Path, text: str, number: int | str, missing: dict[str, None]
) -> None:
    run = {**kernel(5, 1, 1, tid=text, pid="GPU 3 of rank 5"), "args": {"correlation": 1, **missing}}
    found = stats(tmp_path, call(0, 1, 1), run)
    assert [(queue.device, queue.stream) for queue in found.queues] == [(3, number)]
