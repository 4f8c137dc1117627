"""All-reduces by NCCL in the compiled loops, over stand-ins for NCCL, CuPy and nvmath: a thread for each rank."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cuda import FakeRank, fake_cuda
from support.cuda.fake_nccl import FakeNccl
from support.steps.checked_tokens import GREEDY
from support.steps.split_runs import in_ranks, streams_of, team_of
from support.steps.step_runs import StepRun

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cublaslt.launch import KERNEL_STATUS
from launchopt.devices.cublaslt.launch_tables import KernelColumn
from launchopt.devices.cuda.errors import failure_of
from launchopt.devices.peers import nccl_library
from launchopt.devices.peers.nccl import FAILED, NcclPlans
from launchopt.errors import ConfigError, RunError

RANKS = 2


@pytest.fixture
def device() -> Iterator[Any]:
    with fake_cuda(FakeRank) as device:
        yield device


def installed(monkeypatch: pytest.MonkeyPatch, nccl: FakeNccl) -> FakeNccl:
    others = ctypes.CDLL
    monkeypatch.setattr(nccl_library, "library_path", lambda: "nccl")

    def library(name: str, *mode: Any, **how: Any) -> Any:
        return nccl if name == "nccl" else others(name, *mode, **how)

    monkeypatch.setattr(ctypes, "CDLL", library)
    return nccl


@pytest.mark.parametrize("mode", ["coalesced", "engine"])
def test_ranks_compute_the_whole_model(mode: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _ = streams_of("linear", RANKS, vocab=48)
    nccl = installed(monkeypatch, FakeNccl(RANKS, device.cupy.captured))
    with team_of(RANKS, 0) as (_, members):
        devices = [type(device)() for _ in members]
        teams = [member._replace(nccl=True) for member in members]
        made = in_ranks(RANKS, lambda rank: StepRun(mode, stream, 3, devices[rank], GREEDY, team=teams[rank]))
        assert nccl.counts[:3] == [1, 2, 4], "each size is launched before a run"
        before = len(nccl.counts)
        in_ranks(RANKS, lambda rank: made[rank].run())
        assert len(nccl.counts) > before
        for each in made:
            each.check()
            assert each.device.split.collectives() is None, "NCCL counts none"
            assert each.device.split.versions() == {"nccl": "2.27.5"}

        def close(rank: int) -> None:
            made[rank].device.close()
            made[rank].device.split.close()

        in_ranks(RANKS, close)
    assert nccl.left == RANKS


class Parts:
    """A communicator that records what is added. result: of its calls."""

    handle = 77

    def __init__(self, result: int = 0) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 7)
        group = ctypes.CFUNCTYPE(ctypes.c_int32)
        self.calls: list[tuple[int, ...]] = []
        self._functions = {
            "ncclAllReduce": kind(lambda *words: self.calls.append(words) or result),
            "ncclGroupStart": group(lambda: self.calls.append(("start",)) or 0),  # type: ignore[arg-type]
            "ncclGroupEnd": group(lambda: self.calls.append(("end",)) or 0),  # type: ignore[arg-type]
        }

    def address(self, name: str) -> int:
        return ctypes.cast(self._functions[name], ctypes.c_void_p).value or 0


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)
SHAPE = ShapeKey(64, 2, 64, Dtype.bf16, Op.ALL_REDUCE)


def launched(parts: Any, size: int, stride: int, driver: int = 0, row: int = 64) -> tuple[int, list[tuple[int, ...]]]:
    """Launch a plan as the loops do; return the status, and the calls of NCCL."""
    plans = NcclPlans(parts)
    plan = plans.row(SHAPE, size, (0, row, row), (0, stride, stride))
    words = np.ctypeslib.as_array(ctypes.cast(plan[KernelColumn.OPERANDS], ctypes.POINTER(ctypes.c_int64)), (4,))
    words[:] = 1, 1000, 5000, 3
    ctypes.c_int64.from_address(plan[KernelColumn.CONFIG] + 32).value = 99
    launch = LAUNCH(plans.launch_function(driver))
    status = launch(plan[KernelColumn.CONFIG], plan[KernelColumn.FUNCTION], plan[KernelColumn.PARAMETERS], 0)
    return status, parts.calls


def test_adjacent_commands_are_one_call_and_others_are_pieces_of_a_group() -> None:
    assert launched(Parts(), 3, 2 * 64 * 2) == (0, [(1000, 5000, 3 * 2 * 64, 9, 0, 77, 99)])
    assert launched(Parts(), 1, 4096) == (0, [(1000, 5000, 2 * 64, 9, 0, 77, 99)])
    assert launched(Parts(), 2, 4096) == (
        *(0,),
        [("start",), (1000, 5000, 128, 9, 0, 77, 99), (5096, 9096, 128, 9, 0, 77, 99), ("end",)],
    )
    assert launched(Parts(), 1, 4096, row=128)[1] == [(1000, 5000, 128 + 64, 9, 0, 77, 99)], "rows of 128, padded"


def test_a_failure_ends_the_group_and_names_nccl() -> None:
    status, calls = launched(Parts(result=5), 2, 4096)
    assert (status, len(calls)) == (FAILED + 5, 2)
    assert str(failure_of(KERNEL_STATUS * status)) == "NCCL's all-reduce failed with ncclResult_t 5"


def test_other_kernels_go_to_the_driver() -> None:
    seen: list[tuple[int, ...]] = []
    driver = LAUNCH(lambda *words: seen.append(words) or 7)
    plans = NcclPlans(Parts())  # type: ignore[arg-type]
    launch = LAUNCH(plans.launch_function(ctypes.cast(driver, ctypes.c_void_p).value or 0))
    assert launch(11, 12, 13, 0) == 7
    assert seen == [(11, 12, 13, 0)]


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.all_reduce=nccl: adds rows only into rows of the same length"):
        NcclPlans(Parts()).row(SHAPE, 1, (0, 64, 128), (0, 0, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ncclGetUniqueId", "ncclCommInitRank"])
def test_a_library_that_refuses_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeNccl(1, None, (name, 3)))
    with team_of(1, 0) as (segment, (member,)), pytest.raises(RunError, match=f"{name} failed with ncclResult_t 3"):
        nccl_library.Communicator(member, segment)


def test_the_library_is_that_of_its_package_else_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl.so.2").touch()
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})()
    monkeypatch.setattr(nccl_library, "find_spec", lambda name: spec)
    assert nccl_library.library_path() == str(tmp_path / "lib" / "libnccl.so.2")
    monkeypatch.setattr(nccl_library, "find_spec", lambda name: None)
    monkeypatch.setattr(nccl_library, "find_library", lambda name: "libnccl.so.2")
    assert nccl_library.require() == "libnccl.so.2"
    monkeypatch.setattr(nccl_library, "find_library", lambda name: None)
    with pytest.raises(ConfigError) as refusal:
        nccl_library.require()
    wanted = "needs NCCL, which is not installed: pip install nvidia-nccl-cu13 (CUDA 12: nvidia-nccl-cu12)"
    assert str(refusal.value) == f"parallel.all_reduce=nccl: {wanted}"
