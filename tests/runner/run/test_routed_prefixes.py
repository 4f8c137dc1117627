"""Several consumers whose requests share prefixes: each has a cache of its own, and every output is right."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.config.composing import planned

from launchopt.errors import ConfigError
from launchopt.recording import results
from runner.run import children
from runner.run.run import execute

CORES = sorted(os.sched_getaffinity(0))[:2]
TWO = f"device.gpus=[{','.join(map(str, CORES))}]"
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
LAYER = ("workload=layer", "model=tiny", "workload.kv=paged", "workload.page_tokens=512", "workload.cache=hot")
RUN = (*LAYER, "mode=coalesced", "against=[]", "repeats=1", "scheduler=continuous", "scheduler.prefixes=radix")
# Two conversations, whose second turns come in the order in which turns would exchange their consumers.
LINES = (
    {"timestamp": 0, "input_length": 514, "output_length": 2, "hash_ids": [0, 1]},
    {"timestamp": 1, "input_length": 514, "output_length": 2, "hash_ids": [4, 5]},
    {"timestamp": 2, "input_length": 514, "output_length": 2, "hash_ids": [4, 6]},
    {"timestamp": 3, "input_length": 514, "output_length": 2, "hash_ids": [0, 2]},
)


def ran(folder: Path, *words: str) -> tuple[results.Row, list[results.Row]]:
    """Run the trace; return the row of summary.parquet, and those of gpus.parquet."""
    trace = folder / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    words = (*RUN, "arrival=replay", f"arrival.path={trace}", "arrival.speed=1000", TWO, *words)
    (folder / "run").mkdir()
    try:
        execute(planned(*words), folder / "run", list(words))
    finally:
        children.dismiss()
    (row,) = results.read_summaries([folder / "run"])
    return row, results.read_gpus([folder / "run"])


@needs_two_cores
@pytest.mark.parametrize(("routing", "cached"), [("prefix", 1024), ("round_robin", 0)])
def test_routing_by_prefix_finds_what_turns_do_not(routing: str, cached: int, tmp_path: Path) -> None:
    row, gpus = ran(tmp_path, f"device.routing={routing}")
    assert (row["status"], row["verified"], row["routing"]) == ("ok", True, routing)
    assert row["scheduler"] == "continuous, prefixes radix"
    assert (row["cached_tokens"], row["prefix_hit_rate"]) == (cached, cached / 2048)
    assert [each["requests"] for each in gpus] == [2, 2]


@needs_two_cores
def test_gpus_that_split_a_model_share_one_set_of_prefixes(tmp_path: Path) -> None:
    row, _ = ran(tmp_path, "parallel.tensor=2")
    assert (row["status"], row["verified"], row["tensor"]) == ("ok", True, 2)
    assert (row["cached_tokens"], row["prefix_hit_rate"]) == (1024, 0.5)


@needs_two_cores
def test_routes_that_depend_on_times_are_refused() -> None:
    alike = ("workload.requests=2", "workload.prompt_tokens=9", "workload.shared_prefix=9")
    with pytest.raises(ConfigError, match="least_outstanding: depends on times"):
        planned(*RUN, *alike, TWO, "device.routing=least_outstanding")
