"""Predicted times: the formula, the bytes that are shared, packed or cached, and where a launch's cost comes from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.diagnosed_rows import BANDWIDTH, calibration, decode, few, repeats, row, traced

from launchopt.analysis.tables.strategies import build_strategies
from launchopt.analysis.verdict import roofline
from launchopt.analysis.verdict.calibration import Calibration
from launchopt.analysis.verdict.roofline import Prediction, predict
from launchopt.recording.results import Row

ms = st.floats(0.01, 1e4)


def predicted(rows: list[Row], mode: str = "baseline", known: Calibration | None = None) -> Prediction:
    (table,) = build_strategies(rows)
    (strategy,) = [each for each in table.strategies if each.line["mode"] == mode]
    return predict(strategy, known)


def source(prediction: Prediction) -> str:
    assert prediction.launches is not None
    return prediction.launches.source


@given(ms, ms, st.integers(1, 10**6), st.floats(100, 1e5))
def test_the_larger_of_bytes_and_flops_and_the_launches(
    bytes_ms: float, flops_ms: float, calls: int, ns: float
) -> None:
    columns = {"launch_calls": calls, "host_submit_burst_ns": ns, "host_submit_ns_per_launch": 2 * ns}
    found = predicted([row(bytes_ms=bytes_ms, flops_ms=flops_ms, **columns)])
    assert found.total_ms == pytest.approx(max(bytes_ms, flops_ms) + calls * ns / 1e6)
    assert found.headroom == pytest.approx(100 / max(bytes_ms, flops_ms))
    assert found.ratio == pytest.approx((found.total_ms or 0) / 100)


def test_first_calls_never_cost_more_than_the_mean() -> None:
    found = predicted([row(host_submit_burst_ns=9000.0, host_submit_ns_per_launch=4000.0)])
    assert found.launches is not None
    assert found.launches.us == 4.0
    assert "the run's own first calls, 4.00 us" in source(found)


def test_a_weight_is_read_once_a_batch_and_at_best_once_for_all() -> None:
    rows = [*decode("baseline", 100.0, bytes_ms=32.0), *decode("batched", 50.0, bytes_ms=32.0, batch_size_mean=4.0)]
    alone, batched = predicted(rows).work, predicted(rows, "batched").work
    assert (alone.bytes_ms, alone.all_bytes_ms, alone.least_bytes_ms) == pytest.approx((32.0, 32.0, 2.0))
    assert (batched.bytes_ms, batched.all_bytes_ms, batched.least_bytes_ms) == pytest.approx((8.0, 32.0, 2.0))
    assert alone.floor_ms == batched.floor_ms == pytest.approx(2.0)


@given(st.integers(1, 512), st.floats(1, 1e4))
def test_sharing_never_exceeds_the_requests_or_the_batch(requests: int, batch: float) -> None:
    found = predicted(decode("baseline", 100.0, requests=requests, batch_size_mean=batch)).work.shared_by
    assert found == pytest.approx(min(requests, batch))


def test_independent_commands_share_nothing() -> None:
    assert predicted(few("batched", 100.0), "batched").work.shared_by == 1


def test_a_hot_cache_gives_no_headroom_unless_flops_bound_it() -> None:
    hot: dict[str, Any] = {"cache": "hot", "input_footprint_bytes": BANDWIDTH * 1e6 * 0.1}
    found = predicted([row(bytes_ms=5.0, flops_ms=0.5, **hot)])
    assert found.work.bytes_ms == pytest.approx(0.1)
    assert found.headroom is None
    assert predicted([row(bytes_ms=5.0, flops_ms=50.0, **hot)]).headroom == pytest.approx(2.0)


def test_packing_is_read_and_written_on_top() -> None:
    found = predicted([row(bytes_ms=5.0, packed_bytes=BANDWIDTH * 1e6 * 10, host_submit_burst_ns=0.0)])
    assert found.work.moved_ms == pytest.approx(25.0)
    assert found.total_ms == pytest.approx(25.0)
    assert found.headroom == pytest.approx(20.0), "the work itself needs no packing"


@pytest.mark.parametrize(
    ("calls", "packed", "expected"), [(200, 1, 100), (200, 0, 200), (300, 1, 300), (100, 1, 100), (155, 1, 100)]
)
def test_calls_that_pack_belong_to_a_launch(calls: int, packed: int, expected: int) -> None:
    found = predicted([row(launch_calls=calls, batches=100, packed_bytes=packed)])
    assert found.launches is not None
    assert found.launches.launches == expected


def test_the_calibration_by_what_a_mode_launches() -> None:
    known = calibration(lt_launch_host_us=4.0, null_launch_host_us=2.0, kernel_gap_us=1.0, graph_replay_host_us=1.5)
    rows = [*repeats("baseline", 100.0), *repeats("pdl", 90.0), *repeats("torch_eager", 90.0)]
    expected = {"baseline": (40.0, "lt_launch_host_us"), "pdl": (20.0, "null_launch_host_us")}
    for mode, (launch_ms, name) in expected.items():
        found = predicted(rows, mode, known)
        assert found.launches is not None
        assert found.launches.total_ms == pytest.approx(launch_ms)
        assert f"calibration of 2026-01-01T00:00:00Z: {name}" in source(found)
    assert "own first calls" in source(predicted(rows, "torch_eager", known)), "no floor knows what PyTorch adds"


@pytest.mark.parametrize(
    ("mode", "stack", "replays", "name"),
    [
        ("coalesced+graph", "coalesce submit=graph kernels=cublaslt", 1000, "graph_replay_host_us"),
        ("torch_compile", "coalesce submit=graph kernels=torch", 1000, "graph_replay_host_us"),
        ("coalesced+own", "coalesce submit=stream kernels=own", None, "null_launch_host_us"),
        ("coalesced+own", None, None, "lt_launch_host_us"),
        ("kernel+coalesce+cublaslt", "coalesce submit=stream kernels=cublaslt", None, "lt_launch_host_us"),
        ("coalesced+torch", "coalesce submit=stream kernels=torch", None, "own first calls"),
        ("coalesced+megakernel+own", "coalesce submit=megakernel kernels=own", None, "own first calls"),
        ("cublaslt_fp8", "submit=stream kernels=cublaslt", None, "own first calls"),
    ],
)
def test_a_stack_costs_what_its_choices_launch(mode: str, stack: str | None, replays: int | None, name: str) -> None:
    known = calibration(lt_launch_host_us=4.0, null_launch_host_us=2.0, graph_replay_host_us=1.5)
    rows = decode(mode, 100.0, stack=stack, graph_replays=replays)
    assert name in source(predicted([*decode("baseline", 110.0), *rows], mode, known))


def test_the_gpu_sets_the_pace_where_it_is_slower_than_the_host() -> None:
    found = predicted([row("pdl")], "pdl", calibration(null_launch_host_us=2.0, kernel_gap_us=3.0))
    assert found.launches is not None
    assert (found.launches.us, "kernel_gap_us" in found.launches.source) == (3.0, True)


def test_nodes_of_a_graph_count_where_a_tracer_counted_them() -> None:
    known = calibration(graph_replay_host_us=1.0, graph_node_gpu_us=0.5)
    graph = few("graph", 50.0, graph_replays=100)
    without = predicted(graph, "graph", known)
    assert "not counted" in source(without)
    assert without.launches is not None
    assert without.launches.total_ms == pytest.approx(0.1)
    counted = predicted([*graph, traced("graph", 20.0, 10_000)], "graph", known)
    assert counted.launches is not None
    assert counted.launches.total_ms == pytest.approx(5.1)


@pytest.mark.parametrize("columns", [{"gpu": "NVIDIA A100"}, {"workload": "layer"}])
def test_a_calibration_that_does_not_fit_is_not_used(columns: dict[str, Any]) -> None:
    assert "own first calls" in source(predicted([row(**columns)], "baseline", calibration(lt_launch_host_us=4.0)))


def test_on_a_cpu_a_call_does_not_tell_what_a_launch_costs() -> None:
    found = predicted([row(device="cpu", gpu=None, gpu_span_ms=None)], "baseline", calibration(lt_launch_host_us=4.0))
    assert (found.launches, found.total_ms, found.headroom) == (None, None, pytest.approx(20.0))


def test_what_was_not_measured_is_not_predicted() -> None:
    bare = predicted([row(bytes_moved=None, achieved_tflops=None)])
    assert (bare.total_ms, bare.headroom, bare.ratio) == (None, None, None)
    no_calls = predicted([row(host_submit_burst_ns=None, host_submit_ns_per_launch=None)])
    assert (no_calls.launches, no_calls.total_ms) == (None, None)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"achieved_gb_per_s": BANDWIDTH * 1.019}, None),
        ({"achieved_gb_per_s": BANDWIDTH * 1.021}, "4,084 GB/s is above the measured 4,000 GB/s, and nothing"),
        ({"achieved_gb_per_s": BANDWIDTH * 2, "above_ceiling": "8000 GB/s ...: inputs stay in the cache"}, None),
        ({"achieved_gb_per_s": BANDWIDTH * 2, "above_ceiling": "8000 GB/s, and nothing explains it"}, "nothing"),
        (
            {"achieved_tflops": 51.5, "above_ceiling": "51.5: a cache"},
            "51.5 TFLOP/s is above the measured peak of 50",
        ),
        (
            {
                "achieved_gb_per_s": BANDWIDTH * 2,
                "above_ceiling": "8000 GB/s ...: shared",
                "least_memory_bytes": 10**15,
            },
            "from memory is above the measured 4,000 GB/s",
        ),
        ({"achieved_tflops": None, "achieved_gb_per_s": None}, None),
        ({"read_gb_per_s": None, "copy_gb_per_s": None, "peak_tflops": None, "achieved_gb_per_s": 1e9}, None),
    ],
)
def test_a_rate_above_a_ceiling_needs_a_reason(columns: dict[str, Any], expected: str | None) -> None:
    found = roofline.impossible(row(**columns))
    assert (found is None) if expected is None else (found is not None and expected in found)


def test_quantised_weights_are_launched_by_kernels_of_our_own() -> None:
    known = calibration(lt_launch_host_us=3.0, null_launch_host_us=2.0)
    assert "lt_launch_host_us 3.00" in source(predicted(repeats("baseline", 100.0), known=known))
    assert "null_launch_host_us 2.00" in source(
        predicted(repeats("baseline", 100.0, weights="fp8 per channel"), known=known)
    )


@pytest.mark.parametrize("batch", [1.0, 16.0])
def test_each_expert_is_read_once_a_step_however_its_gemms_are_launched(batch: float) -> None:
    """The commands of a step with experts read different weights: no batch shares one, and codes count as bytes."""
    moe = {"workload": "moe", "expert_routing": "balanced", "steps": 8, "step_tokens": 4, "requests": 1}
    moe |= {"weights": "fp8 per channel", "weight_bytes": 8 * (8192 + 16 * 25_600), "batch_size_mean": batch}
    found = predicted(repeats("baseline", 100.0, **moe) + repeats("graph", 50.0, **moe), "graph")
    assert found.work.bytes_ms == found.work.least_bytes_ms == pytest.approx(5.0)
    assert found.headroom == pytest.approx(10.0)
