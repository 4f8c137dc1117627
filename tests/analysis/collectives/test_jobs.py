"""GPUs of several traces get one table if they work together; what is in no table is named with the reason."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from launchopt.analysis.collectives.gpus import UNNAMED, Calls, Group, TimedFile, TimedGpu
from launchopt.analysis.collectives.jobs import Found, collectives
from launchopt.analysis.collectives.kinds import Kind
from launchopt.traces.events import Job

BEGINS = (10, 100, 200)


def calls(late_us: int = 0, begins: Sequence[int] = BEGINS) -> Calls:
    """Collectives that end 20 us after their first begin."""
    starts = np.array(begins) * 1000
    count = len(starts)
    return Calls(
        starts + late_us * 1000, starts + 20_000, (Kind.ALL_REDUCE,) * count, np.full(count, 7), np.full(count, True)
    )


def trace(
    name: str, *gpus: Calls, rank: int | None = None, size: int = 2, source: Hashable = None, base_ns: int = 0
) -> TimedFile:
    job = None if rank is None else Job(rank, size)
    timed = tuple(TimedGpu(f"GPU {number}", {UNNAMED: each}) for number, each in enumerate(gpus))
    return TimedFile(name, source or name, job, base_ns, timed)


def of_groups(name: str, rank: int, groups: dict[Group, Calls], size: int = 4) -> TimedFile:
    return TimedFile(name, name, Job(rank, size), 0, (TimedGpu(f"GPU {rank}", groups),))


def tables(found: Found) -> list[list[str]]:
    return [[gpu.gpu for gpu in each.gpus] for each in found.tables]


def test_all_gpus_of_all_traces_have_one_table() -> None:
    found = collectives([trace("a", calls(), calls(1)), trace("b", calls(2), calls(3)), trace("c", calls(4))])
    assert tables(found) == [["GPU 0 of a", "GPU 1 of a", "GPU 0 of b", "GPU 1 of b", "GPU 0 of c"]]
    assert found.notes == []
    assert [each.wait_p50_us for each in found.tables[0].gpus] == [4, 3, 2, 1, 0]


def test_gpus_that_do_not_match_those_of_other_traces_match_those_of_their_own() -> None:
    fewer = BEGINS[:2]
    pair = trace("pair", calls(), calls(1))
    found = collectives([pair, trace("alone", calls(0, fewer))])
    assert tables(found) == [["GPU 0 of pair", "GPU 1 of pair"]]
    reason = "collectives are not the same ones: 3 on GPU 0 of pair, 2 on GPU 0 of alone"
    assert found.notes == [f"GPU 0 of alone is in no table: {reason}"]
    found = collectives([pair, trace("other", calls(0, fewer), calls(1, fewer))])
    assert len(found.tables) == 2
    reason = reason.replace("alone", "other")
    assert found.notes == [f"not all GPUs are in one table: {reason}"]
    found = collectives([trace("one", calls()), trace("alone", calls(0, fewer))])
    assert found.tables == []
    reason = "no wait is known: 3 on GPU 0 of one, 2 on GPU 0 of alone"
    assert found.notes == [f"collectives of the GPUs are not the same ones, so {reason}"]


def test_two_traces_of_one_rank_or_of_jobs_of_two_sizes_are_not_compared() -> None:
    said = "no wait is known of traces that are not of one job: "
    found = collectives(
        [trace("before", calls(), rank=0), trace("after", calls(3), rank=0), trace("c", calls(), rank=1)]
    )
    assert found == Found([], [f"{said}before and after are both of rank 0"])
    found = collectives([trace("a", calls(), rank=0), trace("b", calls(), rank=1, size=4)])
    assert found == Found([], [f"{said}a is of a job of 2 ranks, b of one of 4"])


def test_a_file_that_is_named_twice_counts_once() -> None:
    found = collectives([trace("a", calls()), trace("link", calls(), source="a")])
    again = "link is the same file as a: it counts once"
    assert found == Found([], [again, "a is in no table: no other trace has collectives"])
    found = collectives([trace("a", calls()), trace("link", calls(), source="a"), trace("b", calls(2))])
    assert (tables(found), found.notes) == ([["GPU 0 of a", "GPU 0 of b"]], [again])


def test_a_copy_of_a_trace_is_asked_about() -> None:
    found = collectives([trace("a", calls()), trace("copy", calls())])
    assert found.notes == ["a and copy have the same times: are they copies of one trace?"]


def test_ranks_without_a_trace_are_named() -> None:
    found = collectives([trace("a", calls(), rank=0, size=8), trace("b", calls(5), rank=3, size=8)])
    assert len(found.tables) == 1
    assert found.notes == ["no trace of ranks 1 to 2, 4 to 7 of 8: a wait for a missing rank counts as transfer"]


def test_a_trace_without_a_rank_is_of_no_job_with_ranks() -> None:
    found = collectives([trace("ranked", calls(), rank=0), trace("pair", calls(), calls(1)), trace("none")])
    assert tables(found) == [["GPU 0 of pair", "GPU 1 of pair"]]
    assert found.notes == [
        "ranked is in no table: no other trace with collectives is of its job",
        "none has no collectives",
    ]


def test_one_gpu_alone_and_traces_without_collectives_have_nothing_to_say() -> None:
    assert collectives([trace("a", calls(), rank=0)]) == Found([], [])
    assert collectives([trace("a"), trace("b")]) == collectives([]) == Found([], [])


def test_each_group_of_processes_has_a_table_of_its_own() -> None:
    """Two stages of a pipeline of two GPUs each: the second GPU of a stage comes 2 us late, the second stage 5 us."""
    stages = Group("tp0", "[0,1]"), Group("tp1", "[2,3]")
    later = [at + 5 for at in BEGINS]
    files = [
        of_groups(f"r{rank}", rank, {stages[rank // 2]: calls(rank % 2 * 2, later if rank > 1 else BEGINS)})
        for rank in range(4)
    ]
    found = collectives(files)
    assert [each.group for each in found.tables] == ["group tp0 [0,1]", "group tp1 [2,3]"]
    assert [[each.wait_p50_us for each in one.gpus] for one in found.tables] == [[2, 0], [2, 0]]
    assert ([each.skew_p50_us for each in found.tables], found.notes) == ([2, 2], [])
    found = collectives(files[:3])
    assert [each.group for each in found.tables] == ["group tp0 [0,1]"]
    assert found.notes == [
        "no trace of rank 3 of 4: a wait for a missing rank counts as transfer",
        "in no table, as no other GPU here has collectives of the same group: GPU 2 of r2 (group tp1 [2,3])",
    ]


def test_many_groups_of_one_gpu_here_are_one_sentence() -> None:
    files = [of_groups(f"r{rank}", rank, {Group(f"dp{rank}", ""): calls()}, size=10) for rank in range(10)]
    (note,) = collectives(files).notes
    assert note.startswith(
        "in no table, as no other GPU here has collectives of the same group: GPU 0 of r0 (group dp0), "
    )
    assert note.endswith("GPU 7 of r7 (group dp7) and 2 more")


def test_names_that_a_trace_gives_stay_in_one_line() -> None:
    label = Group("tp\x1b[2J\n" + 100 * "x", "[0,1]").label
    assert label is not None
    assert label.isprintable()
    assert len(label) <= 60


def test_a_group_that_does_not_match_leaves_the_others_their_tables() -> None:
    tp, dp = Group("tp", "[0,1]"), Group("dp", "[0,1]")
    found = collectives(
        [
            of_groups("a", 0, {tp: calls(), dp: calls()}),
            of_groups("b", 1, {tp: calls(3), dp: calls(0, BEGINS[:1])}),
        ]
    )
    assert [each.group for each in found.tables] == ["group tp [0,1]"]
    reason = "so no wait is known: 3 on GPU 0 of a, 1 on GPU 1 of b"
    assert found.notes == [f"collectives of group dp [0,1] of the GPUs are not the same ones, {reason}"]


def test_times_count_from_one_time_if_all_traces_say_from_which_theirs_do() -> None:
    first = trace("a", calls(), base_ns=10**18)
    found = collectives([first, trace("b", calls(), base_ns=10**18 + 9000)])
    assert [each.wait_p50_us for each in found.tables[0].gpus] == [9, 0]
    found = collectives([first, trace("b", calls(4))])
    assert [each.wait_p50_us for each in found.tables[0].gpus] == [4, 0]
