"""Golden runs on the CPU device: what a seed asks for, and what comes out of it, are the same bits everywhere.

Which bits can be. Sums of products of small integers are exact in float32, whatever order a BLAS adds them in: of those
the outputs' bytes are compared, in every mode. The results of a model's chain are not, for a BLAS may round in its own
order; of it the commands are compared, and the ids of its tokens, which are drawn by integers from the logits. They
could differ only where rounding carries a draw over the edge between two tokens: at these few it does not.

`UPDATE_GOLDEN=1` writes the files anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.paths import TESTS
from support.processes.own_process import environ_of, without_progress

from launchopt.command import Dtype
from launchopt.modes import MODES, mode_class
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording import results
from launchopt.recording.identity import stream_hash
from launchopt.streams.gemm_stream import CommandOrder, GemmStream
from launchopt.verify.operands import OperandCheck
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

GOLDEN = TESTS / "golden"
LARGEST = 4  # 64 products of at most 4 x 4 are far below 2**24
DECODE = (
    "device=cpu workload=decode model=tiny workload.cache=hot workload.requests=5 workload.prompt_tokens=6"
    " workload.tokens=8 sampling=top_k record.tokens=all record.commands=all mode=batched against=[baseline] repeats=2"
)
COUNTS = ("pushed", "popped", "executed", "recorded")


def golden(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the file says; with UPDATE_GOLDEN what was found, written to it."""
    path = GOLDEN / f"golden_run_{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1) + "\n")
    expected: dict[str, Any] = json.loads(path.read_text())
    return expected


def exact_stream() -> GemmStream:
    return gemv(16, 2, 64, 200, Dtype.fp32, 32, CommandOrder(shuffle=True, seed=5))


def digest(arrays: dict[Any, Any], of_inputs: bool) -> str:
    """Of the bytes of every operand, or every result, arena after arena."""
    found = hashlib.blake2b(digest_size=16)
    for arena, array in sorted(arrays.items()):
        if (arena.role != "c") == of_inputs:
            found.update(np.ascontiguousarray(array, "<f4").tobytes())
    return found.hexdigest()


def exact_run(mode: str) -> dict[str, Any]:
    """A run in this process on operands rounded to integers, which are not what the seed gives."""
    stream = exact_stream()
    records = np.concatenate([block.records for block in stream.blocks()])
    with Ring.create(256) as ring, Consumer(job(stream, ring, "cpu", (Arm(mode, 16, 1e6, None),))) as consumer:
        arrays = consumer.device.arenas.arrays
        for arena, array in arrays.items():
            if arena.role != "c":
                array[:] = np.rint(array * LARGEST) + 0.0  # no negative zero
        consumer.arm(0)
        ring.set_word(HeaderWord.START_NS, time.monotonic_ns())
        assert ring.push(records, stamp=True) == stream.commands
        ring.close()
        consumer.consume()
        result = consumer.result(0, 0)
        assert (result.row["status"], result.row["max_rel_error"]) == ("ok", 0.0)
        counts = result.extra["counts"]
        return {"counts": counts, "operands": digest(arrays, True), "outputs": digest(arrays, False)}


def able(mode: str) -> bool:
    kind = mode_class(mode)
    return kind.refusal("cpu", exact_stream()) is None and kind.lacks() is None


@pytest.mark.parametrize("mode", [mode for mode in MODES if able(mode)])
def test_every_mode_computes_the_same_bits_everywhere(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperandCheck, "fault", lambda _: None)
    found = {"stream": stream_hash(exact_stream()), **exact_run(mode)}
    assert found == golden("gemv", found)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs with one seed, and one with another."""
    folder = tmp_path_factory.mktemp("golden")
    command = [sys.executable, "-m", "runner", "-m", *DECODE.split(), "seed=5,5,6", f"hydra.sweep.dir={folder}"]
    done = subprocess.run(command, cwd=folder, env=environ_of(), capture_output=True, text=True, timeout=300)
    assert (done.returncode, without_progress(done.stderr)) == (0, ""), done.stdout
    return {name: folder / job for name, job in (("one", "0"), ("same", "1"), ("other", "2"))}


def token_ids(folder: Path) -> dict[tuple[str, int], list[list[int]]]:
    """Of each repeat of each mode, the ids of each request."""
    table = pd.read_parquet(folder / "tokens.parquet").sort_values(["mode", "repeat", "request", "token"])
    return {
        key: [group["token_id"].tolist() for _, group in rows.groupby("request")]
        for key, rows in table.groupby(["mode", "repeat"])
    }


def commands_of(folder: Path) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    """Of each repeat of each mode, what every request asked for, step by step."""
    columns = ["request", "step", "m", "n", "k"]
    table = pd.read_parquet(folder / "commands.parquet").sort_values(columns)
    return {
        key: list(rows[columns].itertuples(index=False, name=None)) for key, rows in table.groupby(["mode", "repeat"])
    }


def test_tokens_are_those_of_the_golden_run_in_every_mode_and_repeat(runs: dict[str, Path]) -> None:
    ids = token_ids(runs["one"])
    assert len(ids) == 4
    found = {"stream": results.read_manifest(runs["one"])["stream"]["hash"], "tokens": ids["baseline", 0]}
    expected = golden("decode", found)
    assert found == expected
    assert all(each == expected["tokens"] for each in ids.values())


def test_one_seed_is_the_same_commands_and_tokens_and_another_is_not(runs: dict[str, Path]) -> None:
    tokens, commands = ({name: read(path) for name, path in runs.items()} for read in (token_ids, commands_of))
    hashes = {name: results.read_manifest(path)["stream"]["hash"] for name, path in runs.items()}
    rows = {name: {row["token_hash"] for row in results.read_summaries([path])} for name, path in runs.items()}
    for same in (tokens, commands, hashes, rows):
        assert same["one"] == same["same"]
    for differs in (tokens, hashes, rows):
        assert differs["one"] != differs["other"]
    assert all(len(each) == 1 for each in rows.values()), "every mode and repeat drew the same tokens"


def test_every_run_tells_what_became_of_its_commands_and_where_it_was_made(runs: dict[str, Path]) -> None:
    for folder in runs.values():
        manifest = results.read_manifest(folder)
        assert len(manifest["runs"]) == 4
        for run in manifest["runs"]:
            assert run["counts"] == dict.fromkeys(COUNTS, manifest["stream"]["commands"])
            assert sum(run["commands_by_strategy"].values()) == manifest["stream"]["commands"]
        known = {"git_revision", "git_dirty"} & set(manifest["environment"])
        assert len(known) in (0, 2), "a checkout has both"
