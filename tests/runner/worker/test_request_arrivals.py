"""Requests that arrive when they are due: at a rate, in bursts, and as a file says, on the cpu device.

The runs that tests look at are all in `RUNS`; they are made once.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from support.processes.ended_runs import Ran, assert_ended_well, ended_runs
from support.steps.tiny_model import GEMMS, steps_of

from launchopt.arrivals.bursty import bursty
from launchopt.arrivals.constant import constant
from launchopt.arrivals.poisson import poisson
from launchopt.producing.overload import of_requests
from launchopt.producing.production import Tokens

DECODE = "device=cpu model=tiny workload.cache=hot record.launches=none workload=decode"
REPLAY = f"{DECODE} arrival=replay arrival.requests=null arrival.speed=10 record.tokens=all"
ARRIVALS = f"{DECODE} workload.requests=40 workload.tokens=2 record.commands=all record.tokens=all"
HELD, FAR = 80.0, 1e7  # requests a second: few, and far more than can be held
DUE = {
    "constant": constant(HELD, 40),
    "poisson": poisson(HELD, 40, 0),
    "bursty": bursty(HELD, 8, None, 40, 0),
}
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
    "constant": f"-m {ARRIVALS} arrival=constant arrival.rate_per_s={HELD},{FAR}",
    "poisson": f"-m {ARRIVALS} arrival=poisson arrival.rate_per_s={HELD},{FAR}",
    "bursty": f"-m {ARRIVALS} arrival=bursty arrival.rate_per_s={HELD},{FAR}",
    "replay": f"-m {REPLAY} arrival.path=azure.csv,mooncake.jsonl,own.csv",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """The run of that name, when it has ended."""
    with ended_runs(tmp_path_factory.mktemp("arrivals"), RUNS, INPUTS) as ended:
        yield ended


@pytest.mark.parametrize("name", RUNS)
def test_runs_end_well(name: str, ran: Callable[[str], Ran]) -> None:
    assert_ended_well(ran(name))


@pytest.mark.parametrize("name", DUE)
def test_the_summary_gives_the_rates_of_arrivals_and_of_completed_requests(
    name: str, ran: Callable[[str], Ran]
) -> None:
    """They are those of the recorded tokens. A busy machine delays tokens, and changes both alike."""
    jobs = ran(name).jobs()
    for (row, folder), rate in zip(jobs, (HELD, FAR), strict=True):
        assert (row["arrival"], row["requests"], row["arrival_rate_per_s"]) == (name, 40, rate)
        assert (row["independent"], row["gemms"]) == (False, row["commands"])
        assert row["producer_late_p99_us"] <= row["producer_late_max_us"]
        assert (row["completed_rate_per_s"], row["overloaded"]) == of_requests(*recorded(folder))
    (held, folder), (far, _) = jobs
    tokens, _ = recorded(folder)
    assert tokens.arrived_ns.tolist() == DUE[name].tolist()
    assert held["wall_ms"] * 1e6 >= DUE[name].max()
    assert far["overloaded"]
    assert far["completed_rate_per_s"] < FAR / 10


def recorded(folder: Path) -> tuple[Tokens, NDArray[np.int64]]:
    """Return the recorded tokens of a run, and their count by request."""
    table = pd.read_parquet(folder / "tokens.parquet").sort_values(["request", "token"])
    by_request = table.groupby("request")
    arrived_ns, outputs = by_request["arrival_ns"].first().to_numpy(), by_request.size().to_numpy()
    late_ns, ids = np.zeros(len(outputs), np.int64), np.zeros(len(table), np.int64)
    return Tokens(arrived_ns, late_ns, table["issue_ns"].to_numpy(), table["done_ns"].to_numpy(), ids), outputs


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
