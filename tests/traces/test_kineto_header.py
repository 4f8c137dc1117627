"""What PyTorch's profiler writes before the events says the rank of the process, and what times count from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.kineto_events import kernel, raw

from launchopt.traces.events import Job
from launchopt.traces.kineto import read_kineto


def header(folder: Path, **content: Any) -> tuple[Job | None, int]:
    trace = read_kineto(raw(folder, json.dumps({**content, "traceEvents": [kernel(1, 2, 3)]}).encode()))
    return trace.job, trace.base_ns


def test_the_header_has_the_rank_and_the_time_from_which_times_count(tmp_path: Path) -> None:
    about = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "rank": 1}]}
    assert header(tmp_path, distributedInfo=about, baseTimeNanoseconds=1_700_000_000_000_000_000) == (
        Job(3, 8),
        1_700_000_000_000_000_000,
    )


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"distributedInfo": {"rank": 0}},
        {"distributedInfo": {"rank": 2, "world_size": 2}},
        {"distributedInfo": {"rank": "x", "world_size": 2}},
        {"distributedInfo": [0, 2], "baseTimeNanoseconds": -1},
        {"distributedInfo": None, "baseTimeNanoseconds": 1e30},
    ],
)
def test_a_header_without_a_rank_or_with_one_that_cannot_be_has_none(tmp_path: Path, content: dict[str, Any]) -> None:
    assert header(tmp_path, **content) == (None, 0)


def test_a_list_of_events_and_a_header_that_is_not_json_are_read_without_it(tmp_path: Path) -> None:
    event = json.dumps(kernel(1, 2, 3))
    for text in (
        f"[{event}]",
        f'{{"x": nan, "distributedInfo": {{"rank": 0, "world_size": 2}}, "traceEvents": [{event}]}}',
    ):
        trace = read_kineto(raw(tmp_path, text.encode()))
        assert (len(trace.gpu), trace.job, trace.base_ns) == (1, None, 0)
