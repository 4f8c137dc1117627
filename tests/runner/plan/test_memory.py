"""Memory of a job: the peak on a CPU, and a killed process that most likely lacked memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.composing import planned

from launchopt.devices.base import DeviceInfo
from runner.plan import memory
from runner.plan import plan as plan_module


def test_on_a_cpu_the_check_of_the_largest_weight_fits_beside_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    info = DeviceInfo("cpu", 0, "Fake", 24 << 30, 32 << 20, "main memory", 8 << 10)
    monkeypatch.setattr(plan_module, "find_device", lambda kind, index: (info, "faked"))
    plan = planned("workload=decode", "model=llama_3_8b", "workload.tokens=2")
    check = 40 * 28672 * 4096
    assert plan.stream.layers > 8
    assert plan.stream.arena_bytes + check < 0.8 * info.memory_free_bytes


def test_angles_of_fused_attention_are_counted_once_and_only_on_a_gpu() -> None:
    words = ("workload=layer", "model=tiny", "model.head_dim=64", "workload.prompt_tokens=500", "workload.tokens=2")
    plan = planned(*words, "mode=engine", "against=[engine-norm,engine-attention]", "workload.layers=1")
    without, *others = sorted(plan.arms, key=lambda arm: arm.label != "engine-attention")
    gpu = DeviceInfo("cuda", 0, "Fake", 24 << 30, 32 << 20, "memory", 8 << 10)
    base = memory.needed_bytes(gpu, plan.stream, (without,))
    assert len(others) == 2
    assert memory.needed_bytes(gpu, plan.stream, plan.arms) - base > 4 * 64 * 501
    for arm in others:
        assert memory.needed_bytes(gpu, plan.stream, (arm,)) == memory.needed_bytes(gpu, plan.stream, plan.arms)
    assert memory.needed_bytes(plan.info, plan.stream, plan.arms) == memory.needed_bytes(
        plan.info, plan.stream, (without,)
    )


def test_a_kill_is_taken_for_a_lack_of_memory_if_linux_counted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "OOM_KILLS", tmp_path / "vmstat")
    stream = planned("workload=decode", "model=tiny", "workload.tokens=2").stream
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 3\n")
    assert memory.oom_kills() == 3
    assert memory.out_of_memory(stream, 3) == ""
    text = memory.out_of_memory(stream, 2)
    assert text.startswith(", most likely out of memory: its operands alone take ")
    assert text.endswith(" GB; try workload.layers=1")
    (tmp_path / "vmstat").unlink()
    assert memory.oom_kills() is None
    assert memory.out_of_memory(stream, None) == "", "operands of a few MB do not fill a machine"
