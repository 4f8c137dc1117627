"""CPU time inside launch calls is that of the rows of launches.parquet, whatever else counts as a launch call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.config.composing import planned

from launchopt.analysis.submits import submit_ms, submits
from launchopt.recording import results
from runner.run import children
from runner.run.run import execute

OLD: Mapping[str, tuple[Mapping[str, float | None], float]] = {
    "one call a launch": ({"launch_calls": 13100, "batches": 100}, 13100),
    "an upload before each graph": ({"launch_calls": 4, "batches": 2, "graph_replays": 2}, 2),
    "packed": ({"launch_calls": 236, "batches": 118, "packed_bytes": 1440768}, 118),
    "posted to a resident kernel": ({"launch_calls": 1, "batches": 60000}, 60000),
}


@pytest.mark.parametrize(("row", "found"), OLD.values(), ids=OLD)
def test_of_a_file_without_the_column_the_number_follows_from_others(
    row: Mapping[str, float | None], found: float
) -> None:
    assert submits({"packed_bytes": 0, "graph_replays": None, "submits": None, **row}) == found


def test_a_row_without_a_mean_has_no_time() -> None:
    assert submit_ms({"submits": 0, "host_submit_ns_per_launch": None}) is None
    assert submit_ms({"submits": 4, "host_submit_ns_per_launch": 5e5}) == 2.0


def test_the_time_of_a_run_is_that_of_its_launches(tmp_path: Path) -> None:
    words = (
        "workload=gemv_micro",
        "workload.shuffle=true",
        "workload.m=16",
        "workload.k=16",
        "workload.commands=600",
        "mode=batched",
        "against=[baseline,graph]",
        "repeats=1",
    )
    try:
        execute(planned(*words), tmp_path, list(words))
    finally:
        children.dismiss()
    launches = pq.read_table(tmp_path / "launches.parquet").to_pylist()
    rows = results.read_summaries([tmp_path])
    assert any(row["launch_calls"] > row["submits"] for row in rows), "no mode packs"
    for row in rows:
        own = [each for each in launches if each["mode"] == row["mode"]]
        spent_ns = sum(each["submit_end_ns"] - each["submit_start_ns"] for each in own)
        assert submits(row) == len(own)
        assert submit_ms(row) == pytest.approx(spent_ns / 1e6)
