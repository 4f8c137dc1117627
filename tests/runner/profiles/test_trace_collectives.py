"""`launchopt trace` of several GPUs shows how long each waited in collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.results.kineto_events import kernel, written

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


def test_traces_of_other_collectives_are_said_not_to_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, times in (("before", [100, 200]), ("after", [100])):
        events = [kernel(at, 10, at, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL") for at in times]
        files.append(str(written(tmp_path, events, f"{name}.json")))
    assert main(files) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = "2 on GPU 0 of before.json, 1 on GPU 0 of after.json"
    assert f"collectives of the GPUs are not the same ones, so no wait is known: {said}" in shown
