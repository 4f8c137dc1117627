"""What the recorder keeps, and what it says of commands that did not run exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from launching import launch

from launchopt import recorder as rec
from launchopt.batcher import FlushReason
from launchopt.recorder import Recorder, Strategy


def test_note_fills_a_row_a_launch_and_a_row_a_command() -> None:
    recorder = Recorder(5)
    launch(recorder, [2, 0, 1], shape=3, flush_ns=99, start_ns=100, end_ns=130)
    launch(recorder, [4, 3], shape=3, flush_ns=99, start_ns=140, end_ns=145)
    launches, commands = recorder.done()
    assert launches.shape == (2, rec.LAUNCH_COLUMNS)
    expected = {
        rec.BATCH: [0, 1],
        rec.SHAPE: [3, 3],
        rec.SIZE: [3, 2],
        rec.STRATEGY: [Strategy.strided] * 2,
        rec.REASON: [FlushReason.idle] * 2,
        rec.FLUSH_NS: [99, 99],
        rec.SUBMIT_START_NS: [100, 140],
        rec.SUBMIT_END_NS: [130, 145],
        rec.SAMPLE: [rec.NOT_SAMPLED] * 2,
        rec.PACKED_BYTES: [0, 0],
    }
    assert {column: launches[:, column].tolist() for column in range(rec.LAUNCH_COLUMNS)} == expected
    assert commands[:, rec.LAUNCH].tolist() == [0, 0, 0, 1, 1]
    assert commands[:, rec.ENQUEUE_NS].tolist() == [0, 10, 20, 30, 40]
    assert (recorder.faults(), recorder.missing()) == ([], 0)
    assert recorder.launch_calls == recorder.launch_count == 2


@pytest.mark.parametrize(
    ("launched", "faults"),
    [
        ([], ["4 of 4 commands never ran"]),
        ([[0, 1], [3]], ["1 of 4 commands never ran"]),
        ([[0, 1, 2, 3], [2, 1]], ["2 commands ran twice"]),
        ([[0, 1, 2, 3, 4]], ["1 commands were not of this stream"]),
        ([[0, 1, 2, 3], [2**64 - 1]], ["1 commands were not of this stream"]),
        ([[0, 0], [9, 3]], ["2 of 4 commands never ran", "1 commands ran twice", "1 commands were not of this stream"]),
    ],
)
def test_faults_name_what_did_not_run_exactly_once(launched: list[list[int]], faults: list[str]) -> None:
    recorder = Recorder(4)
    for seqs in launched:
        launch(recorder, seqs)
    assert list(recorder.faults()) == faults


def test_more_launches_than_commands_stay_within_the_columns() -> None:
    """The columns are written by code without bounds checks, and a fault must be told, not crash."""
    memory = np.full((6, rec.LAUNCH_COLUMNS), 55, np.int64)
    recorder = Recorder(2)
    recorder.launches = memory[:2]
    for _ in range(3):
        launch(recorder, [0, 1])
    assert (memory[2:] == 55).all()
    launches, commands = recorder.done()
    assert commands[:, rec.LAUNCH].max() < len(launches) == 2
    assert list(recorder.faults()) == ["4 commands ran twice"]


def test_marks() -> None:
    recorder = Recorder(6)
    for seq in range(4):
        launch(recorder, [seq])
        if seq == 2:
            recorder.mark_packed(4096, 3)
    recorder.mark_sample(1, 8)
    recorder.mark_sample(3, 9)
    launches, _ = recorder.done()
    assert launches[:, rec.SAMPLE].tolist() == [rec.NOT_SAMPLED, 8, 8, 9]
    assert launches[:, rec.PACKED_BYTES].tolist() == [0, 0, 4096, 0]
    assert (recorder.launch_count, recorder.launch_calls) == (4, 7)
    launch(recorder, [4])
    recorder.mark_packed(1, 2)
    assert recorder.done()[0][4, [rec.SAMPLE, rec.PACKED_BYTES]].tolist() == [rec.NOT_SAMPLED, 1]
    assert recorder.launch_calls == 5 + 3 + 2


def test_batches_are_numbered_in_turn_and_reset_forgets_all() -> None:
    recorder = Recorder(2)
    assert [recorder.next_batch(), recorder.next_batch(5), recorder.next_batch()] == [0, 1, 6]
    launch(recorder, [0, 1, 1, 7])
    recorder.mark_packed(1, 3)
    recorder.reset()
    assert (recorder.launch_calls, recorder.missing(), recorder.next_batch()) == (0, 2, 0)
    assert list(recorder.faults()) == ["2 of 2 commands never ran"]
