"""Plans of graph_loop and graph_device: how many steps are issued together, and what is refused."""

from __future__ import annotations

import pytest
from support.config.composing import planned

from launchopt.devices.base import DeviceInfo
from launchopt.devices.cuda import info as cuda_info
from launchopt.errors import ConfigError, LaunchoptError
from launchopt.modes.base import Mode
from runner.plan import memory
from runner.plan import plan as plan_module

HOT = ("workload=decode", "model=tiny", "workload.replicas=1")
LOOPS = ("graph_loop", "graph_device")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with a new driver, and all packages."""
    info = DeviceInfo("cuda", 0, "Fake", 20 << 30, 50 << 20, "memory of Fake", 12 << 20)
    monkeypatch.setattr(plan_module, "find_device", lambda kind, index: (info, "faked"))
    monkeypatch.setattr(cuda_info, "cuda_of_driver", lambda: (13, 0))
    monkeypatch.setattr(Mode, "lacks", classmethod(lambda cls: None))
    for tool in (plan_module.cupti, plan_module.torch_trace):
        monkeypatch.setattr(tool, "require", lambda: None)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(*overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("gpu")
def test_each_arm_has_its_own_number_of_steps_together() -> None:
    arms = planned(*HOT, "mode=graph_loop", "mode.tokens=100", "against=[graph,graph_device]").arms
    assert [arm.together for arm in arms] == [1, 64, 64], "a request has no more tokens"
    (arm,) = planned(*HOT, "workload.tokens=200", "mode=graph_loop", "mode.tokens=100").arms[-1:]
    assert arm.together == 100
    assert planned(*HOT, "mode=graph_loop", "scheduler.ahead=true").arms[-1].ahead


@pytest.mark.parametrize("mode", LOOPS)
@pytest.mark.usefixtures("gpu")
def test_an_old_driver_is_refused(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found, allowed in (((12, 2), False), ((12, 4), True), (None, True)):
        monkeypatch.setattr(cuda_info, "cuda_of_driver", lambda found=found: found)
        if allowed:
            planned(*HOT, f"mode={mode}")
        else:
            assert refusal(*HOT, f"mode={mode}") == (
                f"mode={mode}: needs a driver of CUDA 12.4 or newer, and this one is of CUDA 12.2: use mode=graph"
            )


@pytest.mark.usefixtures("gpu")
def test_records_of_steps_together_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HELD_RECORD_BYTES", 1 << 40)
    assert "mode.tokens=64: its records need " in refusal(*HOT, "mode=graph_loop")


@pytest.mark.usefixtures("gpu")
def test_what_does_not_fit_together_is_refused() -> None:
    greedy = (*HOT, "mode=graph_loop", "sampling=greedy")
    assert "sampling.where is cpu: must be auto or gpu" in refusal(*greedy, "sampling.where=cpu")
    assert "takes whole steps" in refusal("workload=gemv_micro", "mode=graph_loop")
    for timing in ("cupti", "torch"):
        why = f"timing={timing} records the kernels of a repeated step only once: use timing=host, or mode.tokens=1"
        assert refusal(*HOT, "mode=graph_loop", f"timing={timing}") == f"mode=graph_loop: {why}"
        assert planned(*HOT, "mode=graph_loop", "mode.tokens=1", f"timing={timing}").arms
    assert "or workload.replicas=1" in refusal(
        "workload=decode", "model=tiny", "workload.replicas=3", "mode=graph_loop"
    )
    with pytest.raises(LaunchoptError, match="takes whole steps"):
        planned("workload=gemv_micro", "mode=batched", "against=[graph_loop]")
    arms = planned(
        *HOT, "mode=graph", "against=all", "scheduler.ahead=true", "sampling=greedy", "sampling.where=cpu"
    ).arms
    assert not {arm.mode for arm in arms} & set(LOOPS), "they are left out with their reason"
