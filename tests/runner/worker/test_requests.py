"""Requests from the outside: `python -m runner ...` on the cpu device with the smallest model, and what it leaves.

The runs that tests look at are all in `RUNS`; they are made once.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.processes.ended_runs import Ran, assert_ended_well, ended_runs
from support.steps.tiny_model import GEMMS, steps_of

from launchopt.arrivals.poisson import poisson
from launchopt.recording import results
from launchopt.recording.columns import PERCENTILES
from launchopt.statistics.histogram import RELATIVE_ERROR, LogHistogram

TINY = "device=cpu model=tiny workload.cache=hot record.launches=none"
DECODE = f"{TINY} workload=decode"
KEPT = f"{DECODE} workload.requests=6 workload.prompt_tokens=5 workload.tokens=8 against=[baseline] repeats=1"
CHUNKED = (
    f"{DECODE} workload.requests=5 workload.prompt_tokens=40 workload.tokens=4 sampling=greedy "
    "against=[baseline] repeats=1"
)
GEMV = "device=cpu workload=gemv_256 workload.cache=hot record.launches=none"
GEMV_COUNT, GEMV_RATE, GEMV_SEED = 600, 1500.0, 3
RUNS = {
    "sampled": f"{KEPT} repeats=2 sampling=top_k sampling.top_k=5 record.tokens=all record.commands=all"
    " slo.ttft_ms=60000 slo.tpot_ms=60000 seed=4",
    "fed back": f"{KEPT} workload.dtype=bf16 record.tokens=all slo.ttft_ms=0.000001",
    "samplings": f"-m {DECODE} sampling=none,greedy,top_k,top_p workload.requests=3 workload.tokens=5",
    "violated": f"{KEPT} ordering=violated",
    "violated ids": f"{KEPT} ordering=violated sampling=greedy workload.requests=12",
    "gemv": f"{GEMV} workload.commands={GEMV_COUNT} arrival=poisson arrival.rate_per_s={GEMV_RATE} seed={GEMV_SEED}"
    " record.commands=all",
    "whole": CHUNKED,
    "ahead": f"{CHUNKED} mode=graph scheduler.ahead=true against=[batched,coalesced] record.commands=all",
    "continuous": f"{CHUNKED} scheduler=continuous scheduler.chunk_tokens=16 scheduler.budget_tokens=24"
    " scheduler.max_running=3 record.commands=all",
    "prefill": f"{TINY} workload=prefill workload.prompts=3 workload.tokens=20 against=[baseline] repeats=1"
    " record.commands=all record.tokens=all",
}


TYPED = ("violated", "gemv")  # each a process, as users start it


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """The run of that name, when it has ended."""
    with ended_runs(tmp_path_factory.mktemp("requests"), RUNS, {}, TYPED) as ended:
        yield ended


@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith("violated")])
def test_runs_end_well(name: str, ran: Callable[[str], Ran]) -> None:
    assert_ended_well(ran(name))


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


def test_independent_commands_come_when_they_are_due(ran: Callable[[str], Ran]) -> None:
    run = ran("gemv")
    (row,) = run.rows.values()
    commands = run.table("commands").sort_values("seq")
    assert commands["enqueue_ns"].tolist() == poisson(GEMV_RATE, GEMV_COUNT, GEMV_SEED).tolist()
    assert (commands["eligible_ns"] >= commands["enqueue_ns"]).all()
    assert (row["arrival_rate_per_s"], row["overloaded"]) == (GEMV_RATE, False)
    assert (row["independent"], row["gemms"]) == (True, GEMV_COUNT)
    assert 0 < row["weight_bytes"] < row["bytes_moved"]
    arrived_ns = commands["enqueue_ns"]
    half_ns = (arrived_ns.min() + arrived_ns.max()) // 2
    done_ns = commands["device_end_ns"]
    last_ns = max(arrived_ns.max(), done_ns.max())
    assert row["completed_rate_per_s"] == pytest.approx((done_ns > half_ns).sum() / (last_ns - half_ns) * 1e9)
    assert row["completed_rate_per_s"] > 0.8 * GEMV_RATE
    waits = (commands["submit_start_ns"] - commands["enqueue_ns"]) / 1e3
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
