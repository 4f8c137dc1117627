"""Runs whose requests share prefixes, with the smallest model on the cpu device: columns, hits, order and checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support.processes.ended_runs import Ran, assert_ended_well, ended_runs

from launchopt.arrivals.mooncake import read_prompts
from launchopt.prefixes.simulation import oracle
from launchopt.recording import results

LINES = (
    {"timestamp": 0, "input_length": 1030, "output_length": 2, "hash_ids": [0, 1, 2]},
    {"timestamp": 1, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]},
    {"timestamp": 2, "input_length": 1026, "output_length": 2, "hash_ids": [0, 1, 3]},
    {"timestamp": 3, "input_length": 1024, "output_length": 2, "hash_ids": [0, 1]},
)
LAYER = "device=cpu model=tiny workload=layer workload.kv=paged workload.cache=hot record.launches=none"
ALIKE = (
    "workload.requests=5 workload.prompt_tokens=40 workload.shared_prefix=33 workload.page_tokens=8 workload.tokens=3"
)
CONTINUOUS = "scheduler=continuous scheduler.chunk_tokens=16 scheduler.budget_tokens=64 sampling=greedy"
TORCH = ",torch_eager" if find_spec("torch") else ""
RUNS = {
    "none": f"{LAYER} {ALIKE} {CONTINUOUS} mode=coalesced against=[batched]",
    "hash": f"{LAYER} {ALIKE} {CONTINUOUS} mode=coalesced against=[batched{TORCH}] repeats=2"
    " scheduler.prefixes=hash record.commands=all",
    "radix": f"{LAYER} {ALIKE} {CONTINUOUS} mode=coalesced against=[]"
    " scheduler.prefixes=radix scheduler.prefix_blocks=6",
    "trace": f"{LAYER} {CONTINUOUS} scheduler.chunk_tokens=512 scheduler.budget_tokens=1024 scheduler.prefixes=hash"
    " workload.page_tokens=512 mode=coalesced against=[] arrival=replay arrival.path=trace.jsonl arrival.speed=1000",
}
INPUTS = {"trace.jsonl": "".join(f"{json.dumps(line)}\n" for line in LINES)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """The run of that name, when it has ended."""
    with ended_runs(tmp_path_factory.mktemp("prefixes"), RUNS, INPUTS) as ended:
        yield ended


@pytest.mark.parametrize("name", RUNS)
def test_runs_end_well(name: str, ran: Callable[[str], Ran]) -> None:
    assert_ended_well(ran(name))
    for row in ran(name).rows.values():
        assert row["verified"]


def test_without_it_the_columns_are_empty(ran: Callable[[str], Ran]) -> None:
    for row in ran("none").rows.values():
        assert row["scheduler"] == "continuous"
        assert row["prefix_hit_rate"] is row["cached_tokens"] is row["prefix_evicted_blocks"] is None
        assert row["prefix_host_ns_per_token"] is None


def test_columns_say_what_was_cached(ran: Callable[[str], Ran]) -> None:
    for row in ran("hash").rows.values():
        assert row["scheduler"] == "continuous, prefixes hash"
        assert row["prefix_hit_rate"] == pytest.approx(4 * 4 / (5 * 5))
        assert row["cached_tokens"] == 4 * 32
        assert row["prefix_evicted_blocks"] == 0
        assert row["prefix_host_ns_per_token"] > 0
    assert len({row["token_hash"] for row in ran("hash").rows.values()}) == 1
    notices = results.read_manifest(ran("hash").written)["notices"]
    assert any(each.startswith("prefixes: 128 of 200 tokens of prompts are cached, 64.0% of ") for each in notices)


def test_a_cache_as_large_as_one_request_keeps_what_all_share(ran: Callable[[str], Ran]) -> None:
    """Each request takes all six blocks, and evicts those behind the shared ones."""
    for row in ran("radix").rows.values():
        assert row["scheduler"] == "continuous, prefixes radix"
        assert row["cached_tokens"] == 4 * 32
        assert row["prefix_evicted_blocks"] == 4
    (notice,) = (each for each in results.read_manifest(ran("radix").written)["notices"] if "prefixes: " in each)
    assert notice.endswith("; blocks evicted: 4")


def test_only_the_first_request_computes_the_prefix_and_the_others_wait_for_it(ran: Callable[[str], Ran]) -> None:
    commands = ran("hash").table("commands")
    for _, part in commands.groupby(["mode", "repeat"]):
        columns = part.groupby(["request", "step"])["n"].max().groupby("request").unique()
        prompts = [[n for n in columns[request].tolist() if n > 1] for request in range(5)]
        assert prompts == [[16, 8], *[[8]] * 4]
        first = part[part["request"] == 0]
        shared_ns = first[first["n"] == 16]["device_end_ns"].max()  # its second chunk ends at token 32
        assert (part[part["request"] > 0]["submit_start_ns"] >= shared_ns).all()


def test_fewer_columns_are_computed_with_than_without(ran: Callable[[str], Ran]) -> None:
    one, other = (row for name in ("hash", "none") for key, row in ran(name).rows.items() if key == ("coalesced", 0))
    assert one["commands"] < other["commands"]
    assert one["tokens"] == other["tokens"] == 15


def test_hits_of_a_trace_equal_those_of_its_hash_ids(ran: Callable[[str], Ran], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(INPUTS["trace.jsonl"])
    hits, blocks = oracle(read_prompts(path))
    assert (hits, blocks) == (4, 7)
    (row,) = ran("trace").rows.values()
    assert row["prefix_hit_rate"] == pytest.approx(hits / blocks)
    assert row["cached_tokens"] == 1024 + 512, "the last block of a prompt that is cached whole is computed again"
    assert np.isfinite(row["ttft_p50_ms"])
