"""torch.profiler around a run: with a stand-in for PyTorch, and with the real one where it is installed."""

from __future__ import annotations

import gzip
import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from launchopt.errors import DeviceError, RunError
from launchopt.reading.ownership import is_own
from launchopt.timing.torch_trace import TorchTrace, require, trace_path

EVENTS = {"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}]}
INJECTIONS = ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")


class FakeProfile:
    """As torch.profiler.profile: notes what it was asked for, writes a trace."""

    made: list[FakeProfile]

    def __init__(self, activities: list[str]) -> None:
        self.activities, self.calls = activities, list[str]()
        FakeProfile.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps(EVENTS))


@pytest.fixture(autouse=True)
def no_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INJECTIONS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module `torch` with as much as is used, without a GPU."""
    torch: Any = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    activity = SimpleNamespace(CPU="cpu", CUDA="cuda")
    torch.profiler = SimpleNamespace(profile=FakeProfile, ProfilerActivity=activity)
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    FakeProfile.made = []
    return torch


def recorded(path: Path) -> Any:
    with gzip.open(path, "rt") as trace:
        return json.load(trace)


@pytest.mark.parametrize(("gpu", "activities"), [(False, ["cpu"]), (True, ["cpu", "cuda"])])
def test_a_run_leaves_one_gzipped_trace(gpu: bool, activities: list[str], fake_torch: Any, tmp_path: Path) -> None:
    fake_torch.cuda.is_available = lambda: gpu
    trace = TorchTrace()
    trace.start()  # a warm-up run: stopped and never written
    trace.stop()
    trace.start()
    trace.stop()
    path = trace_path(tmp_path, "torch_graph", 2)
    trace.write(path)
    assert path.name == "torch-torch_graph-2.json.gz"
    assert recorded(path) == EVENTS
    assert is_own(path)
    assert list(tmp_path.iterdir()) == [path]
    assert [(made.activities, made.calls) for made in FakeProfile.made] == [(activities, ["start", "stop"])] * 2


def test_a_trace_that_cannot_be_written_leaves_nothing(
    fake_torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("launchopt.timing.torch_trace.shutil.copyfileobj", full)
    trace = TorchTrace()
    trace.start()
    trace.stop()
    with pytest.raises(RunError, match=r"torch-pdl-0\.json\.gz: No space left on device"):
        trace.write(trace_path(tmp_path, "pdl", 0))
    assert not list(tmp_path.iterdir())


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.timing.torch_trace.missing", lambda *names: list(names))
    with pytest.raises(DeviceError, match=r"timing=torch needs torch; type: pip install -e '\.\[torch\]'"):
        TorchTrace()


@pytest.mark.parametrize("tool", INJECTIONS)
def test_under_a_profiler_it_is_refused(tool: str, fake_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    require()
    monkeypatch.setenv(tool, "/lib/injected.so")
    with pytest.raises(DeviceError, match="CUPTI accepts one tracer, and a profiler is attached"):
        require()


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")
@pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own affairs
def test_the_real_torch_records_its_operators(tmp_path: Path) -> None:
    import torch

    trace = TorchTrace()
    trace.start()
    torch.ones(8, 8) @ torch.ones(8, 8)
    trace.stop()
    trace.write(tmp_path / "trace.json.gz")
    names = {event.get("name") for event in recorded(tmp_path / "trace.json.gz")["traceEvents"]}
    assert "aten::matmul" in names
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")
@pytest.mark.filterwarnings("ignore")
def test_the_real_torch_records_kernels(tmp_path: Path) -> None:
    import torch

    ones = torch.ones(64, 64, device="cuda")
    trace = TorchTrace()
    trace.start()
    for _ in range(5):
        ones @ ones
    torch.cuda.synchronize()
    trace.stop()
    trace.write(tmp_path / "trace.json.gz")
    events = recorded(tmp_path / "trace.json.gz")["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) >= 5
