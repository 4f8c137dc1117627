"""workload=trace from the outside: replayed in order and on time through several modes, and refused in few words."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir
from support.paths import ROOT
from support.processes.own_process import alone, environ_of, without_progress

from launchopt.errors import LaunchoptError
from launchopt.recording import results
from runner.config.objects import to_config
from runner.config.schema import register
from runner.help.settings import help_text
from runner.plan.plan import Plan, make_plan

BERT = ROOT.parent / "shared/data/traces/h100_bert_small.kineto.json.gz"
BF16, DOUBLE = "c10::BFloat16", "double"
MODES = "mode=batched against=[baseline,grouped,pointer_array]"


def op(name: str, ts: float, *dims: list[int], tid: int = 1, kind: str = BF16) -> dict[str, Any]:
    """An operator of 5 us."""
    arguments = {"Input Dims": list(dims), "Input type": [kind if each else "Scalar" for each in dims]}
    event = {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", "pid": 1, "tid": tid}
    return {**event, "ts": 1e6 + ts, "dur": 5, "args": arguments}


# Two linear layers, one of which calls addmm, batched products of another thread, and one of another type.
EVENTS = [
    op("linear", 0, [3, 32], [64, 32], [64]),
    op("addmm", 1, [64], [3, 32], [32, 64], [], []),
    op("linear", 40, [3, 64], [32, 64], [32]),
    op("bmm", 2_000.25, [4, 3, 8], [4, 8, 3], tid=2),
    op("mm", 30_000, [3, 32], [32, 64], kind=DOUBLE),
]
DUE_US = [0, 39, *[1_999.25] * 4, 29_999]
SHAPES = {"64x3x32": 2, "32x3x64": 1, "3x3x8": 4}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "some.trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return path


def replayed(arguments: str, folder: Path, device: str = "cpu") -> tuple[str, list[results.Row]]:
    """What was printed, and the rows."""
    call = [sys.executable, "-m", "runner", "workload=trace", f"device={device}", *alone(arguments.split())]
    call += ["record.commands=all", f"hydra.run.dir={folder}"]
    done = subprocess.run(call, cwd=folder.parent, env=environ_of(), capture_output=True, text=True, timeout=300)
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    return done.stdout, results.read_summaries([folder])


def in_order(folder: Path, mode: str) -> list[dict[str, Any]]:
    commands = pq.read_table(folder / "commands.parquet").to_pylist()
    return sorted((row for row in commands if row["mode"] == mode), key=lambda row: row["seq"])


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_every_mode_replays_it_in_order_and_on_time(trace: Path, tmp_path: Path, device: str) -> None:
    path = f"workload.path={trace.name}"
    message, rows = replayed(f"{path} {MODES} repeats=1 workload.repeat=2 workload.speed=0.5", tmp_path / "out", device)
    assert "4 of 4 GEMM operators of some.trace.json: 14 commands of 3 shapes from 2 threads" in message
    assert "replayed in bf16: 1 of double" in message
    assert "modes that change the order of its commands ignore dependencies" in message
    assert {row["mode"] for row in rows} == {"batched", "baseline", "grouped", "pointer_array"}
    for row in rows:
        assert (row["status"], row["verified"], row["commands"]) == ("ok", True, 14)
        assert (row["workload"], row["model"], row["dtype"]) == ("trace", "some", "bf16")
        assert (row["requests"], row["layers"], row["arrival"]) == (2, None, "replay")
        assert row["ordering"] == ("per_request" if row["mode"] == "baseline" else "none")
        assert row["arrival_rate_per_s"] == pytest.approx(14 / 120.006e-3)
        assert row["wall_ms"] > 120.006
        assert sorted(row["shapes"].split(", ")) == sorted(SHAPES)
    turn_us = 30_004 / 0.5
    due_us = [turn * turn_us + due / 0.5 for turn in range(2) for due in DUE_US]
    for mode in ("baseline", "batched"):
        commands = in_order(tmp_path / "out", mode)
        assert [row["enqueue_ns"] / 1e3 for row in commands] == due_us
        assert [row["request"] for row in commands] == [0, 0, 1, 1, 1, 1, 0] * 2
        assert all(row["submit_start_ns"] / 1e3 > due for row, due in zip(commands, due_us, strict=True))


def test_without_gaps_it_is_a_closed_loop(trace: Path, tmp_path: Path) -> None:
    path = f"workload.path={trace.name} workload.gaps=none workload.commands=4 workload.dtype=fp32 workload.cache=hot"
    message, (row,) = replayed(f"{path} mode=graph", tmp_path / "out")
    assert "3 of 4 GEMM operators" in message
    assert "replayed in fp32: 3 of c10::BFloat16" in message
    assert (row["commands"], row["dtype"], row["cache"], row["verified"]) == (4, "fp32", "hot", True)
    assert (row["arrival"], row["arrival_rate_per_s"], row["overloaded"]) == ("closed", None, None)


def planned(*overrides: str) -> Plan:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("config", overrides=["workload=trace", "device=cpu", *overrides])
    return make_plan(to_config(composed), composed)


def refused(*overrides: str) -> str:
    with pytest.raises(LaunchoptError) as caught:
        planned(*overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.skipif(not BERT.is_file(), reason=f"needs {BERT}")
def test_a_real_trace_of_an_h100() -> None:
    plan = planned(f"workload.path={BERT}", "mode=batched", "against=[baseline]")
    assert {str(shape): count for shape, count in plan.stream.counts.items()} == {
        "512x141x512": 17,
        "2048x141x512": 4,
        "512x141x2048": 4,
        "30522x141x512": 1,
    }
    assert plan.stream.dtype.name == "bf16"
    assert plan.stream.requests == 1


def written(folder: Path, *events: Any) -> str:
    (folder / "t.json").write_text(json.dumps({"traceEvents": list(events)}))
    return f"workload.path={folder / 't.json'}"


def nsys_export(folder: Path) -> str:
    with sqlite3.connect(folder / "t.sqlite") as base:
        base.execute("create table StringIds (id, value)")
    base.close()
    return f"workload.path={folder / 't.sqlite'}"


FLOAT8 = op("_scaled_mm", 0, [3, 32], [32, 64], kind="c10::Float8_e4m3fn")
SHAPELESS = {**op("mm", 0), "args": {}}
HUGE = op("mm", 0, [2_000_000, 3], [3, 2_000_000])
REFUSALS: dict[str, tuple[Callable[[Path], str], str, str]] = {
    "no path": (lambda folder: "seed=0", "", "workload.path is required: Kineto"),
    "no file": (lambda folder: "workload.path=nope.json", "", "nope.json: cannot be read: No such file"),
    "nsys": (nsys_export, "", "t.sqlite: an nsys export, which holds no shapes: record one with torch.profiler"),
    "no GEMMs": (lambda folder: written(folder, op("add", 0, [2], [2])), "", "t.json: a trace without GEMMs"),
    "no shapes": (lambda folder: written(folder, SHAPELESS), "", "t.json: a trace without shapes of its 1 GEMMs"),
    "types": (
        lambda folder: written(folder, FLOAT8),
        "",
        "workload.dtype=null: the trace's GEMMs have c10::Float8_e4m3fn: give fp32, fp16 or bf16",
    ),
    "memory": (lambda folder: written(folder, HUGE), "", "lower workload.commands or workload.repeat"),
    "commands": (lambda folder: written(folder, *EVENTS), "workload.commands=8", "must be at most 7"),
    "no commands": (
        lambda folder: written(folder, *EVENTS),
        "workload.commands=0",
        "workload.commands=0: out of range; allowed: from 1",
    ),
    "repeat": (
        lambda folder: written(folder, *EVENTS),
        "workload.repeat=0",
        "workload.repeat=0: out of range",
    ),
    "speed": (
        lambda folder: written(folder, *EVENTS),
        "workload.speed=0",
        "workload.speed=0.0: out of range; allowed: finite numbers above",
    ),
    "years": (lambda folder: written(folder, *EVENTS), "workload.speed=1e-13", "would be due in over 146 years"),
    "arrival": (
        lambda folder: written(folder, *EVENTS),
        "arrival=constant arrival.rate_per_s=9",
        "arrival=constant: workload=trace brings its own: workload.gaps=trace, or none for a closed loop",
    ),
    "ordering": (lambda folder: written(folder, *EVENTS), "ordering=violated", "workload=trace has no order to break"),
    "tokens": (lambda folder: written(folder, *EVENTS), "slo.ttft_ms=5", "workload=trace has no tokens"),
    "model": (lambda folder: written(folder, *EVENTS), "model=tiny", "workload=trace has its own shape"),
    "mode": (lambda folder: written(folder, *EVENTS), "mode=fused_qkv", "mode=fused_qkv: merges q, k and v"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_replayed_is_refused_in_few_words(case: str, tmp_path: Path) -> None:
    source, more, words = REFUSALS[case]
    assert words in refused(source(tmp_path), *more.split())


def test_a_refusal_takes_no_time_and_leaves_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    call = [sys.executable, "-m", "runner", "workload=trace", "workload.path=missing.json", "device=cpu"]
    done = subprocess.run(call, cwd=tmp_path, env=environ_of(), capture_output=True, text=True, timeout=60)
    print(f"{time.monotonic() - began:.2f} s")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: missing.json: cannot be read: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_float8_is_replayed_where_a_type_is_given(tmp_path: Path) -> None:
    plan = planned(written(tmp_path, FLOAT8, op("mm", 9, [3, 0], [0, 4])), "workload.dtype=bf16")
    assert plan.stream.dtype.name == "bf16"
    assert plan.notices[-2:] == (
        "trace: operators replayed in bf16: 1 of c10::Float8_e4m3fn",
        "trace: operators left out: 1 of no elements",
    )


def test_a_recording_that_takes_over_a_minute_to_replay_is_announced(tmp_path: Path) -> None:
    path = written(tmp_path, op("mm", 0, [1, 512], [512, 256]), op("mm", 9e9, [1, 512], [512, 256]))
    said = "trace: each repeat takes 9,000 s at this pace: workload.speed=N replays it N times as fast"
    assert any(notice.startswith(said) for notice in planned(path).notices)
    for faster in ("workload.speed=1000", "workload.gaps=none"):
        assert not any("each repeat takes" in notice for notice in planned(path, faster).notices)


def test_weights_are_cold_for_each_shape_and_hot_for_all(tmp_path: Path) -> None:
    many = [op("mm", 10 * at, [1, 512], [512, m]) for at, m in enumerate([256, 512] * 40)]
    path = written(tmp_path, *many)
    cold = planned(path, "workload.repeat=2000", "workload.gaps=none")
    for arena, slots in cold.stream.arenas.items():
        if arena.is_weight:
            assert slots * arena.slot_bytes >= 4 * cold.info.cache_bytes
            assert slots % 64 == 0
    hot = planned(path, "workload.repeat=2000", "workload.gaps=none", "workload.cache=hot")
    assert sum(arena.slot_bytes * slots for arena, slots in hot.stream.arenas.items() if arena.is_weight) <= max(
        hot.info.cache_bytes // 2, 512 * (256 + 512) * 2
    )
    fixed = planned(path, "workload.replicas=3")
    assert {slots for arena, slots in fixed.stream.arenas.items() if arena.is_weight} == {3}


def test_help_names_it() -> None:
    assert ", qkv, trace\n" in " ".join(help_text([]).split(" ")).replace(",\n          ", ", ")
