"""The application from the outside: `python -m runner ...` on the cpu device, and what it leaves.

The runs that tests look at are all in `RUNS`; they are made once.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.paths import ROOT
from support.processes.ended_runs import Ran, ended_runs

from launchopt.modes import MODES
from launchopt.recording import results

COMMANDS = 500
FLUSHES = ("full", "deadline", "idle", "stall", "drain")
SMALL = f"device=cpu workload.m=16 workload.k=64 workload.commands={COMMANDS} workload.cache=hot"
TINY = "device=cpu model=tiny workload.cache=hot"
CHAINS = (
    "sampling=top_k scheduler=continuous scheduler.chunk_tokens=4 scheduler.budget_tokens=16 against=[baseline]"
    " repeats=1 record.tokens=all record.commands=all slo.ttft_ms=1e6"
)
RUNS = {
    "pair": f"{SMALL} against=[baseline] repeats=2 record.commands=all",
    "bare": f"{SMALL} record.launches=none",
    "all": f"{SMALL} mode=baseline against=[all] record.launches=none",
    "sweep": f"-m {SMALL} mode=baseline,batched batching.max_batch=4,16",
    "partly": f"-m {SMALL} batching.max_batch=0,4",
    "chains": f"{TINY} workload=decode workload.requests=5 workload.prompt_tokens=6 workload.tokens=4 {CHAINS}",
    "violated": f"{TINY} workload=decode workload.requests=5 workload.tokens=4 ordering=violated",
    "open": f"{SMALL} arrival=constant arrival.rate_per_s=20000 record.commands=all",
    "help": "--help",
    "cfg": "--cfg job workload=decode batching.max_batch=7",
}
TYPED = ("bare", "sweep", "violated", "help", "cfg")  # each a process, as users start it


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """The run of that name, when it has ended."""
    with ended_runs(tmp_path_factory.mktemp("app"), RUNS, {}, TYPED) as ended:
        yield ended


def config_of(path: Path) -> Mapping[str, Any]:
    config: Mapping[str, Any] = json.loads(pq.read_schema(path).metadata[b"launchopt.config"])
    return config


def test_a_bare_run_leaves_three_files_and_names_their_folder_last(ran: Callable[[str], Ran]) -> None:
    run = ran("bare")
    assert run.stderr == ""
    assert run.exit_code == 0
    assert run.folder / run.stdout.splitlines()[-1] == run.written
    names = sorted(path.name for path in run.written.iterdir())
    assert names == ["histograms.parquet", "manifest.json", "summary.parquet"]
    assert [path.name for path in run.folder.iterdir()] == ["outputs"]


def test_tables_are_written_as_asked(ran: Callable[[str], Ran]) -> None:
    names = sorted(path.name for path in ran("pair").written.iterdir())
    always = ["histograms.parquet", "launches.parquet", "manifest.json", "summary.parquet"]
    assert names == ["commands.parquet", *always]
    names = sorted(path.name for path in ran("sweep").job_folders()[0].iterdir())
    assert names == always
    names = sorted(path.name for path in ran("chains").written.iterdir())
    assert names == ["commands.parquet", *always, "tokens.parquet"]


@pytest.mark.parametrize("name", RUNS)
def test_piped_output_is_plain_text(name: str, ran: Callable[[str], Ran]) -> None:
    assert ran(name).stdout
    assert "\x1b" not in ran(name).stdout + ran(name).stderr


def test_modes_are_taken_in_turn(ran: Callable[[str], Ran]) -> None:
    rows = results.read_summaries([ran("pair").written])
    assert sorted((row["mode"], row["repeat"]) for row in rows) == [
        ("baseline", 0),
        ("baseline", 1),
        ("batched", 0),
        ("batched", 1),
    ]
    assert [row["repeat"] for row in rows] == [0, 0, 1, 1]  # as they ran
    assert all(row["interleaved"] for row in rows)
    assert not ran("bare").row["interleaved"]


def test_all_modes_are_run_or_refused_with_a_reason(ran: Callable[[str], Ran]) -> None:
    run = ran("all")
    assert (run.exit_code, run.stderr) == (0, "")
    rows = results.read_summaries([run.written])
    refused = results.read_manifest(run.written)["refused"]
    assert sorted([*{row["mode"] for row in rows}, *refused]) == sorted(MODES)
    assert len(rows) == 5 * len({row["mode"] for row in rows})
    assert all((row["status"], row["verified"]) == ("ok", True) for row in rows)
    (notice,) = [line for line in run.stdout.splitlines() if "left out" in line]
    assert notice.startswith(f"{len(refused)} modes are left out: ")
    assert all(mode in notice for mode in refused), "the manifest has the reasons"
    assert results.read_manifest(ran("pair").written)["refused"] == {}


def test_rows_add_up(ran: Callable[[str], Ran]) -> None:
    run = ran("pair")
    manifest = results.read_manifest(run.written)
    launches = pd.read_parquet(run.written / "launches.parquet")
    for row in results.read_summaries([run.written]):
        assert (row["status"], row["verified"], row["commands"]) == ("ok", True, COMMANDS)
        assert row["max_rel_error"] <= row["tolerance"]
        assert sum(row[f"flush_{reason}"] for reason in FLUSHES) == row["batches"]
        assert row["batch_size_mean"] == COMMANDS / row["batches"]
        own = launches[(launches["mode"] == row["mode"]) & (launches["repeat"] == row["repeat"])]
        assert len(own) == row["launch_calls"]
        assert own["batch_size"].sum() == COMMANDS
        assert (row["launch_calls"] == COMMANDS) == (row["mode"] == "baseline")
        assert row["run_id"] == manifest["run_id"] == f"run/{run.written.name}"
        assert row["gpu"] is row["gpu_span_ms"] is row["kernels"] is None
        assert row["wall_ms"] > 0


def test_manifest_and_tables_hold_one_config(ran: Callable[[str], Ran]) -> None:
    run = ran("pair")
    manifest = results.read_manifest(run.written)
    assert (manifest["status"], manifest["repeats_done"]) == ("ok", 4)
    assert manifest["config"]["workload"]["commands"] == COMMANDS
    assert manifest["overrides"] == RUNS["pair"].split()
    for table in ("summary", "launches", "commands"):
        assert config_of(run.written / f"{table}.parquet") == manifest["config"]


def test_commands_join_their_launches(ran: Callable[[str], Ran]) -> None:
    folder = ran("pair").written
    keys = ["mode", "repeat", "launch"]
    commands = pd.read_parquet(folder / "commands.parquet")
    launches = pd.read_parquet(folder / "launches.parquet")
    joined = commands.merge(launches, on=keys, how="left", validate="m:1", suffixes=("", "_launch"), indicator=True)
    assert len(joined) == 4 * COMMANDS
    assert (joined["_merge"] == "both").all()
    for name in ("m", "n", "k", "flush_ns", "submit_start_ns"):
        assert (joined[name] == joined[f"{name}_launch"]).all()
    assert (joined.groupby(keys)["seq"].transform("size") == joined["batch_size"]).all()
    assert (joined["enqueue_ns"] >= 0).all()
    assert (joined["enqueue_ns"] <= joined["flush_ns"]).all()
    assert (joined["flush_ns"] <= joined["submit_start_ns"]).all()
    assert (joined["submit_start_ns"] <= joined["device_end_ns"]).all()
    for _, run in joined.groupby(["mode", "repeat"]):
        assert sorted(run["seq"]) == list(range(COMMANDS))


def test_a_sweep_makes_a_folder_a_job(ran: Callable[[str], Ran]) -> None:
    run = ran("sweep")
    assert run.stderr == ""
    assert run.exit_code == 0
    rows = [row for job in run.job_folders() for row in results.read_summaries([job])]
    assert [(row["mode"], row["max_batch"], row["status"]) for row in rows] == [
        ("baseline", 4, "ok"),  # it has no buckets, and stands for the job with 16, too
        ("batched", 4, "ok"),
        ("batched", 16, "ok"),
    ]
    assert [row["run_id"] for row in rows] == [f"{job.parent.name}/{job.name}" for job in run.job_folders()]
    assert [line.split(":")[0] for line in run.stdout.splitlines() if line.startswith("job ")] == [
        f"job {job} ({job + 1} of 4)" for job in range(4)
    ]
    assert run.stdout.splitlines()[-1].endswith(f" in {run.job_folders()[0].parent.relative_to(run.folder)}")


def test_a_bad_job_does_not_stop_a_sweep(ran: Callable[[str], Ran]) -> None:
    run = ran("partly")
    bad, good = run.job_folders()
    assert run.exit_code == 2
    assert run.stderr == "error: batching.max_batch=0: out of range; allowed: from 1 to 2147483647\n"
    assert [path.name for path in bad.iterdir()] == ["manifest.json"]
    assert "job 0 (1 of 2): batching.max_batch=0: refused" in run.stdout.splitlines()
    refused = results.read_manifest(bad)
    assert refused["status"] == "refused"
    assert refused["error"] == "batching.max_batch=0: out of range; allowed: from 1 to 2147483647"
    assert results.read_manifest(good)["status"] == "ok"


def test_requests_as_chains_from_end_to_end(ran: Callable[[str], Ran]) -> None:
    """Both modes on the same requests: the same texts, and times that are in order."""
    run = ran("chains")
    assert run.stderr == ""
    assert run.exit_code == 0
    rows = results.read_summaries([run.written])
    assert {row["mode"] for row in rows} == {"baseline", "batched"}
    steps = 5 * (2 + 3)  # two chunks of a prompt, and a step for each further token
    for row in rows:
        assert (row["status"], row["verified"], row["ordering"]) == ("ok", True, "per_request")
        assert (row["requests"], row["tokens"], row["commands"]) == (5, 20, 8 * steps + 20)
        assert (row["sampling"], row["sampling_where"], row["scheduler"]) == ("top_k", "cpu", "continuous")
        assert sum(row[f"flush_{reason}"] for reason in FLUSHES) == row["batches"]
        assert row["goodput_per_s"] == pytest.approx(5 / row["wall_ms"] * 1e3)
        assert row["arrival_rate_per_s"] is row["overloaded"] is None
        assert 0 < row["ttft_p50_ms"] <= row["ttft_max_ms"] < row["wall_ms"]
        assert 0 < row["tpot_p50_ms"] <= row["tpot_max_ms"]
        assert row["sampling_ms"] > 0
    baseline, batched = sorted(rows, key=lambda row: row["mode"])
    assert baseline["launch_calls"] == baseline["commands"] > batched["launch_calls"]
    assert baseline["token_hash"] == batched["token_hash"]
    tokens = pd.read_parquet(run.written / "tokens.parquet")
    assert len(tokens) == 2 * 20
    assert tokens["token_id"].between(0, 255).all()
    assert (tokens["arrival_ns"] <= tokens["issue_ns"]).all()
    assert (tokens["issue_ns"] <= tokens["done_ns"]).all()
    commands = pd.read_parquet(run.written / "commands.parquet")
    assert (commands["enqueue_ns"] <= commands["eligible_ns"]).all()
    assert (commands["eligible_ns"] <= commands["flush_ns"]).all()
    for _, own in commands.groupby(["mode", "request"]):
        assert own["step"].tolist() == list(range(len(own))), "rows are as executed"


def test_an_order_that_is_broken_is_noticed(ran: Callable[[str], Ran]) -> None:
    run = ran("violated")
    assert run.exit_code == 1
    assert run.stderr.startswith("error: 1 of 1 repeats failed; batched repeat 0: failed: ")
    assert (run.row["ordering"], run.row["verified"]) == ("violated", False)
    assert "wrong" in run.row["status"]


def test_commands_come_when_they_are_due(ran: Callable[[str], Ran]) -> None:
    run = ran("open")
    assert run.stderr == ""
    row = run.row
    assert (row["status"], row["arrival"], row["arrival_rate_per_s"]) == ("ok", "constant", 20_000)
    commands = pd.read_parquet(run.written / "commands.parquet").sort_values("seq")
    assert commands["request"].tolist() == list(range(COMMANDS))
    assert commands["enqueue_ns"].diff().dropna().eq(50_000).all()
    middle_ns = (COMMANDS - 1) * 50_000 // 2 + commands["enqueue_ns"].min()
    later = commands["device_end_ns"][commands["device_end_ns"] > middle_ns]
    last_ns = max(later.max(), commands["enqueue_ns"].max())
    assert row["completed_rate_per_s"] == pytest.approx(len(later) / (last_ns - middle_ns) * 1e9, rel=1e-3)


def test_histograms_hold_what_the_summary_counts(ran: Callable[[str], Ran]) -> None:
    for name in ("pair", "chains"):
        written = ran(name).written
        found = pd.DataFrame(results.read_histograms([written]))
        for row in results.read_summaries([written]):
            own = found[(found["mode"] == row["mode"]) & (found["repeat"] == row["repeat"])]
            counts = own.groupby("what")["count"].sum().to_dict()
            expected = {"latency": "latency_samples", "queue_wait": "commands", "batch_wait": "commands"}
            expected |= {"batch_size": "batches"} | ({"ttft": "requests", "tpot": "requests"} if row["tokens"] else {})
            assert counts == {what: row[column] for what, column in expected.items()}
            sizes = own[own["what"] == "batch_size"]
            assert (sizes["low"] == sizes["high"]).all()
            assert (sizes["low"] * sizes["count"]).sum() == row["commands"]


def test_help_names_every_group_option_and_example(ran: Callable[[str], Ran]) -> None:
    text = ran("help").stdout
    assert ran("help").exit_code == 0
    for path in (ROOT / "conf").glob("*/*.yaml"):
        assert path.parent.name in text
        assert path.stem in text
    for key in ("batching.max_batch=64 ", "batching.timeout_us=150.0 ", "repeats=null ", "seed=0 "):
        assert key in text
    assert text.count("launchopt run ") >= 4
    assert "experiment=gpu_kernel_batcher" in text


def test_cfg_shows_the_composed_config_and_runs_nothing(ran: Callable[[str], Ran]) -> None:
    run = ran("cfg")
    assert run.exit_code == 0
    assert "max_batch: 7" in run.stdout
    assert "tokens: 64" in run.stdout
    assert not (run.folder / "outputs").exists()
