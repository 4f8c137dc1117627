"""Requests from the outside: `python -m runner ...` on the cpu device with the smallest model, and what it leaves.

The runs that tests look at are all in `RUNS`; they are made once, two at a time.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from support.processes.own_process import environ_of

from launchopt.arrivals.bursty import bursty
from launchopt.arrivals.constant import constant
from launchopt.arrivals.poisson import poisson
from launchopt.queue.segment import HeaderWord
from launchopt.recording import results
from launchopt.recording.columns import PERCENTILES
from launchopt.statistics.histogram import RELATIVE_ERROR, LogHistogram

SHARED_MEMORY = Path("/dev/shm")
on_linux = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="reads /dev/shm, which only Linux has")

LAYERS, GEMMS = 2, 8  # of model=tiny; GEMMS a step
TINY = "device=cpu model=tiny workload.cache=hot record.launches=none"
DECODE = f"{TINY} workload=decode"
KEPT = f"{DECODE} workload.requests=6 workload.prompt_tokens=5 workload.tokens=8 against=[baseline]"
CHUNKED = f"{DECODE} workload.requests=5 workload.prompt_tokens=40 workload.tokens=4 sampling=greedy against=[baseline]"
REPLAY = f"{DECODE} arrival=replay arrival.requests=null arrival.speed=10 record.tokens=all"
ARRIVALS = f"{DECODE} workload.requests=40 workload.tokens=2 record.commands=all"
HELD, FAR = 80.0, 1e7  # requests a second: few, and far more than can be held
DUE = {
    "constant": constant(HELD, 40),
    "poisson": poisson(HELD, 40, 0),
    "bursty": bursty(HELD, 8, None, 40, 0),
}
GEMV = "device=cpu workload=gemv_256 workload.cache=hot record.launches=none"
GEMV_COUNT, GEMV_RATE, GEMV_SEED = 600, 1500.0, 3
INPUTS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.0000000,4,2\n"
    "2023-11-16 18:17:03.5000000,3,1\n"
    "2023-11-16 18:17:05.0000000,7,3\n",
    "mooncake.jsonl": '{"timestamp": 100, "input_length": 4, "output_length": 2, "hash_ids": [1]}\n'
    '{"timestamp": 600, "input_length": 3, "output_length": 1, "hash_ids": []}\n'
    '{"timestamp": 2100, "input_length": 7, "output_length": 3, "hash_ids": [1, 2]}\n',
    "own.csv": "arrival_ms,prompt_tokens,output_tokens,after\n0,4,2,\n0,3,1,0\n0,7,3,1\n500.5,0,4,0\n2000,2,1,\n",
}
RUNS = {
    "sampled": f"{KEPT} repeats=2 sampling=top_k sampling.top_k=5 record.tokens=all record.commands=all"
    " slo.ttft_ms=60000 slo.tpot_ms=60000 seed=4",
    "fed back": f"{KEPT} workload.dtype=bf16 record.tokens=all slo.ttft_ms=0.000001",
    "samplings": f"-m {DECODE} sampling=none,greedy,top_k,top_p workload.requests=3 workload.tokens=5",
    "violated": f"{KEPT} ordering=violated",
    "violated ids": f"{KEPT} ordering=violated sampling=greedy workload.requests=12",
    "constant": f"-m {ARRIVALS} arrival=constant arrival.rate_per_s={HELD},{FAR}",
    "poisson": f"-m {ARRIVALS} arrival=poisson arrival.rate_per_s={HELD},{FAR}",
    "bursty": f"-m {ARRIVALS} arrival=bursty arrival.rate_per_s={HELD},{FAR}",
    "replay": f"-m {REPLAY} arrival.path=azure.csv,mooncake.jsonl,own.csv",
    "gemv": f"{GEMV} workload.commands={GEMV_COUNT} arrival=poisson arrival.rate_per_s={GEMV_RATE} seed={GEMV_SEED}"
    " record.commands=all",
    "whole": CHUNKED,
    "ahead": f"{CHUNKED} mode=graph scheduler.ahead=true against=[batched,coalesced] record.commands=all",
    "continuous": f"{CHUNKED} scheduler=continuous scheduler.chunk_tokens=16 scheduler.budget_tokens=24"
    " scheduler.max_running=3 record.commands=all",
    "prefill": f"{TINY} workload=prefill workload.prompts=3 workload.tokens=20 against=[baseline] record.commands=all"
    " record.tokens=all",
}


@dataclass(frozen=True)
class Ran:
    exit_code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def written(self) -> Path:
        (folder,) = self.folder.glob("outputs/run/*")
        return folder

    @property
    def rows(self) -> dict[tuple[str, int], results.Row]:
        """By mode and repeat."""
        return {(row["mode"], row["repeat"]): row for row in results.read_summaries([self.written])}

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.written / f"{name}.parquet")

    def jobs(self) -> list[tuple[results.Row, Path]]:
        """Row and folder of each job of a sweep."""
        folders = sorted(self.folder.glob("outputs/sweep/*/[0-9]*"), key=lambda path: int(path.name))
        return [(row, folder) for folder in folders for row in results.read_summaries([folder])]


def start(arguments: str, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    for name, text in INPUTS.items():
        (folder / name).write_text(text)
    call = [sys.executable, "-m", "runner", *arguments.split()]
    environ = environ_of()
    return subprocess.Popen(
        call, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str], folder: Path) -> Ran:
    try:
        stdout, stderr = process.communicate(timeout=300)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ran(process.returncode, stdout, stderr, folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """The run of that name, when it has ended."""
    base = tmp_path_factory.mktemp("requests")

    def whole(name: str) -> Ran:
        folder = base / name.replace(" ", "_")
        return finish(start(RUNS[name], folder), folder)

    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(whole, name) for name in RUNS}
        yield lambda name: runs[name].result()


def steps_of(prompt: int, tokens: int, chunk: int | None = None) -> int:
    prompt_steps = -(-prompt // (chunk or prompt)) if prompt else 0
    return prompt_steps + max(1, tokens) - (prompt > 0)


@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith("violated")])
def test_runs_end_well(name: str, ran: Callable[[str], Ran]) -> None:
    run = ran(name)
    assert run.stderr == ""
    assert run.exit_code == 0
    for row in results.read_summaries([run.folder]):
        assert (row["status"], row["verified"], row["ordering"]) == ("ok", True, "per_request")
        assert 0 < row["max_rel_error"] < row["tolerance"]


def test_the_same_text_in_every_mode_and_repeat(ran: Callable[[str], Ran]) -> None:
    run = ran("sampled")
    rows = run.rows
    assert set(rows) == {(mode, repeat) for mode in ("baseline", "batched") for repeat in (0, 1)}
    assert len({row["token_hash"] for row in rows.values()}) == 1
    manifest = results.read_manifest(run.written)
    assert [each["tokens_unlike_first_repeat"] for each in manifest["runs"]] == [0] * 4
    tokens = run.table("tokens")
    ids = {key: part.sort_values(["request", "token"])["token_id"] for key, part in tokens.groupby(["mode", "repeat"])}
    first = ids["baseline", 0].tolist()
    assert [part.tolist() for part in ids.values()] == [first] * 4
    assert len(first) == 6 * 8
    assert all(0 <= each < 256 for each in first)
    assert len(set(first)) > 10
    for row in rows.values():
        assert (row["sampling"], row["sampling_where"], row["tokens"]) == ("top_k", "cpu", 48)
        assert row["sampling_ms"] > 0
        assert row["tokens_per_s"] == pytest.approx(48 / row["wall_ms"] * 1e3)
        assert row["commands"] == 6 * 8 * (GEMMS + 1)  # 8 steps, the first of them the prompt's
        assert (row["requests"], row["scheduler"], row["arrival"]) == (6, "none", "closed")


def test_sampling_takes_part_of_a_run(ran: Callable[[str], Ran]) -> None:
    """Of this run: what the runs before it took is theirs."""
    for row in ran("sampled").rows.values():
        assert 0 < row["sampling_ms"] < row["wall_ms"]


def test_without_sampling_there_are_no_ids(ran: Callable[[str], Ran]) -> None:
    run = ran("fed back")
    assert run.table("tokens")["token_id"].isna().all()
    for row in run.rows.values():
        assert (row["sampling"], row["sampling_where"]) == ("none", None)
        assert (row["token_hash"], row["sampling_ms"]) == (None, None)
        assert row["tokens"] == 48
    assert "tokens_unlike_first_repeat" not in results.read_manifest(run.written)["runs"][0]


def test_tokens_are_told_of_in_the_order_of_time(ran: Callable[[str], Ran]) -> None:
    for name in ("sampled", "fed back"):
        run = ran(name)
        for (mode, repeat), part in run.table("tokens").groupby(["mode", "repeat"]):
            assert part["request"].tolist() == np.repeat(np.arange(6), 8).tolist()
            assert part["token"].tolist() == list(range(8)) * 6
            assert (part["arrival_ns"] == 0).all()
            assert (part["issue_ns"] >= 0).all()
            assert (part["done_ns"] > part["issue_ns"]).all()
            before = part.groupby("request")["done_ns"].shift(1)
            assert (part["issue_ns"] >= before)[before.notna()].all()
            row = run.rows[str(mode), int(repeat)]
            assert part["done_ns"].max() <= row["wall_ms"] * 1e6 + 50e6  # the producer learns of it a little later
            first = part[part["token"] == 0]
            assert row["ttft_max_ms"] == pytest.approx(first["done_ns"].max() / 1e6)


def test_goodput_goes_by_the_objectives(ran: Callable[[str], Ran]) -> None:
    for row in ran("sampled").rows.values():
        assert (row["slo_ttft_ms"], row["slo_tpot_ms"]) == (60000, 60000)
        assert row["goodput_per_s"] == pytest.approx(6 / row["wall_ms"] * 1e3)
    for row in ran("fed back").rows.values():
        assert (row["slo_ttft_ms"], row["slo_tpot_ms"], row["goodput_per_s"]) == (0.000001, None, 0)
    for row, _ in ran("samplings").jobs():
        assert (row["slo_ttft_ms"], row["slo_tpot_ms"], row["goodput_per_s"]) == (None, None, None)


def test_every_way_to_sample(ran: Callable[[str], Ran]) -> None:
    jobs = ran("samplings").jobs()
    assert [row["sampling"] for row, _ in jobs] == ["none", "greedy", "top_k", "top_p"]
    assert [row["sampling_where"] for row, _ in jobs] == [None, "cpu", "cpu", "cpu"]
    assert len({row["token_hash"] for row, _ in jobs}) == 4
    assert [row["commands"] for row, _ in jobs] == [15 * GEMMS, *[15 * (GEMMS + 1)] * 3]


@pytest.mark.parametrize(("name", "what"), [("violated", "error inf, allowed "), ("violated ids", "id ")])
def test_a_broken_order_fails_and_says_which_token_is_wrong(name: str, what: str, ran: Callable[[str], Ran]) -> None:
    run = ran(name)
    assert run.exit_code == 1
    assert run.stderr.startswith("error: 1 of 2 repeats failed; batched repeat 0: failed: ")
    assert "outputs wrong (first: token 0 of request 0: " in run.stderr
    assert what in run.stderr
    assert run.stderr.count("\n") == 1
    row = run.rows["batched", 0]
    assert (row["ordering"], row["verified"]) == ("violated", False)
    assert row["status"] in run.stderr
    manifest = results.read_manifest(run.written)
    assert manifest["status"] == "failed"
    assert any(notice.startswith("ordering=violated: ") for notice in manifest["notices"])


@pytest.mark.parametrize("name", DUE)
def test_arrivals_are_told_of(name: str, ran: Callable[[str], Ran]) -> None:
    (held, _), (far, _) = ran(name).jobs()
    for row in (held, far):
        assert (row["arrival"], row["requests"]) == (name, 40)
        assert row["producer_late_p99_us"] <= row["producer_late_max_us"]
    assert (held["arrival_rate_per_s"], held["overloaded"]) == (HELD, False)
    assert (far["arrival_rate_per_s"], far["overloaded"]) == (FAR, True)
    assert far["completed_rate_per_s"] < FAR / 10
    assert held["wall_ms"] * 1e6 >= DUE[name].max()
    if name != "bursty":  # of which the last burst may be all that came in time to count
        half_ns = (DUE[name].min() + DUE[name].max()) / 2
        came_per_s = (DUE[name] > half_ns).sum() / ((DUE[name].max() - half_ns) * 1e-9)
        assert held["completed_rate_per_s"] == pytest.approx(came_per_s, rel=0.3)


@pytest.mark.parametrize("name", DUE)
def test_the_first_command_of_a_request_is_stamped_with_when_it_was_due(name: str, ran: Callable[[str], Ran]) -> None:
    _, folder = ran(name).jobs()[0]
    commands = pd.read_parquet(folder / "commands.parquet")
    first = commands[commands["step"] == 0].sort_values("request")
    assert first["enqueue_ns"].tolist() == DUE[name].tolist()
    later = commands[commands["step"] >= GEMMS]
    assert (later["enqueue_ns"] > DUE[name][later["request"]]).all()


def test_files_of_requests_are_replayed(ran: Callable[[str], Ran]) -> None:
    azure, mooncake, own = ran("replay").jobs()
    for row, folder in (azure, mooncake):
        assert (row["arrival"], row["requests"], row["tokens"]) == ("replay", 3, 6)
        assert row["commands"] == GEMMS * (steps_of(4, 2) + steps_of(3, 1) + steps_of(7, 3))
        assert row["arrival_rate_per_s"] == pytest.approx(2 / 0.2)  # at ten times its pace
        tokens = pd.read_parquet(folder / "tokens.parquet")
        arrived = tokens.groupby("request")["arrival_ns"].first()
        assert arrived.tolist() == [0, 50_000_000, 200_000_000]
        assert row["wall_ms"] >= 200
    row, folder = own
    assert (row["requests"], row["tokens"]) == (5, 11)
    assert row["commands"] == GEMMS * (steps_of(4, 2) + steps_of(3, 1) + steps_of(7, 3) + 4 + 1)
    assert {job["overloaded"] for job, _ in (azure, mooncake, own)} == {False}


def test_a_request_that_waits_for_another_comes_when_that_is_done(ran: Callable[[str], Ran]) -> None:
    """Or when it is due, where that is later."""
    _, folder = ran("replay").jobs()[2]
    tokens = pd.read_parquet(folder / "tokens.parquet")
    arrived, done = tokens.groupby("request")["arrival_ns"].first(), tokens.groupby("request")["done_ns"].last()
    issued = tokens.groupby("request")["issue_ns"].first()
    assert (arrived[0], arrived[4]) == (0, 200_000_000)
    for request, before in ((1, 0), (2, 1)):
        assert arrived[request] == done[before]
        assert issued[request] >= done[before]
    assert arrived[3] == max(50_050_000, done[0])


def test_independent_commands_come_when_they_are_due(ran: Callable[[str], Ran]) -> None:
    run = ran("gemv")
    (row,) = run.rows.values()
    commands = run.table("commands").sort_values("seq")
    assert commands["enqueue_ns"].tolist() == poisson(GEMV_RATE, GEMV_COUNT, GEMV_SEED).tolist()
    assert (commands["eligible_ns"] >= commands["enqueue_ns"]).all()
    assert (row["arrival_rate_per_s"], row["overloaded"]) == (GEMV_RATE, False)
    assert row["completed_rate_per_s"] == pytest.approx(GEMV_COUNT / row["wall_ms"] * 1e3)
    assert row["completed_rate_per_s"] > 0.8 * GEMV_RATE
    waits = (commands["flush_ns"] - commands["enqueue_ns"]) / 1e3
    assert row["queue_wait_max_us"] == pytest.approx(waits.max())
    assert row["queue_wait_p50_us"] == pytest.approx(waits.quantile(), rel=RELATIVE_ERROR)


@pytest.mark.parametrize("name", ["sampled", "continuous", "prefill"])
def test_commands_of_a_request_run_one_after_another(name: str, ran: Callable[[str], Ran]) -> None:
    run = ran(name)
    for (mode, repeat), part in run.table("commands").groupby(["mode", "repeat"]):
        row = run.rows[str(mode), int(repeat)]
        assert len(part) == row["commands"]
        assert sorted(part["seq"]) == list(range(len(part)))
        for _, own in part.groupby("request"):  # rows are in the order of execution
            assert own["step"].tolist() == list(range(len(own)))
            assert (own["launch"].diff().dropna() > 0).all()
            assert (own["submit_start_ns"].iloc[1:].to_numpy() >= own["device_end_ns"].iloc[:-1].to_numpy()).all()
        assert (part["enqueue_ns"] <= part["eligible_ns"]).all()
        assert (part["eligible_ns"] <= part["flush_ns"]).all()
        assert (part["flush_ns"] <= part["submit_start_ns"]).all()


@pytest.mark.parametrize("name", ["sampled", "continuous", "prefill"])
def test_a_command_is_eligible_once_the_one_before_it_has_left(name: str, ran: Callable[[str], Ran]) -> None:
    for _, own in ran(name).table("commands").groupby(["mode", "repeat", "request"]):
        assert (own["eligible_ns"].iloc[1:].to_numpy() >= own["flush_ns"].iloc[:-1].to_numpy()).all()


def test_batches_hold_several_requests_and_no_request_twice(ran: Callable[[str], Ran]) -> None:
    commands = ran("sampled").table("commands")
    batched = commands[commands["mode"] == "batched"]
    sizes = batched.groupby(["repeat", "launch"])["request"].agg(["size", "nunique"])
    assert (sizes["size"] == sizes["nunique"]).all()
    assert sizes["size"].max() > 1
    alone = commands[commands["mode"] == "baseline"]
    assert (alone.groupby(["repeat", "launch"]).size() == 1).all()


def test_chunks_change_when_and_not_what(ran: Callable[[str], Ran]) -> None:
    hashes = {row["token_hash"] for name in ("whole", "continuous") for row in ran(name).rows.values()}
    assert len(hashes) == 1


def test_who_is_given_steps_ahead_generates_the_same(ran: Callable[[str], Ran]) -> None:
    """All of a step's commands but the last may be asked for before its token is, by modes of whole steps alone."""
    run = ran("ahead")
    hashes = {row["token_hash"] for name in ("whole", "ahead") for row in ran(name).rows.values()}
    assert len(hashes) == 1
    assert {row["scheduler"] for row in run.rows.values()} == {"none, steps ahead"}
    for mode, part in run.table("commands").groupby("mode"):
        for _, own in part.sort_values("step").groupby("request"):
            times_ns = own["enqueue_ns"].to_numpy()
            assert (np.diff(times_ns) >= 0).all()
            if mode == "batched":
                assert len(set(times_ns)) == steps_of(40, 4)


def test_prompts_come_in_chunks(ran: Callable[[str], Ran]) -> None:
    run = ran("continuous")
    for row in run.rows.values():
        assert row["scheduler"] == "continuous"
        assert row["commands"] == 5 * (steps_of(40, 4, 16) * GEMMS + 4)  # the head is only where a token ends
    for _, part in run.table("commands").groupby("mode"):
        for _, own in part.groupby("request"):
            assert own["n"].tolist()[: 3 * GEMMS] == [16] * 2 * GEMMS + [8] * GEMMS
            assert set(own["n"].tolist()[3 * GEMMS :]) == {1}


def test_no_more_requests_take_part_than_may(ran: Callable[[str], Ran]) -> None:
    """max_running=3 of 5."""
    for _, part in ran("continuous").table("commands").groupby("mode"):
        spans = part.groupby("request").agg(first=("submit_start_ns", "min"), last=("device_end_ns", "max"))
        for start_ns in spans["first"]:
            assert ((spans["first"] <= start_ns) & (spans["last"] > start_ns)).sum() <= 3


def test_prompts_alone(ran: Callable[[str], Ran]) -> None:
    run = ran("prefill")
    for row in run.rows.values():
        assert (row["workload"], row["requests"], row["tokens"]) == ("prefill", 3, 3)
        assert row["commands"] == 3 * GEMMS
        assert row["tpot_p50_ms"] is None
    assert set(run.table("commands")["n"]) == {20}
    assert set(run.table("tokens")["token"]) == {0}


@pytest.mark.parametrize("name", ["sampled", "fed back", "continuous", "prefill", "gemv"])
def test_histograms_agree_with_the_summary(name: str, ran: Callable[[str], Ran]) -> None:
    run = ran(name)
    table = run.table("histograms")
    for (mode, repeat), row in run.rows.items():
        own = table[(table["mode"] == mode) & (table["repeat"] == repeat)]
        assert set(own["run_id"]) == {row["run_id"]}
        parts = {
            what: LogHistogram.from_rows(list(part[["low", "high", "count"]].itertuples(index=False, name=None)))
            for what, part in own.groupby("what")
        }
        counts = {"latency": row["latency_samples"], "queue_wait": row["commands"], "batch_wait": row["commands"]}
        counts |= {"ttft": row["requests"]} if row["tokens"] else {}
        counts |= {"tpot": row["requests"]} if row["tpot_p50_ms"] else {}
        for what, count in counts.items():
            assert parts[what].count == count
            unit, scale = ("ms", 1e6) if what in ("ttft", "tpot") else ("us", 1e3)
            for percentile, percent in PERCENTILES.items():
                value = parts[what].percentile(percent)
                assert value is not None
                assert row[f"{what}_{percentile}_{unit}"] == pytest.approx(value / scale, rel=2 * RELATIVE_ERROR)
            *_, (low, high, _) = parts[what].rows()
            assert low <= row[f"{what}_max_{unit}"] * scale * (1 + 1e-12) <= high + 1
        sizes = own[own["what"] == "batch_size"]
        assert sizes["count"].sum() == row["batches"]
        assert (sizes["low"] * sizes["count"]).sum() == row["commands"]


STALL_S = 0.4
STALLED = {
    # Arrivals go on for 2 s; a fifth of them come while nobody takes them.
    "gemv": f"{GEMV} workload.commands=4000 arrival=constant arrival.rate_per_s=2000",
    "requests": f"{DECODE} workload.requests=200 workload.tokens=1 arrival=constant arrival.rate_per_s=100",
}


def taken(pid: int) -> int:
    """Commands that the consumer has taken from the ring; the second ring carries fewer."""
    most = 0
    for ring in SHARED_MEMORY.glob(f"launchopt_{pid}_*"):
        with contextlib.suppress(OSError):
            words: Any = np.fromfile(ring, np.uint64, count=HeaderWord.TAIL + 1)
            most = max(most, int(words[HeaderWord.TAIL]) if len(words) > HeaderWord.TAIL else 0)
    return most


def consumer_of(pid: int) -> psutil.Process:
    """The first child that was started."""
    children = [each for each in psutil.Process(pid).children() if "--multiprocessing-fork" in each.cmdline()]
    return min(children, key=lambda child: child.create_time())


@on_linux
@pytest.mark.parametrize("name", STALLED)
def test_a_consumer_that_stands_still_is_seen_in_what_came_meanwhile(name: str, tmp_path: Path) -> None:
    """No coordinated omission: arrivals do not wait for it, and their latency counts from when they were due."""
    folder = tmp_path / name
    running = start(STALLED[name], folder)
    try:
        limit = time.monotonic() + 60
        while taken(running.pid) < 300 and running.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.01)
        consumer = consumer_of(running.pid)
        consumer.send_signal(signal.SIGSTOP)
        time.sleep(STALL_S)
        consumer.send_signal(signal.SIGCONT)
    finally:
        run = finish(running, folder)
    assert (run.exit_code, run.stderr) == (0, "")
    (row,) = run.rows.values()
    late = row["latency_p99_us"] / 1e3 if name == "gemv" else row["ttft_p99_ms"]
    most = row["latency_max_us"] / 1e3 if name == "gemv" else row["ttft_max_ms"]
    assert late > 0.7 * STALL_S * 1e3
    assert late <= most
    assert row["latency_p90_us"] > 0.3 * STALL_S * 1e6  # a fifth waited, evenly from nothing to all of it
    assert row["wall_ms"] >= 1990
