"""What the recorder keeps, and what it says of commands that did not run exactly once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.launching import launch, recorded

from launchopt.batching.batch import FlushReason
from launchopt.errors import RunError
from launchopt.recording import recorder as rec
from launchopt.recording.launch_rows import LAUNCH_COLUMNS, NOT_SAMPLED, CommandColumn, LaunchColumn, Strategy
from launchopt.recording.recorder import Recorder


def test_note_fills_a_row_a_launch_and_a_row_a_command() -> None:
    recorder = Recorder(5)
    launch(recorder, [2, 0, 1], shape=3, flush_ns=99, start_ns=100, end_ns=130, eligible_ns=[97, 98, 99])
    launch(recorder, [4, 3], shape=3, flush_ns=99, start_ns=140, end_ns=145)
    run = recorded(recorder)
    launches, commands = run.launches, run.commands
    assert launches.shape == (2, LAUNCH_COLUMNS)
    expected = {
        LaunchColumn.BATCH: [0, 1],
        LaunchColumn.SHAPE: [3, 3],
        LaunchColumn.SIZE: [3, 2],
        LaunchColumn.STRATEGY: [Strategy.strided] * 2,
        LaunchColumn.REASON: [FlushReason.idle] * 2,
        LaunchColumn.FLUSH_NS: [99, 99],
        LaunchColumn.SUBMIT_START_NS: [100, 140],
        LaunchColumn.SUBMIT_END_NS: [130, 145],
        LaunchColumn.SAMPLE: [NOT_SAMPLED] * 2,
        LaunchColumn.PACKED_BYTES: [0, 0],
    }
    assert {column: launches[:, column].tolist() for column in range(LAUNCH_COLUMNS)} == expected
    assert run.of_launch.tolist() == [0, 0, 0, 1, 1]
    assert commands[:, CommandColumn.SEQ].tolist() == [2, 0, 1, 4, 3]
    assert commands[:, CommandColumn.ENQUEUE_NS].tolist() == [20, 0, 10, 40, 30]
    assert commands[:, CommandColumn.ELIGIBLE_NS].tolist() == [97, 98, 99, 0, 0]
    assert recorder.faults() == []
    assert recorder.launch_calls == recorder.launch_count == 2


def test_commands_are_counted_by_what_launched_them() -> None:
    recorder = Recorder(9)
    assert recorder.commands_by_strategy() == {}
    launch(recorder, [0, 1, 2], strategy=Strategy.graph)
    launch(recorder, [3], strategy=Strategy.single)
    launch(recorder, [4, 5, 6, 7], strategy=Strategy.graph)
    launch(recorder, [8], strategy=Strategy.megakernel)
    assert recorder.commands_by_strategy() == {"single": 1, "graph": 7, "megakernel": 1}


def test_reset_loads_what_spooling_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loops of a GPU call that in their own code: the first call by Python would fall into a timed run."""
    recorder, called = Recorder(5), []
    launch(recorder, [0])
    monkeypatch.setattr(rec, "must_spool", lambda *arrays: called.append(arrays))
    recorder.reset()
    assert len(called) == 1
    assert all(
        each is own
        for each, own in zip(called[0][0], (recorder.launches, recorder.commands, recorder.cursor), strict=True)
    )
    assert recorder.launch_count == 0


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


def small(margin: int, folder: Path | None = None) -> Recorder:
    """A recorder whose buffers hold little more than they must."""
    return Recorder(1 << 20, margin, folder, least_rows=2)


steps = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=60)


@settings(deadline=None)
@given(steps, st.integers(6, 20), st.integers(1, 9), st.integers(1, 9))
def test_chunks_are_what_was_noted_in_order(
    steps: list[tuple[int, bool, bool]], margin: int, most_launches: int, most_commands: int
) -> None:
    """All rows are kept for any times of `spool`, if at most `margin` rows are recorded between two calls."""
    recorder = small(margin)
    since, seq, sizes, marks = 0, 0, [], []
    for size, room, marked in steps:
        if room or since + size > margin:
            recorder.spool()
            since = 0
        launch(recorder, range(seq, seq + size), start_ns=seq)
        if marked:
            recorder.mark_sample(len(sizes), 7)
            recorder.mark_packed(seq, 1)
        sizes.append(size)
        marks.append((7, seq) if marked else (NOT_SAMPLED, 0))
        since, seq = since + size, seq + size
    chunks = list(recorder.chunks(most_launches, most_commands))
    assert all(len(chunk.launches) <= most_launches for chunk in chunks)
    assert all(len(chunk.commands) <= most_commands or len(chunk.launches) == 1 for chunk in chunks)
    assert [int(size) for chunk in chunks for size in chunk.launches[:, LaunchColumn.SIZE]] == sizes
    run = recorded(recorder)
    assert run.launches[:, LaunchColumn.SIZE].tolist() == sizes
    assert run.launches[:, LaunchColumn.SUBMIT_START_NS].tolist() == (np.cumsum(sizes) - sizes).tolist()
    assert run.launches[:, [LaunchColumn.SAMPLE, LaunchColumn.PACKED_BYTES]].tolist() == [list(mark) for mark in marks]
    assert run.commands[:, CommandColumn.SEQ].tolist() == list(range(seq))
    assert [int(s) for chunk in chunks for s in chunk.commands[:, CommandColumn.SEQ]] == list(range(seq))
    assert run.commands[:, CommandColumn.ENQUEUE_NS].tolist() == [10 * i for i in range(seq)]
    requests = (run.commands[:, CommandColumn.REQUEST_STEP].view(np.uint64) >> np.uint64(32)).tolist()
    assert requests == [2**32 - 1 - i for i in range(seq)]


def test_a_second_run_reads_nothing_of_the_first() -> None:
    recorder = small(8)
    for first in (1000, 2000):
        recorder.reset()
        for seq in range(first, first + 100 if first == 1000 else first + 50):
            launch(recorder, [seq])
            recorder.spool()
    assert recorded(recorder).commands[:, CommandColumn.SEQ].tolist() == list(range(2000, 2050))


@pytest.mark.parametrize("sizes", [[1] * 17, [16, 1], [17]])
def test_a_launch_without_room_is_an_error_and_writes_nowhere(sizes: list[int]) -> None:
    """The buffers are written by code without bounds checks."""
    recorder = small(8)
    memory = [np.full((20, buffer.shape[1]), 55, np.int64) for buffer in (recorder.launches, recorder.commands)]
    assert len(recorder.launches) == 16
    recorder.launches, recorder.commands = memory[0][2:18], memory[1][2:18]
    for size in sizes:
        launch(recorder, [0] * size)
    assert all((edge == 55).all() for each in memory for edge in (each[:2], each[18:]))
    assert recorder.command_count == sum(sizes) - sizes[-1]
    for ask in (recorder.spool, recorder.faults, lambda: list(recorder.chunks())):
        with pytest.raises(RunError, match="1 launch calls were not recorded"):
            ask()


def test_a_launch_that_was_spooled_cannot_be_marked() -> None:
    recorder = small(4)
    for seq in range(5):
        launch(recorder, [seq])
    recorder.spool()
    with pytest.raises(RunError, match="launch call 4 can no longer be marked"):
        recorder.mark_sample(4, 0)


def test_nothing_is_left_in_the_folder_at_any_time(tmp_path: Path) -> None:
    recorder = small(4, tmp_path)
    for seq in range(100):
        launch(recorder, [seq])
        recorder.spool()
        assert list(tmp_path.iterdir()) == []
    assert len(recorded(recorder).launches) == 100
    recorder.close()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be written in .*missing: No such file or directory"):
        small(4, tmp_path / "missing")


def test_a_full_disk_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = small(4, tmp_path)
    for seq in range(5):
        launch(recorder, [seq])
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"cannot be written in .*: No space left on device"):
        recorder.spool()


def test_a_system_that_writes_and_reads_in_parts_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:100], at))
    monkeypatch.setattr(os, "preadv", lambda file, into, at: read(file, [into[0][:100]], at))
    recorder = small(4)
    for seq in range(100):
        launch(recorder, [seq])
        recorder.spool()
    assert recorded(recorder).commands[:, CommandColumn.SEQ].tolist() == list(range(100))


@pytest.mark.parametrize(("margin", "rows"), [(0, 16_384), (8192, 16_384), (8193, 32_768), (40_000, 131_072)])
def test_half_of_the_buffers_holds_the_margin(margin: int, rows: int) -> None:
    recorder = Recorder(1, margin)
    assert len(recorder.launches) == len(recorder.commands) == rows


def test_marks() -> None:
    recorder = Recorder(6)
    for seq in range(4):
        launch(recorder, [seq])
        if seq == 2:
            recorder.mark_packed(4096, 3)
    recorder.mark_sample(1, 8)
    recorder.mark_sample(3, 9)
    launches = recorded(recorder).launches
    assert launches[:, LaunchColumn.SAMPLE].tolist() == [NOT_SAMPLED, 8, 8, 9]
    assert launches[:, LaunchColumn.PACKED_BYTES].tolist() == [0, 0, 4096, 0]
    assert (recorder.launch_count, recorder.launch_calls) == (4, 7)
    launch(recorder, [4])
    recorder.mark_packed(1, 2)
    assert recorded(recorder).launches[4, [LaunchColumn.SAMPLE, LaunchColumn.PACKED_BYTES]].tolist() == [
        NOT_SAMPLED,
        1,
    ]
    assert recorder.launch_calls == 5 + 3 + 2


def test_batches_are_numbered_in_turn_and_reset_forgets_all() -> None:
    recorder = Recorder(2)
    assert [recorder.next_batch(), recorder.next_batch(5), recorder.next_batch()] == [0, 1, 6]
    launch(recorder, [0, 1, 1, 7])
    recorder.mark_packed(1, 3)
    recorder.reset()
    assert (recorder.launch_calls, recorder.command_count, recorder.next_batch()) == (0, 0, 0)
    assert list(recorder.faults()) == ["2 of 2 commands never ran"]


def test_what_was_posted_is_no_launch_call_and_all_else_stays() -> None:
    recorder = Recorder(5)
    launch(recorder, [0, 1], strategy=Strategy.resident)
    launch(recorder, [2])
    recorder.mark_packed(64, 3)
    launch(recorder, [3, 4], strategy=Strategy.resident)
    assert (recorder.launch_calls, recorder.launch_count, recorder.command_count) == (1 + 3, 3, 5)
    recorder.count_more(2)  # starts of the kernel
    assert (recorder.launch_calls, recorder.launch_count, recorder.command_count) == (1 + 3 + 2, 3, 5)
    assert recorder.faults() == []
    recorder.reset()
    assert recorder.launch_calls == 0
