"""The base of a single run: which mode it is, and which runs get none."""

from __future__ import annotations

import pytest
from support.config.composing import composed, configured

from launchopt.devices.cpu import info
from launchopt.workloads.gemv import Gemv
from runner.config.objects import to_config
from runner.plan.base import bases_of, plan_with_base

MIB = 1 << 20


@pytest.mark.parametrize(
    ("words", "bases"),
    [
        ("mode=batched", ("baseline",)),
        ("mode=baseline", ()),
        ("mode=batched timing=cupti", ()),
        ("mode=batched timing=torch", ()),
        ("workload=decode mode=graph", ("engine", "baseline")),
        ("workload=decode mode=coalesced", ("engine", "baseline")),
        ("workload=decode mode=engine", ("baseline",)),
        ("workload=decode mode=engine mode.submit=graph", ("engine", "baseline")),
        ("workload=decode mode=baseline", ()),
        ("workload=layer mode=baseline mode.fuse=[norm]", ("engine", "baseline")),
        ("workload=layer mode=engine mode.fuse=[attention]", ("engine", "baseline")),
        ("workload=layer mode=coalesced mode.fuse=[attention,qkv,gate_up,norm,rope_kv]", ("baseline",)),
        ("workload=layer mode=coalesced mode.coalesce=false", ("engine",)),
        ("workload=decode mode=batched ordering=none", ("baseline",)),
        ("workload=decode workload.requests=2 mode=batched ordering=violated", ()),
    ],
)
def test_the_base_suits_the_workload(words: str, bases: tuple[str, ...]) -> None:
    assert bases_of(configured(*words.split())) == bases


def test_a_profiled_run_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "injected.so")
    assert bases_of(configured("mode=batched")) == ()


@pytest.mark.parametrize(
    ("reported", "cores", "taken"),
    [(32, 2, 32), (96, 8, 96), (480, 2, 96), (480, 96, 480), (504, 128, 504), (260, 40, 260)],
)
def test_few_cores_own_no_cache_of_a_whole_host(
    reported: int, cores: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(info.CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(info, "reported_cache_bytes", lambda default=0: reported * MIB)
    monkeypatch.setattr(info.psutil, "cpu_count", lambda: cores)
    assert info.cpu_info().cache_bytes == taken * MIB


def test_a_run_on_a_cpu_has_fewer_commands_by_default() -> None:
    large, small = Gemv("large", m=64, k=8192), Gemv("small", m=256, k=256)
    assert [each.count("cpu") for each in (large, small)] == [512, 4096]
    assert [each.count("cuda") for each in (large, small)] == [8192, 8192]
    assert Gemv("given", m=64, k=8192, commands=7).count("cpu") == 7


@pytest.mark.parametrize(
    ("words", "repeats"),
    [
        ("against=all", 5),
        ("against=[all]", 5),
        ("against=all repeats=2", 2),
        ("against=[graph]", 5),
        ("against=[]", 1),
        ("waterfall=[[baseline,batched]]", 5),
        ("waterfall=[[baseline,batched]] against=[] repeats=2", 2),
    ],
)
def test_modes_beside_it_take_five_repeats_as_a_base_does(words: str, repeats: int) -> None:
    task = composed("mode=batched", "device=cpu", "workload.commands=8", "workload.m=16", *words.split())
    assert plan_with_base(to_config(task), task).config.rounds == repeats


def test_a_waterfall_brings_its_own_base() -> None:
    task = composed(
        "mode=batched", "device=cpu", "workload.commands=8", "workload.m=16", "waterfall=[[grouped,batched]]"
    )
    assert [arm.label for arm in plan_with_base(to_config(task), task).arms] == ["grouped", "batched"]


def test_the_notice_of_a_base_names_the_arm_by_its_choices() -> None:
    task = composed("device=cpu", "workload=layer", "model=tiny", "mode=engine", "mode.fuse=[attention]")
    plan = plan_with_base(to_config(task), task)
    assert [arm.label for arm in plan.arms] == ["engine", "engine-qkv-gate_up-norm-rope_kv"]
    assert any(each.startswith("engine runs beside engine-qkv-gate_up-norm-rope_kv,") for each in plan.notices)
