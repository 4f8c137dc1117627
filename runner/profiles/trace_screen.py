"""Launch statistics on standard output: a column for each file, the streams of a single file, and notes on gaps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchopt.analysis.profiles.launch_stats import SHORT_US, LaunchStats, Share, Spread, StreamQueue
from runner.profiles.output import Cell, cell, print_notes, print_table

STREAMS_SHOWN = 10

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
        headings = ["stream", "events called for", "longest queue", "queue p50"]
        print()
        print_table(headings, [_queue_cells(queue) for queue in queues[:STREAMS_SHOWN]])
        if len(queues) > STREAMS_SHOWN:
            print_notes([f"and {len(queues) - STREAMS_SHOWN:,} streams with shorter queues: --json has them"])
    for path, stats in found:
        print_notes(f"{path}: {note}" for note in notes(stats))


def has_cuda(stats: LaunchStats) -> bool:
    """Return whether a trace has CUDA calls or GPU events."""
    return bool(stats.api_calls or stats.gpu_events)


def file_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths without the folders that all share."""
    if len(paths) == 1:
        return [paths[0].name]
    common = os.path.commonpath([path.absolute().parent for path in paths])
    return [os.path.relpath(path.absolute(), common) for path in paths]


def lines(stats: LaunchStats, names: Sequence[str]) -> Iterator[Line]:
    """Yield label and value of each line. `names` are the launch calls of all files: every file has the same lines."""
    yield "launch calls", stats.launch_calls
    for name in names:
        yield f"  {name}", stats.launch_calls_by_name.get(name)
    yield "  without a kernel", stats.launch_calls_without_kernel
    yield "kernels", stats.kernels
    yield "  without a call", stats.kernels_without_call
    yield "  a launch call", stats.kernels_per_call
    yield "graphs recorded as a whole", stats.whole_graphs or None
    yield from _spread("host time in launch calls", stats.host)
    yield from _spread("launch delay", stats.launch_delay)
    yield "  sum before clipping, us", stats.launch_delay_unclipped_sum_us if stats.launch_delay.count else None
    yield "  clipped at 0", stats.launch_delays_clipped if stats.launch_delay.count else None
    yield from _spread("start to start", stats.start_to_start)
    yield from _gpu_lines(stats)
    yield "longest queue of a stream", max((queue.largest for queue in stats.queues), default=None)
    for us in SHORT_US:
        yield f"kernels under {us} us", _shown(stats.short_kernels[f"under_{us}_us"])
    yield "kernels shorter than their launch call", _shown(stats.shorter_than_call)
    yield "memory calls", stats.memory_calls
    yield "  without a GPU event", stats.memory_calls_without_gpu_event
    yield "  host time, sum us", stats.memory_host.sum_us if stats.memory_host.count else None


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


def _queue_cells(queue: StreamQueue) -> list[str]:
    process = f", process {queue.process}" if queue.process is not None else ""
    return [f"{queue.stream} of GPU {queue.device}{process}", *map(cell, (queue.events, queue.largest, queue.p50))]


def notes(stats: LaunchStats) -> Iterator[str]:
    """Yield sentences on what a trace lacks."""
    if not stats.events:
        yield "a trace without events"
    elif not has_cuda(stats):
        yield f"no CUDA call and no GPU event among {stats.events:,} events: a trace of the CPU alone"
    elif not stats.gpu_events:
        yield "no GPU events: was the GPU traced? There is nothing to say of delays, and of the GPU's time"
    elif not stats.api_calls:
        yield "no CUDA calls: was the CPU traced? There is nothing to say of launches"
    if stats.doubled_calls:
        yield f"records within another of the same call, not counted again: {stats.doubled_calls:,}"
    if stats.whole_graphs:
        yield "the kernels of graphs recorded as a whole are in no count: profile with --cuda-graph-trace=node"
    if stats.left_out:
        yield f"CUDA events left out, for want of a usable time or duration: {stats.left_out:,}"
