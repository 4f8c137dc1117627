"""The persistent kernel on a GPU: products of all shapes, order, handovers to cuBLASLt, and every way to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes.own_process import ROOT, environ_of

from launchopt.command import Dtype
from launchopt.devices.resident.ring import GAVE_UP_LINE, takes
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording import results
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

pytestmark = pytest.mark.gpu

in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
ALL_COLUMNS = 1 << 20
CAPACITY = 1 << 14
PATIENCE_S, LATE_S = 120.0, 0.3
DECODE = "device=cuda model=tiny workload=decode workload.cache=hot mode=persistent record.launches=none"
SLOWLY = "arrival=constant arrival.rate_per_s=2 mode=persistent mode.patience_s=0.1 device=cuda workload.cache=hot"


def pushed(ring: Ring, stream: GemmStream) -> None:
    """Push a whole stream as the ring has space; runs in another thread than the consumer."""
    for block in stream.blocks():
        records = block.records
        while len(records):
            count = ring.push(records, stamp=True)
            records = records[count:]
            if not count:
                time.sleep(1e-4)
    ring.close()


def ran(stream: GemmStream, repeats: int = 1) -> list[dict[str, Any]]:
    """Run a stream in this process; return the rows of its repeats. All outputs are compared."""
    rows = []
    with Ring.create(CAPACITY) as ring:
        plain = job(stream, ring, "cuda", (Arm("persistent", 1, 0.0, None),))
        with Consumer(replace(plain, verify_columns=ALL_COLUMNS)) as consumer:
            for repeat in range(repeats):
                ring.reset()
                consumer.arm(0)
                ring.set_word(HeaderWord.START_NS, time.monotonic_ns())
                pusher = threading.Thread(target=pushed, args=(ring, stream), daemon=True)
                pusher.start()
                consumer.consume()
                pusher.join(PATIENCE_S)
                found = consumer.result(0, repeat)
                assert found.row["compared_share"] == 1.0
                rows.append(found.row)
    return rows


def assert_right(row: dict[str, Any], stream: GemmStream, launch_calls: int) -> None:
    """Check that every output is within the bound, each command ran once, and the number of launch calls."""
    found = row["status"], row["verified"], row["commands"], row["launch_calls"]
    assert found == ("ok", True, stream.commands, launch_calls)


# -- Products


def log_uniform(generator: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    """Return `count` integers from `low` to `high`, odd and even, of all orders of magnitude."""
    drawn = np.exp(generator.uniform(np.log(low), np.log(high + 1), count))
    return np.clip(drawn.astype(np.int64), low, high).tolist()


@in_each_dtype
@pytest.mark.parametrize("independent", [True, False])
def test_few_columns(dtype: Dtype, independent: bool) -> None:
    """There are up to 16 columns; rows and k have any size. Commands are independent, or belong to three requests."""
    generator = np.random.default_rng([dtype, independent])
    edges = [(1, 1), (5000, 1), (1, 9000), (9, 8), (1025, 4096), (4999, 8999)]
    pairs = list(zip(log_uniform(generator, 1, 5000, 14), log_uniform(generator, 1, 9000, 14), strict=True))
    columns = [1, 16, *(generator.choice(np.arange(2, 16), 3, replace=False)).tolist()]
    segments = [Segment(n, 2, request % 3) for request, n in enumerate([*columns, *columns[::-1]])]
    stream = GemmStream([*edges, *pairs], 1, segments, dtype, 2, CommandOrder(independent=independent))
    assert all(takes(shape) for shape in stream.shapes)
    (row,) = ran(stream)
    assert_right(row, stream, 1)


@in_each_dtype
def test_few_rows(dtype: Dtype) -> None:
    """With fewer rows than columns, A and B are swapped."""
    generator = np.random.default_rng([dtype, 7])
    pairs = list(zip(range(1, 17), log_uniform(generator, 1, 9000, 16), strict=True))
    segments = [Segment(n, 2, request % 2) for request, n in enumerate((17, 40, 333, 1024, 3001))]
    stream = GemmStream(pairs, 1, segments, dtype, 2)
    assert all(takes(shape) for shape in stream.shapes)
    (row,) = ran(stream)
    assert_right(row, stream, 1)


def test_a_million_commands_each_of_which_is_checked() -> None:
    """The rings of commands and of tiles wrap around many times, at full speed."""
    stream = gemv(16, 1, 64, 1_000_000, Dtype.fp32, 500, CommandOrder(shuffle=True))
    (row,) = ran(stream)
    assert_right(row, stream, 1)


def test_runs_one_after_the_other_begin_anew() -> None:
    stream = gemv(300, 2, 500, 10_000, Dtype.fp16, 20, CommandOrder(shuffle=True))
    for row in ran(stream, repeats=3):
        assert_right(row, stream, 1)


# -- Handovers to cuBLASLt


@in_each_dtype
def test_cublaslt_runs_wide_gemms_in_order(dtype: Dtype) -> None:
    """The kernel ends before a wide GEMM, and starts again for the commands after it."""
    columns = [1, 40, 40, 3, 16, 17, 1, 33, 33, 2]
    segments = [Segment(n, 3, request % 4) for request, n in enumerate(columns)]
    stream = GemmStream([(300, 512), (64, 1000), (1027, 65)], 1, segments, dtype, 2)
    handed = sum(stream.counts[shape] for shape in stream.shapes if not takes(shape))
    starts = 1 + sum(now <= 16 < before for before, now in pairwise(columns))
    assert (handed, starts) == (3 * 3 * 5, 4)
    for row in ran(stream, repeats=2):
        assert_right(row, stream, handed + starts)


@pytest.mark.parametrize("each", [1, 20])
def test_the_next_kernel_runs_commands_after_an_end(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later commands are already in the ring when the kernel reads its END, since all are posted before kernels start.

    each: steps of a segment, so that one poll takes a few commands, or many.
    """
    from launchopt.devices.resident.kernel import Resident

    resume = Resident.resume

    def late(resident: Any) -> None:
        if not resident.running:
            resident._device.stream.launch_host_func(lambda _: time.sleep(LATE_S), None)
        resume(resident)

    monkeypatch.setattr(Resident, "resume", late)
    columns = [1, 40, 3, 33, 2]
    stream = GemmStream([(64, 100)], 1, [Segment(n, each) for n in columns], Dtype.fp32, 1)
    (row,) = ran(stream)
    assert_right(row, stream, 2 * each + 3)


def test_a_stream_may_begin_and_end_with_wide_gemms() -> None:
    stream = GemmStream([(64, 100)], 1, [Segment(20, 1), Segment(1, 1), Segment(20, 1)], Dtype.fp32, 1)
    (row,) = ran(stream)
    assert_right(row, stream, 2 + 2)


# -- Order


def run(arguments: str, folder: Path) -> tuple[int, str]:
    """Run the application; return its exit code and standard error."""
    call = [sys.executable, "-m", "runner", *arguments.split()]
    done = subprocess.run(
        call, capture_output=True, text=True, cwd=folder, env=environ_of(), timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stderr


def test_tokens_equal_those_of_baseline(tmp_path: Path) -> None:
    """Token ids equal baseline's in fp32, where near ties are rare, for 1, 3 and 16 requests. cuBLASLt runs prompts."""
    swept = "workload.requests=1,3,16 sampling=greedy,top_k"
    more = "against=[baseline] workload.tokens=12 workload.prompt_tokens=40"
    code, error = run(f"-m {DECODE} {swept} {more} hydra.sweep.dir={tmp_path}/sweep", tmp_path)
    assert (code, error) == (0, "")
    folders = sorted(path for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    assert len(folders) == 6
    for folder in folders:
        rows = {str(row["mode"]): row for row in results.read_summaries([folder])}
        persistent, baseline = rows["persistent"], rows["baseline"]
        for row in (persistent, baseline):
            assert (row["status"], row["verified"], row["ordering"]) == ("ok", True, "per_request")
        assert persistent["token_hash"] == baseline["token_hash"]
        assert 0 < persistent["launch_calls"] < baseline["launch_calls"]
        manifest = results.read_manifest(folder)
        by = {each["mode"]: each["commands_by_strategy"] for each in manifest["runs"]}["persistent"]
        assert by["resident"] + by["single"] == persistent["commands"]
        message = f"persistent: {by['single']:,} of {persistent['commands']:,} commands were launched otherwise"
        assert any(notice.startswith(message) for notice in manifest["notices"])


# -- Ends of the kernel


@pytest.mark.parametrize("workload", ["gemv_256 workload.commands=6", "decode model=tiny workload.requests=6"])
def test_a_kernel_without_commands_gives_up_and_the_run_fails(workload: str, tmp_path: Path) -> None:
    code, error = run(f"{SLOWLY} workload={workload} hydra.run.dir={tmp_path}/out", tmp_path)
    assert code == 1
    assert GAVE_UP_LINE in error
    assert error.count("\n") == 1, error
    assert results.read_manifest(tmp_path / "out")["status"] == "failed"


# A program that starts the persistent kernel, reports that it runs, and waits to be killed.
HOLD = """
import sys, time
import numpy as np
from launchopt.command import Dtype, as_words
from launchopt.queue.ring import Ring
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.worker.consumer import Consumer
from runner.plan.job import Arm

stream = gemv(256, 1, 256, 10, Dtype.fp32, 10)
words = as_words(np.concatenate([block.records for block in stream.blocks()]))
ring = Ring.create(64)
consumer = Consumer(job(stream, ring, "cuda", (Arm("persistent", 1, 0.0, None),)))
ring.release()
consumer.arm(0)
consumer.prepared[0].submit_each(words, np.zeros(len(words), np.int32), 0)
limit = time.monotonic() + 60
while consumer.prepared[0].resident._host_done[9] != 10:
    assert time.monotonic() < limit
print("resident", flush=True)
time.sleep(600)
"""
USE = """
import cupy
values = cupy.arange(1 << 20, dtype=cupy.float64)
total = (values * 2).sum()
cupy.cuda.Device().synchronize()
print(int(total))
"""


def test_after_a_process_was_killed_the_next_has_the_gpu() -> None:
    """SIGKILL arrives while the kernel occupies every multiprocessor. No host process is left to end the kernel."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, env=environ_of(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "resident\n"
    finally:
        holder.kill()
        holder.communicate()
    assert holder.returncode == -signal.SIGKILL
    call = [sys.executable, "-c", USE]
    done = subprocess.run(call, capture_output=True, text=True, env=environ_of(), timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{(1 << 20) * ((1 << 20) - 1)}\n"), done.stderr
