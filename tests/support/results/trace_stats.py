"""The figures of launches in a trace."""

from __future__ import annotations

from pathlib import Path

from launchopt.analysis.profiles.launch_stats import LaunchStats, launch_stats
from launchopt.traces.events import is_sqlite
from launchopt.traces.kineto import read_kineto
from launchopt.traces.nsys_sqlite import read_nsys
from support.results.kineto_events import Event, written


def stats_of(path: Path) -> LaunchStats:
    return launch_stats(read_nsys(path) if is_sqlite(path) else read_kineto(path))


def stats(folder: Path, *events: Event) -> LaunchStats:
    return stats_of(written(folder, events))


def delay_us(found: LaunchStats) -> tuple[int, float]:
    return found.launch_delay.count, found.launch_delay.sum_us
