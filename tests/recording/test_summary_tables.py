"""The columns of launches.parquet and commands.parquet, for a recording whose every number is known."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.results.six_commands import EVENTS, HOST, STREAM, ZERO, distribution_of, six_commands
from support.steps.launching import launch, recorded

from launchopt.recording import summary
from launchopt.recording.recorder import Recorder
from launchopt.recording.results import COMMANDS, LAUNCHES
from launchopt.recording.summary import measured


@pytest.fixture
def recorder() -> Recorder:
    return six_commands()


def test_waits_in_the_batcher_count_from_when_a_command_became_eligible() -> None:
    """The time of the enqueue does not count. 0: no time was recorded."""
    recorder = Recorder(4)
    eligible_ns = [ZERO + 900, 0, ZERO + 400, ZERO + 1_000]
    launch(recorder, [0, 1, 2, 3], flush_ns=ZERO + 1_000, start_ns=ZERO, zero_ns=ZERO - 5_000, eligible_ns=eligible_ns)
    row, histograms = measured(recorder, [1, 0, 0, 0, 0], HOST, STREAM)
    assert {name: row[name] for name in row if name.startswith("batch_wait")} == distribution_of(
        "batch_wait", [100, 0, 600, 0]
    )
    assert row["queue_wait_max_us"] == 5.0
    assert histograms["batch_wait"].max == 600
    columns = command_lists(recorder)
    assert columns["eligible_ns"] == [900, 1_000, 400, 1_000]


def as_lists(columns: dict[str, Any], schema: pa.Schema) -> dict[str, list[Any]]:
    assert set(schema.names) - {"run_id", "mode", "repeat"} == columns.keys()
    return {name: pa.array(values, schema.field(name).type).to_pylist() for name, values in columns.items()}


def test_launch_columns(recorder: Recorder) -> None:
    assert as_lists(summary.launch_columns(0, recorded(recorder).launches, EVENTS, STREAM.shapes, 7), LAUNCHES) == {
        "gpu": [7] * 3,
        "launch": [0, 1, 2],
        "batch": [0, 1, 2],
        "m": [4] * 3,
        "n": [3] * 3,
        "k": [5] * 3,
        "op": ["gemm"] * 3,
        "dtype": ["fp16"] * 3,
        "batch_size": [3, 2, 1],
        "strategy": ["strided"] * 3,
        "flush_reason": ["idle"] * 3,
        "flush_ns": [1_000, 2_000, 3_000],
        "submit_start_ns": [1_100, 2_100, 3_100],
        "submit_end_ns": [1_200, 2_400, 3_600],
        "device_start_ns": [None, 2_300, None],
        "device_end_ns": [None, 5_900, None],
        "packed_bytes": [0, 0, 240],
    }


def command_lists(recorder: Recorder) -> dict[str, list[Any]]:
    return as_lists(summary.command_columns(recorded(recorder), EVENTS, STREAM.shapes), COMMANDS)


def test_command_columns_are_in_the_order_of_execution(recorder: Recorder) -> None:
    assert command_lists(recorder) == {
        "seq": [0, 1, 2, 4, 3, 5],
        "request": [2**32 - 1 - seq for seq in (0, 1, 2, 4, 3, 5)],
        "step": [0, 1, 2, 4, 3, 5],
        "m": [4] * 6,
        "n": [3] * 6,
        "k": [5] * 6,
        "launch": [0, 0, 0, 1, 1, 2],
        "enqueue_ns": [0, 10, 20, 40, 30, 50],
        "eligible_ns": [1_000] * 3 + [2_000] * 2 + [3_000],  # nothing held them: as they were flushed
        "flush_ns": [1_000] * 3 + [2_000] * 2 + [3_000],
        "submit_start_ns": [1_100] * 3 + [2_100] * 2 + [3_100],
        "device_start_ns": [None] * 3 + [2_300] * 2 + [None],
        "device_end_ns": [None] * 3 + [5_900] * 2 + [None],
    }


def test_columns_of_a_later_chunk_go_on_counting_launches(recorder: Recorder) -> None:
    chunks = list(recorder.chunks(most_launches=2))
    assert [len(chunk.launches) for chunk in chunks] == [2, 1]
    last = summary.command_columns(chunks[1], EVENTS, STREAM.shapes)
    assert (last["launch"].tolist(), last["seq"].tolist()) == ([2], [5])
    assert summary.launch_columns(2, chunks[1].launches, EVENTS, STREAM.shapes)["launch"].tolist() == [2]


@pytest.mark.parametrize("launched", [[], [0, 1, 3]])
def test_commands_that_never_ran_have_no_row(launched: list[int]) -> None:
    recorder = Recorder(6)
    if launched:
        launch(recorder, launched, flush_ns=ZERO + 7, start_ns=ZERO + 8, zero_ns=ZERO)
    columns = command_lists(recorder)
    assert columns["seq"] == launched
    assert columns["device_end_ns"] == [None] * len(launched)
