"""`launchopt trace` of several GPUs shows how long each waited in collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.kineto_events import kernel, raw, written

from runner.profiles.trace import main


def test_traces_of_several_processes_have_the_skew_of_their_collectives_apart_from_the_transfer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for rank, late_us in (("rank0", 0), ("rank1", 6)):
        (tmp_path / rank).mkdir()
        events = [
            kernel(at + late_us, 10 - late_us, at, device=int(rank[-1]), name="ncclDevKernel_AllReduce_Sum_f16_RING_LL")
            for at in (100, 200, 300)
        ]
        files.append(written(tmp_path / rank, [*events, kernel(90, 2, 9)]))
    output = tmp_path / "statistics.json"
    assert main([*map(str, files), "--json", str(output)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU 0 of rank0/trace.json 6.000 6.000 0% " in shown
    assert "GPU 1 of rank1/trace.json 0.000 0.000 100% " in shown
    assert "3 collectives on 2 GPUs: skew p50 6.000 us, p99 6.000 us; transfer p50 4.000 us, p99 4.000 us; " in shown
    assert "; clocks as recorded, off by 12.000 us at most" in shown
    (found,) = json.loads(output.read_text())["collectives"]
    assert (found["count"], found["skew_p50_us"], [each["last_share"] for each in found["gpus"]]) == (3, 6.0, [0, 1])


def test_two_traces_of_one_rank_have_no_table_but_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, late_us in (("before", 0), ("after", 3)):
        events = [kernel(at + late_us, 20, at, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL") for at in (100, 200)]
        content = {"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": events}
        files.append(str(raw(tmp_path, json.dumps(content).encode(), f"{name}.json")))
    output = tmp_path / "statistics.json"
    assert main([*files, "--json", str(output)]) == 0
    reason = "no wait is known of traces that are not of one job: before.json and after.json are both of rank 0"
    shown = capsys.readouterr().out
    assert shown.endswith(f"\n\n{reason}\n")
    found = json.loads(output.read_text())
    assert (found["collectives"], found["collectives_notes"]) == ([], [reason])
    (tmp_path / "link.json").symlink_to("before.json")
    assert main([files[0], str(tmp_path / "link.json")]) == 0
    shown = capsys.readouterr().out
    assert "link.json is the same file as before.json: it counts once\n" in shown
    assert "came last" not in shown


def test_each_group_that_the_profiler_of_pytorch_names_has_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two stages of a pipeline of two GPUs each, one 5 us behind the other. The second GPU of each is 2 us late."""
    files = []
    for rank in range(4):
        stage, late_us = rank // 2, 2 * (rank % 2)
        group = {"Process Group Name": f"tp{stage}", "Process Group Ranks": f"[{2 * stage}, {2 * stage + 1}]"}
        events = [
            kernel(at + 5 * stage + late_us, 10 - late_us, at, device=rank, name="ncclDevKernel_Generic_4")
            for at in (100, 200, 300)
        ]
        for event in events:
            event["args"] |= {"Collective name": "allreduce"} | group
        files.append(str(written(tmp_path, events, f"{rank}.json")))
    assert main([*files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    waits = {each["group"]: [gpu["wait_p50_us"] for gpu in each["gpus"]] for each in found["collectives"]}
    assert waits == {"group tp0 [0,1]": [2, 0], "group tp1 [2,3]": [2, 0]}
    assert main(files) == 0
    assert "collectives of group tp1 [2,3]: wait for the other GPUs, us" in capsys.readouterr().out


def test_traces_of_other_collectives_are_said_not_to_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, times in (("before", [100, 200]), ("after", [100])):
        events = [kernel(at, 10, at, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL") for at in times]
        files.append(str(written(tmp_path, events, f"{name}.json")))
    assert main([*files, "--json", str(tmp_path / "statistics.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = "2 on GPU 0 of before.json, 1 on GPU 0 of after.json"
    reason = f"collectives of the GPUs are not the same ones, so no wait is known: {said}"
    assert reason in shown
    assert json.loads((tmp_path / "statistics.json").read_text())["collectives_notes"] == [reason]
