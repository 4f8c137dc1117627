"""Every mode on every kind of workload, from the command line: outputs are right, and the number of launches is too.

Jobs run in three dtypes on a GPU (marked gpu), and on the CPU those whose mode runs there.
"""

from __future__ import annotations

import pytest
from support.modes.mode_jobs import JOBS, MOST, PLAIN, Everything, able, refused, run_jobs, stream_of

from launchopt.command import Op
from launchopt.devices.cublaslt.launch import MOST_POSTED
from launchopt.devices.resident.ring import takes
from launchopt.devices.steps.likely import padded_sizes
from launchopt.modes import mode_class
from launchopt.stack import Submit

KINDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ALONE = ("decode_1", "layer_1", "qkv_1", "linear_epilogue_1", "elementwise_1")  # one request, no prompt
INDEPENDENT = ("gemv", "scattered", "shared")
BY_BATCH = {"pointer_array": "pointers", "grouped": "grouped", "graph": "graph", "coalesced": "coalesced"}
FUSED = {"fused_qkv": "qkv", "fused_epilogue": "linear_epilogue", "fused_elementwise": "elementwise"}
GROUP = 3  # commands of a fused launch


@pytest.fixture(scope="module", params=KINDS)
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return run_jobs(request.param, tmp_path_factory.mktemp(request.param))


def test_every_mode_that_can_ran_and_is_verified(everything: Everything) -> None:
    for job, dtype, ran in everything.all():
        assert set(ran) == set(able(job, everything.kind)), job
        for mode, each in ran.items():
            row = each.row
            where = (job, dtype, mode, row["status"])
            assert (row["status"], row["verified"], row["dtype"]) == ("ok", True, dtype), where
            assert sum(each.sizes) == row["commands"] == stream_of(job).commands, where
            assert len(each.sizes) <= row["launch_calls"] or mode == "persistent", where
            assert row["setup_ms"] > 0, where
            assert row["streams"] == (4 if mode == "multistream" else 1), where
            captures = mode_class(mode).stack.submit in (Submit.graph, Submit.graph_loop, Submit.graph_device)
            assert (row["graph_replays"] is not None) == captures or mode_class(mode).packages, where
            assert mode == "graph" or row["padded_commands"] == 0, where


def test_the_same_work_is_counted_for_all(everything: Everything) -> None:
    for job, dtype, ran in everything.all():
        work = {(each.row["commands"], each.row["bytes_moved"], each.row["tokens"]) for each in ran.values()}
        assert len(work) == 1, (job, dtype)


@pytest.mark.parametrize("mode", ["baseline", "kernel", "pdl", "multistream"])
def test_one_launch_a_command(mode: str, everything: Everything) -> None:
    for job, ran in everything.of(mode):
        assert ran.row["launch_calls"] == ran.row["commands"], job
        assert set(ran.sizes) == {1}, job
        gemms = sum(count for shape, count in stream_of(job).counts.items() if shape.op is Op.GEMM)
        own = gemms if mode in ("kernel", "pdl") else 0
        assert (ran.strategies.count("kernel"), ran.strategies.count("single")) == (own, len(ran.sizes) - own), job


def test_no_launch_a_command_but_what_the_resident_kernel_hands_over(everything: Everything) -> None:
    """The kernel is started once, and at most once more after each command that it hands over."""
    for job, ran in everything.of("persistent"):
        counts = stream_of(job).counts.items()
        handed = sum(count for shape, count in counts if not takes(shape))
        assert ran.commands_by("single") == ran.strategies.count("single") == handed, job
        assert ran.commands_by("resident") == ran.row["commands"] - handed > 0, job
        assert max(ran.sizes) <= MOST_POSTED, job
        assert handed + 1 <= ran.row["launch_calls"] <= 2 * handed + 1, job


@pytest.mark.parametrize("mode", BY_BATCH)
def test_one_launch_a_batch(mode: str, everything: Everything) -> None:
    many, on_gpu = BY_BATCH[mode], everything.kind == "cuda"
    for job, ran in everything.of(mode, INDEPENDENT):
        if mode == "coalesced" and on_gpu:
            assert set(ran.strategies) <= {many, "single"}, job
            assert len(ran.sizes) >= ran.row["batches"], job  # scattered activations need more launches
            continue
        assert len(ran.sizes) == ran.row["batches"], job
        alone = many if mode in ("grouped", "graph") else "single"
        assert ran.strategies == [alone if size == 1 else many for size in ran.sizes], job
        uploads = ran.strategies.count(many) if on_gpu else 0  # uploads of tables of pointers
        copies = 2 * ran.strategies.count(many) if mode == "coalesced" else 0
        assert ran.row["launch_calls"] == len(ran.sizes) + uploads + copies, job


def test_a_replay_is_of_a_size_that_a_graph_was_made_for(everything: Everything) -> None:
    for job, ran in everything.of("graph", INDEPENDENT):
        made = [next(each for each in padded_sizes(MOST) if each >= size) for size in ran.sizes]
        padded = sum(made) - sum(ran.sizes) if everything.kind == "cuda" else 0
        assert (ran.row["graph_replays"], ran.row["padded_commands"]) == (len(ran.sizes), padded), job


def steps_and_rows(job: str) -> tuple[int, int]:
    """Return the number of steps of a job of one request without a prompt, and the number of commands of each step."""
    stream = stream_of(job)
    rows = len(stream.rows_of(stream.decode_kind))
    return stream.commands // rows, rows


def test_a_step_is_one_replay(everything: Everything) -> None:
    for job, ran in everything.of("graph", ALONE):
        steps, rows = steps_and_rows(job)
        assert ran.row["graph_replays"] == ran.row["launch_calls"] == ran.row["batches"] == steps, job
        assert ran.sizes == [rows] * steps, job
        assert set(ran.strategies) == {"graph"}, job
        if everything.kind == "cuda":
            assert min(ran.row["capture_ms"], ran.row["instantiate_ms"], ran.row["upload_ms"]) > 0, job


def test_replays_are_counted_and_what_is_none_is_a_launch(everything: Everything) -> None:
    for job, ran in everything.of("graph"):
        assert ran.strategies.count("graph") == ran.row["graph_replays"], job
        assert ran.row["graph_replays"] > 0 or job == "prefill", job  # a set of prompts comes only once


@pytest.mark.parametrize("mode", FUSED)
def test_a_group_is_one_launch(mode: str, everything: Everything) -> None:
    job = f"{FUSED[mode]}_1"
    for _, ran in everything.of(mode, [job]):
        (steps, rows), layers = steps_and_rows(job), stream_of(job).layers
        assert ran.row["launch_calls"] == steps * (rows - (GROUP - 1) * layers)
        assert ran.strategies.count("fused") == steps * layers
        assert [size == GROUP for size in ran.sizes] == [strategy == "fused" for strategy in ran.strategies]


@pytest.mark.parametrize("mode", FUSED)
def test_requests_share_fused_launches(mode: str, everything: Everything) -> None:
    job = f"{FUSED[mode]}_6"
    stream = stream_of(job)
    groups = stream.commands // len(stream.rows(0)) * stream.layers
    for _, ran in everything.of(mode, [job]):
        fused = [size for size, strategy in zip(ran.sizes, ran.strategies, strict=True) if strategy == "fused"]
        assert all(size % GROUP == 0 for size in fused)
        assert sum(fused) + ran.unfused == GROUP * groups  # of requests that came together, some may not be neighbours
        assert len(fused) < groups


@pytest.mark.parametrize("mode", ["batched", "pointer_array", "coalesced", "graph"])
def test_requests_side_by_side_share_launches(mode: str, everything: Everything) -> None:
    for job, ran in everything.of(mode, ["decode_6", "layer_paged"]):
        assert len(ran.sizes) < ran.row["commands"], job


def test_what_cannot_run_is_refused_in_its_own_words(everything: Everything) -> None:
    kind = everything.kind
    why = {mode: mode_class(mode).refusal(kind, stream_of("gemv")) for mode in refused(kind)}
    assert everything.refusals() == {mode: f"mode={mode}: {each}" for mode, each in why.items()}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_mode_is_left_out(kind: str) -> None:
    """Some job here runs each mode, but for one of quantised weights (test_cublaslt_fp8.py)."""
    for mode in PLAIN:
        if mode_class(mode).quantises_inputs:
            continue
        assert any(mode in able(job, kind) for job in JOBS) == (kind in mode_class(mode).devices), mode
