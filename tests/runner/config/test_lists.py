"""workload=list from the outside: run in order through several modes, and refused in few words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.config.composing import planned
from support.processes.ended_runs import Keeper

from launchopt.errors import LaunchoptError
from launchopt.traces import gemm_list
from launchopt.workloads import list as list_workload
from runner.help.settings import help_text

LAYER = """\
m,n,k,count,weight,group
96,1,64,4,qkv,attention
64,1,64,4,o,projection
128,1,64,4,gate,up
128,1,64,4,up,up
64,1,128,4,down,down
"""
COMMANDS, GROUPS = 20, [4, 4, 8, 4]
MODES = "mode=coalesced against=[baseline,batched,grouped,graph,pointer_array]"


def written(folder: Path, text: str = LAYER) -> str:
    (folder / "gemms.csv").write_text(text)
    return "workload.path=gemms.csv"


def test_every_mode_runs_it_and_groups_follow_one_another(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "stderr")
    path = written(tmp_path)
    try:
        ran = keeper.run(
            f"workload=list {path} workload.repeat=3 workload.shuffle=true device=cpu {MODES} repeats=1 "
            "record.commands=all",
            tmp_path,
        )
        assert (ran.exit_code, ran.stderr) == (0, "")
        swept = keeper.run(
            f"-m workload=list {path} device=cpu ordering=none,per_request mode=batched against=[] arrival=constant "
            "arrival.rate_per_s=2000",
            tmp_path,
        )
        assert (swept.exit_code, swept.stderr) == (0, "")
    finally:
        keeper.close()
    assert "list: 5 rows of gemms.csv: 60 commands of 4 shapes, fp32, 4 groups in order" in ran.stdout
    rows = {mode: row for (mode, _), row in ran.rows.items()}
    assert rows.keys() == {"coalesced", "baseline", "batched", "grouped", "graph", "pointer_array"}
    group_of = np.tile(np.repeat(np.arange(4), GROUPS), 3) + np.repeat(np.arange(3), COMMANDS) * 4
    commands = ran.table("commands")
    for mode, row in rows.items():
        assert (row["status"], row["verified"], row["commands"]) == ("ok", True, 3 * COMMANDS)
        assert (row["workload"], row["model"], row["independent"]) == ("list", "gemms", False)
        assert (row["ordering"], row["requests"], row["layers"]) == ("per_request", 1, None)
        own = commands[commands["mode"] == mode]
        if mode == "graph":  # a launch takes a whole pass; tests/modes/test_listed_gemms.py looks at the order within
            assert (row["launch_calls"], row["batches"]) == (3, 3)
            _check_groups(own, group_of // 4)
        else:
            _check_groups(own, group_of)
    assert rows["batched"]["flush_stall"] > 0
    assert {row["ordering"] for row, _ in swept.jobs()} == {"none", "per_request"}
    assert {(row["commands"], row["arrival"], row["verified"]) for row, _ in swept.jobs()} == {(20, "constant", True)}


def _check_groups(commands: pd.DataFrame, group_of: np.ndarray) -> None:
    """Assert that all commands of a group are launched before those of the next."""
    starts = commands.sort_values("seq")["submit_start_ns"].to_numpy()
    of_groups = [starts[group_of == group] for group in range(group_of[-1] + 1)]
    assert all(before.max() < after.min() for before, after in pairwise(of_groups))


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *overrides: str) -> str:
    monkeypatch.chdir(folder)
    path = written(folder, text)
    with pytest.raises(LaunchoptError) as caught:
        planned("workload=list", path, *overrides)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plan_reads_the_list_once_and_a_changed_list_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reads = []
    whole = gemm_list.read_gemm_list
    monkeypatch.setattr(list_workload, "read_gemm_list", lambda path: reads.append(path) or whole(path))
    for text, commands in ((LAYER, 20), ("m,n,k\n8,1,8\n", 1)):
        plan = planned("workload=list", written(tmp_path, text), "device=cpu", "mode=batched")
        assert plan.stream.commands == commands
    assert len(reads) == 2


def test_a_path_may_begin_in_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path)
    assert planned("workload=list", "workload.path='~/gemms.csv'", "device=cpu", "mode=batched").stream.commands == 20


INDEPENDENT = "m,n,k\n64,1,64\n"
LARGE = "m,n,k\n2147483647,2147483647,2147483647\n"
REFUSALS: dict[str, tuple[str, str, str]] = {
    "row": ("m,n,k\n64,-1,64\n", "", "gemms.csv:2: n is '-1'; allowed: whole numbers from 1 to 2147483647"),
    "no file": (LAYER, "workload.path=none.csv", "none.csv: cannot be read: No such file or directory"),
    "no path": (LAYER, "workload.path=???", "workload.path is required: "),
    "count": (
        "m,n,k,count\n1,1,1,2147483647\n1,1,1,1\n",
        "",
        "gemms.csv: 2147483648 commands; allowed: at most 2147483647",
    ),
    "repeat": (
        LAYER,
        "workload.repeat=2147483647",
        "workload.repeat=2147483647: the list has 20 commands, and a run at most 2147483647: give at most 107374182",
    ),
    "records": ("m,n,k,count\n1,1,1,2147483647\n", "", "lower workload.repeat, or count, m, n or k in the list"),
    "memory": (LARGE, "", "lower workload.repeat, or count, m, n or k in the list"),
    "dtypes": (
        "m,n,k,dtype\n1,1,1,fp16\n1,1,1,bf16\n",
        "",
        "workload.dtype=null: the list has fp16 and bf16, and a run has one: give one of them",
    ),
    "order": (LAYER, "ordering=violated", "workload=list has no order to break"),
    "steps": (LAYER, "mode=fused_qkv", "mode=fused_qkv: merges q, k and v"),
    "no shared weight": (
        INDEPENDENT,
        "mode=coalesced",
        "joins commands that share a weight, and here none do: mode=batched needs no shared weight",
    ),
    "model": (LAYER, "model=tiny", "model=tiny: workload=list has its own shape"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_run_is_refused_in_few_words(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, more, words = REFUSALS[case]
    assert words in refused(tmp_path, monkeypatch, text, *more.split())


def test_a_dtype_is_converted_where_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "m,n,k,dtype\n1,1,1,fp16\n1,1,1,bf16\n1,1,1,\n")
    plan = planned("workload=list", path, "workload.dtype=bf16")
    assert plan.stream.dtype.name == "bf16"
    assert plan.notices[-1] == "list: rows run in bf16: 1 of fp16"
    assert plan.stream.independent


def test_one_of_a_kind_is_counted_in_the_singular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned("workload=list", written(tmp_path, "m,n,k\n4,1,8\n"), "workload.repeat=1", "mode=batched")
    assert "list: 1 row of gemms.csv: 1 command of 1 shape, fp32" in plan.notices


def test_the_notice_says_what_merging_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "m,n,k,weight,group,input\n4,1,8,q,a,x\n2,1,8,k,a,x\n2,1,8,o,b,\n")
    plan = planned("workload=list", path, "workload.merged=true", "mode=batched")
    assert any("3 rows of gemms.csv, merged into 2: 2 commands of 2 shapes" in notice for notice in plan.notices)
    path = written(tmp_path, "m,n,k,weight,group,input\n4,1,8,q,a,x\n2,2,8,k,a,x\n")
    plan = planned("workload=list", path, "workload.merged=true", "mode=batched")
    assert any("fp32, 1 group" in notice and "groups" not in notice for notice in plan.notices)
    assert any("workload.merged=true merges nothing" in notice for notice in plan.notices)


def test_a_list_whose_m_may_be_tokens_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    swapped = planned("workload=list", written(tmp_path, "M,N,K\n16,6144,4096\n16,4096,4096\n"), "mode=batched")
    assert any("if your tool calls the tokens M" in notice for notice in swapped.notices)
    usual = planned("workload=list", written(tmp_path, "m,n,k\n6144,16,4096\n8,16,8\n"), "mode=batched")
    assert not any("tokens M" in notice for notice in usual.notices)


def test_weights_are_cold_or_hot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "m,n,k,count,weight\n256,1,512,4,one\n512,1,512,4,two\n256,1,256,4,\n")

    def weights(*overrides: str) -> dict[int, int]:
        stream = planned("workload=list", path, "workload.repeat=2000", *overrides).stream
        return {arena.slot_bytes: slots for arena, slots in stream.arenas.items() if arena.is_weight}

    cache_bytes = planned("workload=list", path).info.cache_bytes
    cold, hot, fixed = weights(), weights("workload.cache=hot"), weights("workload.replicas=3")
    named = sum(size * slots for size, slots in cold.items() if size != 256 * 256 * 4)
    assert 4 * cache_bytes <= named < 4 * cache_bytes + (256 + 512) * 512 * 4
    assert cold[256 * 256 * 4] * 256 * 256 * 4 >= 4 * cache_bytes
    assert sum(size * slots for size, slots in hot.items()) <= cache_bytes // 2
    assert set(fixed.values()) == {3}


def test_help_names_it() -> None:
    assert "list" in help_text([])
    assert "workload.shuffle" in help_text(["workload=list"])
