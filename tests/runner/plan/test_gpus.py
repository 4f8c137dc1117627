"""GPUs of jobs side by side: one each, by uuid, of those that CUDA_VISIBLE_DEVICES names; else shared, and said."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import pytest
from support.processes.gpu_job import hold

from launchopt.analysis.device_use import overlaps
from launchopt.errors import ConfigError
from runner.plan import cores, gpus, pool
from runner.plan.sharing import shares

A, B, C = (f"GPU-{letter}0000000-0000-0000-0000-000000000000" for letter in "abc")
M, N = "MIG-m0000000-0000-0000-0000-000000000000", "MIG-n0000000-0000-0000-0000-000000000000"


class NVMLError(Exception):
    pass


class Boards(ModuleType):
    """A fake of the module `pynvml`. A GPU is its uuid; `parts` has the MIG devices of those that are divided."""

    NVMLError = NVMLError

    def __init__(self, uuids: list[str], models: list[str] | None = None, parts: dict[str, list[str]] | None = None):
        super().__init__("pynvml")
        self.uuids, self.parts = uuids, parts or {}
        self.models = dict(zip(uuids, models or ["H100"] * len(uuids), strict=True))

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.uuids:
            raise NVMLError("no driver")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return self.uuids[index]

    def nvmlDeviceGetUUID(self, gpu: str) -> str:  # noqa: N802
        return gpu

    def nvmlDeviceGetName(self, gpu: str) -> bytes:  # noqa: N802
        return self.models[gpu].encode()

    def nvmlDeviceGetMigMode(self, gpu: str) -> list[int]:  # noqa: N802
        if gpu not in self.parts:
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: str, index: int) -> str:  # noqa: N802
        try:
            return self.parts[gpu][index]
        except IndexError:
            raise NVMLError("Not Found") from None


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str | None], str | None]]:
    """Act as another job that takes a GPU of two, unless the test sets others; return its uuid."""
    held: list[int] = []
    monkeypatch.setattr(pool, "_held", held)
    monkeypatch.setitem(sys.modules, "pynvml", Boards([A, B]))
    for name in (cores.OWN, cores.SHARED, gpus.OWN, gpus.SHARED, gpus.POOL, gpus.VISIBLE, gpus.ORDER):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(cores.AT_ONCE, "2")

    def take(visible: str | None) -> str | None:
        os.environ[gpus.OWN] = os.environ[gpus.SHARED] = ""
        return gpus.take(visible, tmp_path / "pool")

    yield take
    for each in held:
        os.close(each)


def test_each_job_takes_a_gpu_of_its_own_before_cuda_starts(job: Callable[[str | None], str | None]) -> None:
    began_s = time.time()
    for uuid in (A, B):
        assert job(None) == uuid == gpus.own() == os.environ[gpus.VISIBLE]
        assert shares("cuda", began_s) is None
    assert gpus.take(None) == B, "it keeps the one it has"


def test_jobs_that_must_share_a_gpu_say_so_in_both_jobs(job: Callable[[str | None], str | None]) -> None:
    began_s = time.time() - 1
    assert [job(None) for _ in range(5)] == [A, B, A, B, A], "one that the fewest share"
    assert shares("cuda", began_s) == f"{A} with other jobs"
    assert shares("cpu", began_s) is None
    os.environ[gpus.SHARED] = ""  # as the first job sees it
    assert shares("cuda", began_s) == f"{A} with other jobs"


def test_a_gpu_is_free_again_when_the_process_of_its_job_ends(job: Callable[[str | None], str | None]) -> None:
    assert [job(None), job(None)] == [A, B]
    os.close(pool._held.pop(0))
    assert job(None) == A
    assert shares("cuda", time.time() - 9) is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A, B, M, N]),
        ("1", [B]),
        ("1,0", [B, A]),
        ("2", [M]),
        (f"{B[:9]},{A}", [B, A]),
        (f"{N[:8]}, 0", [N, A]),
        (f"MIG-{C}/1/0", [f"MIG-{C}/1/0"]),
        ("0,7,1", [A]),
        ("GPU-,0", []),
        ("0,0", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Boards([A, B, C], parts={C: [M, N]}))
    assert gpus.visible_gpus(visible) == expected


def test_a_mig_device_is_named_in_the_job(
    job: Callable[[str | None], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Boards([C], parts={C: [M, N]}))
    assert [job(None), job(None)] == [M, N]
    assert os.environ[gpus.VISIBLE] == N
    assert shares("cuda", time.time() - 1) is None


def test_indices_are_not_taken_for_uuids_where_cuda_may_number_gpus_in_another_order(
    job: Callable[[str | None], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Boards([A, B], models=["A10", "H100"]))
    assert job("0") is None
    assert os.environ[gpus.VISIBLE] == "0"
    assert shares("cuda", time.time()) == "the GPUs with 2 jobs at once"
    assert job(B) == B
    monkeypatch.setenv(gpus.ORDER, "PCI_BUS_ID")
    assert job("0") == A


def test_without_nvml_no_gpu_is_taken(job: Callable[[str | None], str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Boards([]))
    assert job(None) is None
    assert shares("cuda", time.time()) == "the GPUs with 2 jobs at once"


def test_a_job_with_a_gpu_of_its_own_takes_no_other_index(job: Callable[[str | None], str | None]) -> None:
    gpus.check_index(1)
    job(None)
    gpus.check_index(0)
    with pytest.raises(ConfigError, match=r"device.index=1: jobs side by side take a GPU each"):
        gpus.check_index(1)


@pytest.mark.parametrize("count", [4, 8])
def test_no_two_of_many_jobs_hold_a_gpu_at_the_same_time(count: int, tmp_path: Path) -> None:
    given = [(number, count, tmp_path / "pool") for number in range(count + 4)]
    with get_context("spawn").Pool(count, maxtasksperchild=1) as processes:
        found = processes.map(hold, given, chunksize=1)
    assert overlaps(use for use, _ in found) == []
    assert not any(is_shared for _, is_shared in found)
