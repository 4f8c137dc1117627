"""A GPU that lacks a dtype, or the instructions of a kernel, is known before a run has a folder."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.config.composing import planned

from launchopt.devices.base import DeviceInfo
from launchopt.errors import ConfigError
from launchopt.modes import mode_class
from runner.plan import plan as plan_module

A100 = DeviceInfo("cuda", 0, "Fake A100", 40 << 30, 40 << 20, "memory of Fake", 12 << 20, 80)
GEMV = ("workload=gemv_micro", "workload.dtype=bf16", "workload.weights=fp8", "workload.scales=tensor")
LAYER = ("workload=layer", "model=llama_3_2_1b", "workload.dtype=bf16", "workload.weights=int4", "workload.tokens=2")
MOE = ("workload=moe", "model=qwen3_30b_a3b", "workload.dtype=bf16", "workload.weights=fp8", "workload.steps=4")


def of_fake(info: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "find_device", lambda kind, index: (info, "faked"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            (*GEMV, "mode=cublaslt_fp8"),
            "mode=cublaslt_fp8: needs compute capability 8.9 or newer for fp8, and this GPU",
        ),
        (
            (*LAYER, "mode=graph", "mode.kernels=own"),
            "our GEMM of decode steps with int4 weights needs compute capability",
        ),
        (
            (*MOE, "mode=graph"),
            "mode=graph: our GEMM of experts with fp8 weights needs compute capability 9.0 or newer",
        ),
        ((*MOE, "mode=expert_kernel"), "use mode=baseline, or workload.weights=none"),
        ((*LAYER[:3], "workload.tokens=2", "mode=megakernel"), "its kernel needs compute capability 9.0 or newer"),
    ],
    ids=["cublaslt_fp8", "own", "graph", "expert_kernel", "megakernel"],
)
def test_a_gpu_that_cannot_run_a_mode_is_refused_in_one_line(
    settings: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_fake(A100, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        planned(*settings)
    assert why in str(caught.value)
    assert "this GPU has 8.0: use " in str(caught.value)
    of_fake(replace(A100, compute_capability=90), monkeypatch)
    assert planned(*settings).arms


def test_against_all_leaves_out_what_the_gpu_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    of_fake(A100, monkeypatch)
    plan = planned(*MOE, "mode=baseline", "against=all", "workload.tokens=2")
    assert "kernel" in {arm.label for arm in plan.arms}
    assert "this GPU has 8.0" in plan.refused["graph"]
    assert "this GPU has 8.0" in plan.refused["expert_kernel"]


def test_triton_converts_fp8_from_8_9_on_and_whole_numbers_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    of_fake(A100, monkeypatch)
    fp8, int4 = (planned(*GEMV[:2], f"workload.weights={each}", "mode=kernel").stream for each in ("fp8", "int4"))
    triton = mode_class("triton_batched")
    found = triton.capability_refusal(fp8, 80)
    assert found is not None
    assert "and this GPU has 8.0: use workload.weights=int8 or int4, or mode=kernel" in found
    assert triton.capability_refusal(fp8, 89) is None
    assert triton.capability_refusal(int4, 80) is None
