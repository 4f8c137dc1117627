"""The whole consumer on each device, in this process: the same streams, the same assertions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from launchopt.command import Dtype
from launchopt.producing.blocks import produce
from launchopt.producing.production import RunKind
from launchopt.queue.ring import Ring
from launchopt.queue.waiter import Waiter
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.streams.operands import arenas_of
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CAPACITY = 8192
CALLS_OF_PACKING = {"cpu": 3, "cuda": 4}
LINEARS = [(96, 64), (64, 64), (128, 64), (64, 128)]

on_each_device = pytest.mark.parametrize("device", DEVICES)
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


def results_of(
    stream: GemmStream, device: str, folder: Path, arms: tuple[Arm, ...], **changes: Any
) -> list[dict[str, Any]]:
    """Push the whole stream, then consume it; return a result of each arm."""
    found = []
    with Ring.create(CAPACITY) as ring:
        todo = replace(job(stream, ring, device, arms), folder=folder, record_launches=True, **changes)
        with Consumer(todo) as consumer:
            for index in range(len(arms)):
                ring.reset()
                consumer.arm(index)
                produce(stream.blocks(), ring, Waiter(ring.await_free_slots, 0, 1))
                consumer.consume()
                found.append(consumer.result(index, 0).row)
    return found


def arm(mode: str, max_batch: int = 16, timeout_us: float = 1e6) -> Arm:
    return Arm(mode, max_batch, timeout_us, None)


@on_each_device
@in_each_dtype
def test_both_modes_compute_the_same_layers(device: str, dtype: Dtype, tmp_path: Path) -> None:
    stream = GemmStream(
        LINEARS, 3, [Segment(5, 1, 0), Segment(1, 40, 0), Segment(300, 1, 1), Segment(1, 7, 1)], dtype, 2
    )
    baseline, batched = results_of(stream, device, tmp_path, (arm("baseline"), arm("batched")))
    for row in (baseline, batched):
        assert row["status"] == "ok"
        assert row["verified"]
        assert row["commands"] == stream.commands
    assert baseline["launch_calls"] == stream.commands
    assert batched["launch_calls"] < stream.commands / 3
    assert batched["flush_full"] + batched["flush_drain"] == batched["batches"]
    launches = pq.read_table(tmp_path / "launches.parquet").to_pylist()
    packed = [launch for launch in launches if launch["strategy"] == "packed"]
    calls = baseline["launch_calls"] + batched["launch_calls"]
    assert len(launches) == calls - CALLS_OF_PACKING[device] * len(packed)


@on_each_device
@in_each_dtype
def test_scattered_weights_are_packed_and_charged(device: str, dtype: Dtype, tmp_path: Path) -> None:
    stream = gemv(8, 1, 16, 512, dtype, 64, CommandOrder(shuffle=True))
    (row,) = results_of(stream, device, tmp_path, (arm("batched", 64),))
    assert row["status"] == "ok"
    # A GPU copies whole slots of 256 bytes, NumPy the matrices in them.
    slots = sum(arena.slot_bytes for arena in arenas_of(stream.shapes[0]))
    a_command = slots if device == "cuda" else (8 * 16 + 16 + 8) * dtype.itemsize
    assert row["packed_bytes"] == 512 * a_command
    assert row["launch_calls"] == 8 * (5 if device == "cuda" else 4)


@on_each_device
def test_sampled_launches_give_latencies(device: str, tmp_path: Path) -> None:
    stream = gemv(64, 1, 256, 4096, Dtype.fp32, 128)
    rows = results_of(stream, device, tmp_path, (arm("baseline"), arm("batched", 32)), sample_every=8, timing="events")
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < row["latency_samples"] <= 4096
        assert 0 < row["latency_p50_us"] <= row["latency_p99_us"]
        assert (row["gpu_span_ms"] is not None) == (device == "cuda")


@pytest.mark.gpu
def test_cupti_counts_the_kernels_that_launches_started(tmp_path: Path) -> None:
    stream = gemv(256, 1, 256, 2048, Dtype.fp32, 512)
    baseline, batched = results_of(stream, "cuda", tmp_path, (arm("baseline"), arm("batched", 64)), timing="cupti")
    assert baseline["kernels"] >= 2048
    assert batched["kernels"] >= 32
    assert batched["kernels"] < baseline["kernels"] / 16
    assert 0 < baseline["gpu_busy_ms"] <= baseline["gpu_span_ms"]


def test_a_warm_up_run_takes_the_sampled_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = gemv(8, 1, 16, 4096, Dtype.fp32, 64)
    with Ring.create(CAPACITY) as ring:
        todo = replace(job(stream, ring, "cpu", (arm("baseline"),)), folder=tmp_path, sample_every=64)
        with Consumer(todo) as consumer:
            gaps: list[int] = []
            monkeypatch.setattr(consumer.device, "start", lambda every, mode: gaps.append(every))
            consumer.arm(0, RunKind.WARM_UP)
            consumer.arm(0)
    assert gaps == [1, 64], "else its compiled loops would be loaded while the clock runs"


def test_a_mode_knows_whether_a_run_is_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = gemv(8, 1, 16, 4096, Dtype.fp32, 64)
    with (
        Ring.create(CAPACITY) as ring,
        Consumer(replace(job(stream, ring, "cpu", (arm("baseline"),)), folder=tmp_path)) as consumer,
    ):
        (prepared,) = consumer.prepared
        warm_ups: list[bool] = []
        monkeypatch.setattr(prepared, "start", lambda warm_up: warm_ups.append(warm_up))
        for kind in RunKind:
            consumer.arm(0, kind)
    assert warm_ups == [kind is RunKind.WARM_UP for kind in RunKind]
