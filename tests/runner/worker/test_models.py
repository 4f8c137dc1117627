"""Requests of a model and of a trace on the cpu device, in every dtype, with and without an order of commands.

The runs that tests look at are all in `RUNS`; they are made once.
"""

from collections.abc import Callable, Iterator

import pytest
from support.processes.ended_runs import Ran, ended_runs

from launchopt.recording import results

TINY = "device=cpu model=tiny workload.cache=hot"
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.0000000,4,2
2023-11-16 18:17:04.0000000,3,0
2023-11-16 18:17:05.0000000,4,5
"""
REPLAY = "workload=decode arrival=replay arrival.path=trace.csv arrival.requests=null arrival.speed=100"
RUNS = {
    "models": f"-m {TINY} workload=decode,prefill workload.dtype=fp32,fp16,bf16",
    "ignored": f"-m {TINY} ordering=none workload=decode,prefill workload.dtype=fp32,fp16,bf16",
    "replay": f"{TINY} {REPLAY}",
    "replay_ignored": f"{TINY} {REPLAY} ordering=none",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ran]]:
    """The run of that name, when it has ended."""
    with ended_runs(tmp_path_factory.mktemp("models"), RUNS, {"trace.csv": TRACE}) as ended:
        yield ended


@pytest.mark.parametrize(("name", "ordering"), [("models", "per_request"), ("ignored", "none")])
def test_models_in_every_dtype(name: str, ordering: str, ran: Callable[[str], Ran]) -> None:
    run = ran(name)
    assert run.stderr == ""
    assert run.exit_code == 0
    rows = [row for job in run.job_folders() for row in results.read_summaries([job])]
    assert [(row["workload"], row["dtype"]) for row in rows] == [
        (workload, dtype) for workload in ("decode", "prefill") for dtype in ("fp32", "fp16", "bf16")
    ]
    assert {(row["model"], row["layers"], row["status"], row["verified"]) for row in rows} == {("tiny", 2, "ok", True)}
    assert {row["ordering"] for row in rows} == {ordering}
    steps = {"decode": 64, "prefill": 1}  # each is 4 linears in 2 layers
    assert [row["commands"] for row in rows] == [8 * steps[row["workload"]] for row in rows]


# A step a prompt and a generated token; kept in order, a prompt's step gives the first token.
@pytest.mark.parametrize(("name", "steps"), [("replay_ignored", 3 + 2 + 0 + 5), ("replay", 3 + 1 + 0 + 4)])
def test_replay_takes_the_requests_of_the_trace(name: str, steps: int, ran: Callable[[str], Ran]) -> None:
    run = ran(name)
    assert run.stderr == ""
    assert run.exit_code == 0
    row = run.row
    assert (row["arrival"], row["requests"], row["status"]) == ("replay", 3, "ok")
    assert row["ordering"] == ("per_request" if name == "replay" else "none")
    assert row["commands"] == 8 * steps
    assert row["wall_ms"] >= 2_000 / 100  # two seconds of the trace, at 100 times its pace
    assert row["producer_late_p99_us"] is not None
    assert row["producer_late_max_us"] is not None
    if name == "replay":
        assert row["tokens"] == 2 + 1 + 5
        assert row["arrival_rate_per_s"] == pytest.approx(2 / (2 / 100))  # requests after the first, a second
    else:
        assert row["tokens"] is None
