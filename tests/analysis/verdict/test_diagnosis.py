"""The verdict on a stream: what bounds it, what is left; and that nothing unsound is claimed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT
from support.results.diagnosed_rows import (
    BANDWIDTH,
    EXPERTS,
    calibration,
    decode,
    few,
    line,
    only,
    repeats,
    row,
    traced,
)

from launchopt.analysis.verdict.diagnosis import diagnose
from launchopt.analysis.verdict.markdown import diagnosis_evidence, diagnosis_markdown
from launchopt.recording import results

REFERENCE = ROOT / "outputs" / "reference" / "gpu"


def test_a_mode_that_quantises_inputs_is_not_recommended() -> None:
    rows = [*repeats("baseline", 100.0, 101.0, 99.0), *few("batched", 5.1, 5.2, 5.0)]
    rows += few("cublaslt_fp8", 2.0, 2.1, 1.9, quantised_inputs="fp8 per channel")
    assert only(rows).first_to_try == "batched"


def test_launch_bound_by_the_host_and_what_to_try() -> None:
    rows = [*repeats("baseline", 100.0, 101.0, 99.0), *few("batched", 5.1, 5.2, 5.0), *few("graph", 5.05, 5.1, 5.0)]
    found = only(rows)
    assert found.first_to_try == "batched", "within 5% of the fastest, and less to change than a graph"
    assert found.sentence.startswith(
        "baseline is launch-bound (launching thread): 80% of its 100.0 ms is inside launch calls (10,000 x 8.000 us)."
        " Try batched first: measured 19.6x"
    )
    assert "at 98.0% of 4,000 GB/s (read) bandwidth, so no other strategy is worth trying" in found.sentence
    assert "Fastest is graph (5.050 ms), but takes more work in an engine." in found.sentence
    base = line(found, "baseline")
    assert (base.bound, base.side, base.headroom) == ("launch-bound", "launching thread", pytest.approx(20.0))
    assert (base.predicted_ms, base.launch_ms) == (pytest.approx(85.0), pytest.approx(80.0))
    assert base.launch_cost == "the run's own first calls, 8.00 us each"


def test_busy_with_short_kernels_is_no_fault_of_the_host() -> None:
    rows = [*repeats("baseline", 100.0, 100.0, 100.0), traced("baseline", 85.0, 20_000, wall_ms=500.0)]
    found = only(rows)
    assert (line(found, "baseline").bound, line(found, "baseline").side) == ("latency-bound", "short kernels")
    assert (
        "busy for 85% of its 100.0 ms (and the launching thread for 80%) with 20,000 kernels of 4.250 us"
        in found.sentence
    )
    assert line(found, "baseline").kernel_headroom == pytest.approx(100 / 85)


def test_a_bandwidth_that_changed_during_the_runs_is_compared_with_nothing_and_the_evidence_says_so() -> None:
    changed = {"ceilings_change": 0.31, "read_gb_per_s": None, "copy_gb_per_s": None, "peak_tflops": None}
    slow, fast = repeats("baseline", 100.0, 101.0, 99.0, **changed), few("batched", 5.1, 5.2, 5.0, **changed)
    found = only([*slow, *fast])
    assert "roofline" not in found.sentence
    assert "bandwidth" not in found.sentence
    for each in found.lines:
        assert (each.headroom, each.bytes_ms, each.flops_ms, each.predicted_ms) == (None, None, None, None)
        why = "memory bandwidth changed by 31% during the runs (another process?)"
        assert f"{why}, so no share of the peak is shown" in each.evidence


def test_gaps_on_the_gpu_where_neither_is_at_work() -> None:
    rows = [*few("baseline", 100.0, 100.0, 100.0), traced("baseline", 20.0, 100)]
    assert line(only(rows), "baseline").side == "gaps on the GPU"
    assert "the GPU is idle for 80% of its 100.0 ms while launch calls take 1%" in only(rows).sentence


def test_untraced_and_unclear_is_said_so() -> None:
    found = only(few("baseline", 100.0, 100.0, 100.0))
    assert found.sentence.startswith(
        "baseline has an undetermined bottleneck: at the roofline the work takes 5% of its 100.0 ms; a traced run"
    )
    assert "timing=cupti" in found.sentence
    assert found.first_to_try is None


def test_nothing_is_to_be_gained_near_the_ceiling() -> None:
    found = only(few("baseline", 100.0, 100.0, 100.0, bytes_ms=95.0))
    assert found.first_to_try is None
    assert "Already at the roofline: 95.0% of 4,000 GB/s (read) bandwidth." in found.sentence


def test_compute_bound_has_no_remedy_among_launches() -> None:
    found = only(few("baseline", 100.0, 100.0, 100.0, flops_ms=70.0))
    assert line(found, "baseline").bound == "compute-bound"
    assert "No launch strategy removes that" in found.sentence


def test_an_overload_of_late_arrivals_names_no_rate_above_theirs() -> None:
    late = {"arrival": "poisson", "arrival_rate_per_s": 100.0, "overloaded": True, "latency_p50_us": 60.0}
    for done, told in ((80.0, ", 80.00 done"), (120.0, "")):
        found = only(repeats("baseline", 100.0, 100.0, completed_rate_per_s=done, **late))
        assert f"open loop, overloaded: 100.0 due per second{told}" in line(found, "baseline").evidence


def test_an_open_loop_that_kept_up_is_bound_by_arrivals() -> None:
    open_ = {"arrival": "poisson", "arrival_rate_per_s": 100.0, "completed_rate_per_s": 99.5}
    open_ |= {"queue_wait_p50_us": 30.0, "latency_p50_us": 60.0}
    found = only(repeats("baseline", 100.0, 100.0, 100.0, overloaded=False, **open_))
    assert (line(found, "baseline").bound, line(found, "baseline").headroom) == ("queue-bound", None)
    assert "30.00 us of a latency of 60.00 us are queue wait" in found.sentence
    assert found.first_to_try is None
    assert "open loop, kept up: 100.0 due per second, all finished" in line(found, "baseline").evidence
    once = only(
        [*repeats("baseline", 100.0, overloaded=False, **open_)]
        + [{**each, "repeat": 1} for each in repeats("baseline", 100.0, overloaded=True, **open_)]
    )
    assert "open loop, overloaded: 100.0 due per second, 99.50 done" in line(once, "baseline").evidence
    late = only(repeats("baseline", 100.0, 100.0, 100.0, overloaded=True, **open_))
    assert "open loop, overloaded: 100.0 due per second, 99.50 done" in line(late, "baseline").evidence
    assert line(late, "baseline").bound == "launch-bound", "overloaded: the rate is the device's own"


def test_deadlines_that_take_the_time_are_seen() -> None:
    columns = {"batches": 100, "flush_deadline": 90, "timeout_us": 1000.0}
    found = only(few("baseline", 100.0, 100.0, 100.0, **columns))
    assert line(found, "baseline").side == "deadlines"
    assert "deadline of 1000 us, in all for up to 90% of its 100.0 ms" in found.sentence
    assert "Try a shorter batching.timeout_us first." in found.sentence
    few_of_them = only(few("baseline", 100.0, 100.0, 100.0, **{**columns, "flush_deadline": 49, "timeout_us": 2000.0}))
    assert line(few_of_them, "baseline").bound == "undecided"


def test_on_a_cpu_only_a_comparison_tells() -> None:
    cpu: dict[str, Any] = {"device": "cpu", "gpu": None, "gpu_span_ms": None}
    base = repeats("baseline", 100.0, 100.0, 100.0, **cpu)
    alone = line(only(base), "baseline")
    assert (alone.bound, alone.predicted_ms, alone.launch_ms) == ("undecided", None, None)
    assert any("on the CPU a call is also its work" in fact for fact in alone.evidence)
    assert not any("launch queue" in fact or "GPU" in fact for fact in alone.evidence)
    found = only([*base, *few("batched", 20.0, 20.0, 20.0, **cpu)])
    assert (line(found, "baseline").bound, line(found, "baseline").side) == ("command-bound", "")
    assert found.sentence.startswith(
        "baseline is command-bound: by the medians, fewer launches made it 5x faster, so the cost is per command"
        " (launch, queue and Python together). Try batched first"
    )


def test_a_mode_that_may_be_faster_is_named_with_its_interval() -> None:
    cpu: dict[str, Any] = {"device": "cpu", "gpu": None, "gpu_span_ms": None}
    base = repeats("baseline", 100.0, 110.0, 90.0, 130.0, 80.0, 95.0, **cpu)
    found = only([*base, *few("batched", 80.0, 120.0, 90.0, 85.0, 110.0, 75.0, **cpu)])
    speedup = line(found, "batched").speedup
    assert speedup is not None
    assert f"batched may be faster ({speedup}); undecided." in found.sentence
    alike = few("batched", 101.0, 108.0, 91.0, 131.0, 79.0, 94.0, **cpu)
    near = only([*base, *alike])
    assert f"batched may be as fast ({line(near, 'batched').speedup}); undecided." in near.sentence
    quantises = few("cublaslt_fp8", 80.0, 120.0, 90.0, 85.0, 110.0, 75.0, quantised_inputs="fp8 per channel", **cpu)
    assert "cublaslt_fp8" not in only([*base, *alike, *quantises]).sentence, "its outputs are other ones"
    unlikely = few("batched", 110.0, 160.0, 88.0, 150.0, 110.0, 120.0, **cpu)
    assert "No other mode that was measured is faster." in only([*base, *unlikely]).sentence
    slower = few("batched", 190.0, 191.0, 192.0, 190.0, 191.0, 193.0, **cpu)
    assert "No other mode that was measured is faster." in only([*base, *slower]).sentence


def test_bytes_in_table_and_evidence_have_one_definition() -> None:
    packed = few("batched", 100.0, 100.0, 100.0, packed_bytes=0.25 * BANDWIDTH * 1e6)
    one = line(only([*repeats("baseline", 100.0, 100.0, 100.0), *packed]), "batched")
    (fact,) = [fact for fact in one.evidence if fact.startswith("bytes:")]
    assert one.bytes_ms is not None
    assert fact.startswith(f"bytes: {one.bytes_ms:.3f} ms at")
    assert ", of which packing takes 0.500 ms" in fact


def test_a_rate_above_the_measured_peak_is_at_the_peak_and_has_no_share() -> None:
    above = few("baseline", 100.0, 100.0, 100.0, bytes_ms=102.0, above_ceiling="a cache may hold some")
    sentence = only(above).sentence
    assert "its bytes alone take all of its 100.0 ms" in sentence
    assert "Already at the roofline: 4,000 GB/s (read) bandwidth." in sentence
    assert "102" not in sentence


def test_a_queue_that_cannot_fill_is_not_called_full() -> None:
    """8,000 launches of 16 requests, 8 a token: 128 at a time. All time in calls is the host's own."""
    columns = {"host_submit_burst_ns": 4000.0, "host_submit_ns_per_launch": 8000.0}
    closed = only(decode("baseline", 100.0, 100.0, 100.0, **columns))
    assert line(closed, "baseline").side == "launching thread"
    many = only(decode("baseline", 100.0, 100.0, 100.0, requests=200, **columns))
    assert line(many, "baseline").side == "GPU side, kernels and gaps not told apart"
    assert any("the launch queue was full" in fact for fact in line(many, "baseline").evidence)


@pytest.mark.parametrize("bad", [{"verified": False}, {"status": "3 commands went missing"}])
def test_unsound_lines_get_no_verdict(bad: dict[str, Any]) -> None:
    found = only([*repeats("baseline", 100.0, 100.0, 100.0), *few("batched", 5.0, 5.0, 5.0, **bad)])
    broken = line(found, "batched")
    assert (broken.bound, broken.predicted_ms, broken.headroom, broken.speedup) == ("no verdict", None, None, None)
    assert found.first_to_try != "batched"
    assert "No verdict on batched: failed or not verified." in found.sentence
    alone = only(repeats("baseline", 100.0, 100.0, **bad))
    assert alone.sentence.startswith("No verdict: baseline")


def test_an_impossible_rate_is_said_first_and_nothing_else() -> None:
    above = few("batched", 5.0, 5.0, 5.0, achieved_gb_per_s=BANDWIDTH * 1.5)
    found = only([*repeats("baseline", 100.0, 100.0, 100.0), *above])
    assert found.errors == ["batched: 6,000 GB/s is above the measured 4,000 GB/s, and nothing explains it"]
    assert found.sentence.startswith("Impossible: batched: 6,000 GB/s")
    assert line(found, "batched").bound == "impossible"


def test_only_traced_runs_give_counts_and_no_verdict() -> None:
    found = only([traced("baseline", 20.0, 100)])
    assert found.sentence.startswith("No verdict: only traced runs")
    assert found.lines[0].evidence == ["kernels: 100", "GPU busy: 20 ms"]
    assert found.lines[0].measured_ms is None
    assert diagnosis_markdown([found]).count("no verdict") == 1


def test_a_sweep_names_the_settings() -> None:
    rows = [*repeats("batched", 100.0, 100.0, 100.0), *repeats("batched", 90.0, 90.0, 90.0, max_batch=32)]
    found = only(rows)
    assert "batched (max_batch 32, timeout 100 us)" in found.sentence
    assert "| max_batch, timeout |" in diagnosis_markdown([found])


def test_the_calibration_is_named() -> None:
    (found,) = diagnose(repeats("baseline", 100.0), {}, calibration(lt_launch_host_us=4.0))
    assert found.lines[0].launch_ms == pytest.approx(40.0)
    assert any("lt_launch_host_us 4.00" in fact for fact in diagnosis_evidence(found))
    assert any("its launches cost 8.00 us, not 4.00" in fact for fact in found.evidence)


@settings(max_examples=60)
@given(
    st.floats(1, 1e4), st.floats(0.001, 1e4), st.floats(0, 1e4), st.floats(1, 1e5), st.floats(1, 1e5),
    st.integers(1, 10**5), st.none() | st.floats(0.001, 1e4), st.sampled_from(["cold", "hot"]),
)  # fmt: skip
def test_every_line_gets_words_and_no_nonsense(
    wall: float, moved: float, flops: float, burst: float, mean: float, calls: int, busy: float | None, cache: str
) -> None:
    columns = {"host_submit_burst_ns": burst, "host_submit_ns_per_launch": mean, "launch_calls": calls, "cache": cache}
    rows = [row(wall_ms=wall, bytes_ms=moved, flops_ms=flops, **columns)]
    rows += [] if busy is None else [traced("baseline", busy, 100, cache=cache)]
    found = only(rows)
    assert found.sentence
    assert "nan" not in (text := diagnosis_markdown([found])), text
    for each in found.lines:
        if each.headroom is not None:
            assert each.headroom >= 1 / 1.03, "above it the rate is impossible, and there is no headroom"
        if each.bound in ("no verdict", "impossible"):
            assert each.predicted_ms is None


def test_reference_runs_say_what_was_found_on_the_h200() -> None:
    """Guards the rules against real data: each sentence was checked by hand against the figures of its run."""
    folder = REFERENCE / "strategies"
    rows = results.read_summaries([folder])
    found = {
        one.title.partition(",")[0] + (" of " + one.title.partition(" of ")[2]): one for one in diagnose(rows, {}, None)
    }
    gemv = next(one for title, one in found.items() if title.startswith("gemv_micro"))
    assert (line(gemv, "baseline").bound, line(gemv, "batched").bound) == ("launch-bound", "memory-bound")
    assert gemv.first_to_try == "batched"
    assert "so no other strategy is worth trying. Fastest is torch_compile" in gemv.sentence
    sixteen = found["decode fp16 of 16 requests"]
    assert (sixteen.first_to_try, line(sixteen, "coalesced").bound) == ("megakernel", "launch-bound")
    assert line(sixteen, "graph").bound == "latency-bound", "a graph hides its launches; the traced run has its kernels"
    prefill = found["prefill fp16 of 512 requests"]
    assert line(prefill, "pointer_array").bound == "compute-bound"
    for one in found.values():
        assert not one.errors
        for each in one.lines:
            if each.speedup is not None and line(one, "baseline").headroom is not None:
                most = line(one, "baseline").headroom or 0
                assert each.speedup.value <= most * 1.02, "a strategy that beats the roofline's bound"


def test_the_further_launches_of_a_step_with_experts_do_not_pack() -> None:
    calls = {"launch_calls": 2000, "submits": 250, "batches": 250, "host_submit_ns_per_launch": 40_000.0}
    (fact, *_) = line(only(repeats("expert_kernel", 20.0, 21.0, 19.0, **EXPERTS, **calls)), "expert_kernel").evidence
    assert fact.startswith("launch calls: 2,000 in 250 launches: 250 x 40.00 us = 10.00 ms, 50.0% of the wall time")
    assert "pack" not in fact
