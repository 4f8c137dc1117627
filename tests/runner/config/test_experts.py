"""workload=moe from the outside: run in order through several modes, and refused in few words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.config.composing import planned
from support.processes.ended_runs import Keeper

from launchopt.errors import LaunchoptError
from launchopt.recording.results import Row
from launchopt.streams.chains.chain import Stream
from launchopt.streams.experts.stream import ExpertStream
from runner.help.settings import help_text

MOE = "workload=moe model=tiny_moe workload.steps=6 workload.tokens=8 workload.cache=hot device=cpu"
MODES = "mode=grouped against=[baseline,batched,pointer_array]"
SINGLE = 6  # commands of a step besides those of experts


def test_every_mode_runs_it_and_the_distribution_is_in_the_result(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "stderr")
    try:
        ran = keeper.run(f"{MOE} {MODES} workload.dtype=bf16", tmp_path)
        assert (ran.exit_code, ran.stderr) == (0, "")
    finally:
        keeper.close()
    assert "6 steps of 8 tokens, 4 of 16 experts, routing power_law 1.2: " in ran.stdout
    rows: dict[str, Row] = {mode: row for (mode, _), row in ran.rows.items()}
    assert rows.keys() == {"grouped", "baseline", "batched", "pointer_array"}
    for row in rows.values():
        assert (row["status"], row["verified"], row["checked_commands"]) == ("ok", True, row["commands"])
        assert (row["workload"], row["model"], row["ordering"], row["independent"]) == (
            *("moe", "tiny_moe", "per_request"),
            False,
        )
        assert (row["expert_routing"], row["experts"], row["experts_per_token"]) == ("power_law 1.2", 16, 4)
        assert (row["steps"], row["step_tokens"]) == (6, 8)
        assert row["commands"] == row["gemms"] + 5 * 6 == 6 * (SINGLE + 2 * row["active_experts"])
        assert 4 <= row["active_experts"] <= 16
        assert 8 * 4 / 16 <= row["largest_expert_tokens"] <= 8
    assert rows["baseline"]["step_wall_us"] == pytest.approx(rows["baseline"]["wall_ms"] * 1e3 / 6)
    assert rows["baseline"]["launch_calls_per_step"] == rows["baseline"]["commands"] / 6
    assert rows["grouped"]["launch_calls_per_step"] == 8
    assert 8 < rows["batched"]["launch_calls_per_step"] <= rows["baseline"]["launch_calls_per_step"]


def stream_of(*overrides: str) -> ExpertStream:
    stream: Stream = planned("workload=moe", "model=tiny_moe", "device=cpu", "mode=baseline", *overrides).stream
    assert isinstance(stream, ExpertStream)
    return stream


def test_a_replay_has_the_experts_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ids.csv").write_text("3,0,1,2\n4,5,6,7\n")
    replay = ["workload.routing=replay", "workload.ids='~/ids.csv'", "workload.tokens=2", "workload.steps=3"]
    stream = stream_of(*replay)
    assert stream.routing.name == "replay ids.csv"
    assert stream.routing.chosen.tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3


def test_weights_are_cold_or_hot() -> None:
    cache_bytes = planned("workload=moe", "model=tiny_moe", "device=cpu", "mode=baseline").info.cache_bytes
    cold, hot = stream_of("workload.steps=100000", "workload.tokens=1"), stream_of("workload.cache=hot")
    least = int(cold.weight_bytes_by_step.min())
    assert 4 * cache_bytes <= cold.input_bytes
    assert least * (cold.replicas - 1) < 4 * cache_bytes
    weights = sum(arena.slot_bytes * slots for arena, slots in hot.arenas.items() if arena.is_weight)
    assert weights <= cache_bytes // 2
    assert stream_of("workload.replicas=3").replicas == 3


def test_a_seed_draws_the_routing() -> None:
    one, again, other = (stream_of(f"seed={seed}").routing.chosen for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


REFUSALS: dict[str, tuple[str, str]] = {
    "top_k": ("model.experts_per_token=17", "model.experts_per_token=17: must be from 1 to 16 with model.experts=16"),
    "no experts": ("model=tiny", "model.experts=0: model=tiny has no experts for workload=moe: use model=tiny_moe"),
    "experts": ("model.experts=0", "model.experts=0: model=tiny_moe has no experts"),
    "negative experts": ("model.experts=-1", "model.experts=-1: out of range; allowed: from 0 to 4096"),
    "no gate": ("model.gated=false", "model.gated=false: experts of workload=moe have a gate"),
    "exponent": ("workload.exponent=-0.1", "workload.exponent=-0.1: out of range; allowed: from 0 to 16"),
    "nan": ("workload.exponent=nan", "workload.exponent=nan: out of range; allowed: from 0 to 16"),
    "no file": (
        "workload.routing=replay workload.ids=none.csv",
        "none.csv: cannot be read: No such file or directory",
    ),
    "no path": ("workload.routing=replay", "workload.routing=replay: needs a file: give workload.ids=FILE"),
    "path alone": ("workload.ids=ids.csv", "workload.ids=ids.csv: belongs to workload.routing=replay"),
    "beyond": ("workload.routing=replay workload.ids=beyond.csv", "beyond.csv:1: expert is 16; allowed: 0 to 15"),
    "twice": ("workload.routing=replay workload.ids=twice.csv", "twice.csv:1: the same expert twice: '1,1,2,3'"),
    "length": ("workload.routing=replay workload.ids=short.csv", "short.csv: 1 lines, one per token; expected a multi"),
    "order": ("ordering=none", "ordering=none: workload=moe is made of commands that need those before"),
    "violated": ("ordering=violated", "ordering=violated: workload=moe has no order to break"),
    "arrival": ("arrival=poisson arrival.rate_per_s=1", "arrival=poisson: workload=moe brings its own: each step"),
    "mode": ("mode=torch_eager", "mode=torch_eager: cannot launch COMBINE, EXPERT_MAP, PERMUTE, TOP_K"),
    "memory": ("workload.steps=1000000 workload.tokens=65536", "lower workload.steps or workload.tokens"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_run_is_refused_in_few_words(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more, words = REFUSALS[case]
    monkeypatch.chdir(tmp_path)
    for name, text in (("beyond", "0,1,2,16\n"), ("twice", "1,1,2,3\n"), ("short", "0,1,2,3\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    with pytest.raises(LaunchoptError) as caught:
        planned("workload=moe", "model=tiny_moe", "device=cpu", *more.split())
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert words in str(caught.value)


def test_help_names_it() -> None:
    assert "moe" in help_text([])
    assert "workload.exponent" in help_text(["workload=moe"])


def test_weights_of_experts_are_quantised_and_the_router_is_not() -> None:
    stream = stream_of("workload.weights=fp8", "workload.dtype=bf16")
    router, *of_experts = stream.layout.weights
    assert not router.packing
    assert {str(key.packing) for key in of_experts} == {str(stream.packing)} == {"fp8 per channel"}
    plain = stream_of("workload.dtype=bf16")
    assert stream.weight_bytes_by_step.max() < 0.6 * plain.weight_bytes_by_step.max()


def test_experts_whose_rows_are_no_whole_blocks_are_refused() -> None:
    why = "model.expert_intermediate=64 is no multiple of a block: use a multiple of 128, or workload.scales=channel"
    with pytest.raises(LaunchoptError, match=why):
        stream_of("workload.weights=int4")
    assert str(stream_of("workload.weights=int4", "workload.scales=channel").packing) == "int4 per channel"


def test_a_notice_says_that_a_shared_expert_does_not_run() -> None:
    plan = planned("workload=moe", "model=tiny_moe", "model.shared_intermediate=64", "workload.steps=2")
    assert "tiny_moe: workload=moe runs no shared expert, an MLP that every token takes" in plan.notices
