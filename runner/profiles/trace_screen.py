"""Launch statistics on standard output: a column for each file, the streams of a single file, notes, a conclusion."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchopt.analysis.collectives.jobs import Found as FoundCollectives
from launchopt.analysis.profiles.dispatch import OperatorCost
from launchopt.analysis.profiles.launch_queues import StreamQueue
from launchopt.analysis.profiles.launch_stats import SHORT_US, LaunchStats, Share, Spread
from launchopt.errors import one_line
from launchopt.traces.events import Format
from launchopt.traces.kineto import ACCELERATORS
from runner.profiles.output import Cell, cell, print_notes, print_table
from runner.profiles.trace_conclusion import conclusion
from runner.profiles.trace_input import STDIN, STDIN_NAME

STREAMS_SHOWN = 10
OPERATORS_LEGEND = (
    "framework: outside of the operator that makes the launch call; inner: within it, up to the launch call, with "
    "libraries such as cuBLAS; driver: launch calls; before it: Python since the operator before; sum: all calls, from "
    "start to end"
)
OPERATORS_SHOWN = 12
LONGEST_NAME, LONGEST_PIPED = 40, 300  # characters of an operator's name on a terminal, and in a pipe
CATEGORIES_SHOWN = 5

Found = Sequence[tuple[Path, LaunchStats]]
Line = tuple[str, Cell]


def print_statistics(found: Found) -> None:
    """Print a table of the files with CUDA events, and notes on every file."""
    shown = [(path, stats) for path, stats in found if has_cuda(stats)]
    if shown:
        names = list(dict.fromkeys(name for _, stats in shown for name in stats.launch_calls_by_name))
        columns = [lines(stats, names) for _, stats in shown]
        rows = [(same[0][0], [value for _, value in same]) for same in zip(*columns, strict=True)]
        filled = [[label, *map(cell, values)] for label, values in rows if any(value is not None for value in values)]
        print_table(["", *file_names([path for path, _ in shown])], filled)
    if len(shown) == 1 and shown[0][1].queues:
        queues = shown[0][1].queues
        headings = ["stream", "calls", "GPU events", "longest queue", "queue p50"]
        print()
        print_table(headings, _queue_rows(queues))
        if len(queues) > STREAMS_SHOWN:
            print_notes([f"and {len(queues) - STREAMS_SHOWN:,} streams with shorter queues: --json has them"])
    if len(shown) == 1 and shown[0][1].operators:
        _print_operators(shown[0][1].operators)
    for path, stats in found:
        print_notes(f"{STDIN_NAME if path == STDIN else path}: {note}" for note in notes(stats))
    for path, stats in found:
        if said := [*conclusion(path, stats)]:
            print()
            name = f"{STDIN_NAME if path == STDIN else path}: " if len(found) > 1 else ""
            print_notes([f"{name}{said[0]}", *said[1:]])


def print_collectives(found: FoundCollectives) -> None:
    """Print how long GPUs that work together waited for each other, or why that is not known."""
    for each in found.tables:
        print()
        group = f" of {each.group}" if each.group else ""
        headings = [f"collectives{group}: wait for the other GPUs, us", "p50", "p99", "came last"]
        rows = [[gpu.gpu, cell(gpu.wait_p50_us), cell(gpu.wait_p99_us), f"{gpu.last_share:.0%}"] for gpu in each.gpus]
        print_table(headings, rows)
        skew = f"skew p50 {cell(each.skew_p50_us)} us, p99 {cell(each.skew_p99_us)} us"
        transfer = f"transfer p50 {cell(each.transfer_p50_us)} us, p99 {cell(each.transfer_p99_us)} us"
        set_ = "clocks of the traces differed and were set" if each.is_clock_set else "clocks as recorded"
        error = f"{set_}, off by {cell(each.clock_error_us)} us at most"
        print_notes([f"{each.count:,} collectives on {len(each.gpus)} GPUs: {skew}; {transfer}; {error}"])
    if found.notes:
        print()
        print_notes(found.notes)


def _print_operators(operators: Sequence[OperatorCost]) -> None:
    """Print what each operator costs the host: medians of its parts, and the sum of all calls, the largest first."""
    headings = ["operator: medians, us", "calls", "launches", "framework", "inner", "driver", "before it", "sum, ms"]
    rows = [
        [
            one_line(each.name, LONGEST_NAME if sys.stdout.isatty() else LONGEST_PIPED),
            *map(cell, (each.calls, each.launch_calls, each.framework_us, each.inner_us)),
            *map(cell, (each.driver_us, each.between_us, each.sum_us / 1e3)),
        ]
        for each in operators[:OPERATORS_SHOWN]
    ]
    print()
    print_table(headings, rows, is_split=sys.stdout.isatty())
    print_notes([OPERATORS_LEGEND])
    if len(operators) > OPERATORS_SHOWN:
        print_notes([f"and {len(operators) - OPERATORS_SHOWN:,} operators with less time in all: --json has them"])


def has_cuda(stats: LaunchStats) -> bool:
    """Return whether a trace has CUDA calls or GPU events."""
    return bool(stats.api_calls or stats.gpu_events)


def file_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths without the folders that all share."""
    files = [path for path in paths if path != STDIN]
    common = os.path.commonpath([path.absolute().parent for path in files]) if files else ""
    return [STDIN_NAME if path == STDIN else os.path.relpath(path.absolute(), common) for path in paths]


def lines(stats: LaunchStats, names: Sequence[str]) -> Iterator[Line]:
    """Yield label and value of each line. `names` are the launch calls of all files: every file has the same lines."""
    yield "launch calls", stats.launch_calls
    for name in names:
        yield f"  {name}", stats.launch_calls_by_name.get(name)
    yield "  without a kernel", stats.launch_calls_without_kernel
    yield "calls recorded into a graph", stats.captured_calls or None
    yield "kernels", stats.kernels
    yield "  without a call", stats.kernels_without_call
    yield "kernels per launch call", stats.kernels_per_call
    yield "graphs recorded as a whole", stats.whole_graphs or None
    yield from _spread("host time in launch calls", stats.host)
    yield from _spread("launch delay", stats.launch_delay)
    yield "  sum before clipping, us", stats.launch_delay_unclipped_sum_us if stats.launch_delay.count else None
    yield "  kernel began before its call returned", stats.launch_delays_clipped if stats.launch_delay.count else None
    yield from _spread("call to kernel start", stats.start_to_start)
    yield from _gpu_lines(stats)
    yield "longest queue of a stream", max((queue.largest for queue in stats.queues), default=None)
    for us in SHORT_US:
        yield f"kernels under {us} us", _shown(stats.short_kernels[f"under_{us}_us"])
    yield "kernels shorter than their launch call", _shown(stats.shorter_than_call)
    yield "memory calls", stats.memory_calls
    yield "  without a GPU event", stats.memory_calls_without_gpu_event
    yield "  host time, sum us", stats.memory_host.sum_us if stats.memory_host.count else None
    yield "copies and fills", stats.copies
    yield "  without a call", stats.copies_without_call


def _spread(label: str, spread: Spread) -> Iterator[Line]:
    yield f"{label}, sum us", spread.sum_us if spread.count else None
    yield f"{label}, p50 us", spread.p50_us
    yield f"{label}, p99 us", spread.p99_us


def _gpu_lines(stats: LaunchStats) -> Iterator[Line]:
    yield "GPUs", len(stats.gpu_time_by_device) if len(stats.gpu_time_by_device) > 1 else None
    yield "GPU events", stats.gpu_events
    time = stats.gpu_time
    values = (
        (None,) * 5
        if time is None
        else (time.busy_ms, time.idle_ms, time.idle_not_launched_ms, time.idle_in_call_ms, time.idle_launched_ms)
    )
    labels = ("GPU busy", "GPU idle", "  nothing launched", "  within a launch call", "  launched, not begun")
    yield from zip((f"{label}, ms" for label in labels), values, strict=True)


def _shown(share: Share) -> str | None:
    return None if share.share is None else f"{share.count:,} ({share.share:.1%})"


def _queue_rows(queues: Sequence[StreamQueue]) -> Iterator[list[str]]:
    """Yield the cells of the first queues. Processes and contexts are named if there are several."""
    has_processes = len({queue.process for queue in queues}) > 1
    gpus = {(queue.process, queue.device) for queue in queues}
    has_contexts = len({(queue.process, queue.device, queue.context) for queue in queues}) > len(gpus)
    for queue in queues[:STREAMS_SHOWN]:
        context = f", context {queue.context}" if has_contexts and queue.context is not None else ""
        process = f", process {queue.process}" if has_processes and queue.process is not None else ""
        name = f"{queue.stream} of GPU {queue.device}{context}{process}"
        yield [name, *map(cell, (queue.calls, queue.events, queue.largest, queue.p50))]


def notes(stats: LaunchStats) -> Iterator[str]:
    """Yield sentences on what a trace lacks, and on what was left out or mended."""
    yield from _notes_on_content(stats)
    if stats.launch_calls and stats.kernels and not stats.kernels_launched:
        yield "no launch call and kernel have a correlation id or External id in common: no launch delay is known"
    if stats.whole_graphs:
        yield "the kernels of graphs recorded as a whole are not counted: profile with --cuda-graph-trace=node"
    for accelerator in ACCELERATORS:
        if stats.other_events.get(accelerator):
            yield f"{accelerator} events, which are not supported and not counted: {stats.other_events[accelerator]:,}"
    counts = {
        "records within another of the same call, not counted again": stats.doubled_calls,
        "calls left out, as a later call of their thread ended before them": stats.overlong_calls,
        "GPU events recorded twice, counted once": stats.repeated_events,
        "GPU events left out, as a later event of their stream ended before them": stats.overlong_events,
        "CUDA events left out, without a usable time or duration": stats.left_out,
        "launch calls and GPU events without correlation id or External id, in no pair": stats.without_id,
        "GPU events whose correlation id several processes use, paired by process and GPU": stats.shared_ids,
    }
    yield from (f"{what}: {count:,}" for what, count in counts.items() if count)
    if stats.mended:
        yield f"tokens that are not JSON, replaced: {stats.mended:,} (the first: {stats.first_mended})"


def _notes_on_content(stats: LaunchStats) -> Iterator[str]:
    if not has_cuda(stats):
        yield _without_cuda(stats)
        yield from (f"the profiler says: {one_line(text, 300)}" for text in stats.diagnostics)
    elif not stats.gpu_events:
        yield "no GPU events: was the GPU traced? Launch delays and GPU time are unknown"
    elif not stats.api_calls and stats.left_out:
        yield "no CUDA call with a usable time: launches are unknown"
    elif not stats.api_calls:
        yield "no CUDA calls: was the CPU traced? Launches are unknown"


def _without_cuda(stats: LaunchStats) -> str:
    if stats.left_out:
        return f"no usable CUDA event among {stats.events:,} events"
    if stats.format == Format.SQLITE.value:
        return "no CUDA events were collected"
    if not stats.events:
        return "a trace without events"
    nothing = f"no CUDA call and no GPU event among {stats.events:,} events"
    if not stats.other_events:
        return f"{nothing}: a trace of the CPU alone. launchopt advise --trace takes its GEMMs"
    most = sorted(stats.other_events.items(), key=lambda item: -item[1])[:CATEGORIES_SHOWN]
    shown = ", ".join(f"{one_line(name, 40) or '(none)'} {count:,}" for name, count in most)
    return f"{nothing}; categories that are not read: {shown}"
