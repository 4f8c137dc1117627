"""Cores of jobs side by side: their own where there are enough, else shared, which the results say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.plan import cores, pool
from runner.plan.sharing import Sharing, shares


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[list[int]]]]:
    """A machine with this many cores. Returns the list to which each set of cores that is bound is added."""
    held: list[int] = []
    bound: list[list[int]] = []

    def make(count: int) -> list[list[int]]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, own: bound.append(sorted(own)))
        return bound

    for name in (cores.OWN, cores.SHARED, cores.AT_ONCE):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(pool, "_held", held)
    monkeypatch.setattr(cores, "_place", lambda core: (core, core))
    yield make
    for each in held:
        os.close(each)


def test_each_job_has_cores_of_its_own(machine: Callable[[int], list[list[int]]], tmp_path: Path) -> None:
    bound = machine(8)
    began_s = time.time()
    assert [cores.take(3, tmp_path / "pool") for _ in range(3)] == [[0, 1], [2, 3], [4, 5]] == bound
    assert shares("cpu", began_s) is None


def test_jobs_with_fewer_than_two_cores_share_all_and_say_so(
    machine: Callable[[int], list[list[int]]], tmp_path: Path
) -> None:
    bound = machine(3)
    assert cores.take(2, tmp_path / "pool") == [0, 1, 2]
    assert (bound, shares("cpu", time.time())) == ([], "3 cores with 2 jobs at once")


def test_a_job_says_so_when_another_sweep_joins_it(
    machine: Callable[[int], list[list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(4)
    folder, began_s = tmp_path / "pool", time.time() - 1
    cores.take(1, folder)
    assert shares("cpu", began_s) is None
    assert cores.take(1, folder) == [0, 1, 2, 3], "the first has all of them"
    assert shares("cpu", began_s) == "4 cores with other sweeps"
    monkeypatch.setenv(cores.SHARED, "")  # as the first sees it
    assert shares("cpu", began_s) == "its cores with other sweeps"
    assert shares("cpu", time.time() + 9) == "its cores with other sweeps", "the other still runs"
    os.close(pool._held.pop())
    assert shares("cpu", time.time() + 9) is None


@pytest.mark.parametrize("kind", ["link", "file", "open"])
def test_a_pool_of_somebody_else_is_not_used(
    kind: str, machine: Callable[[int], list[list[int]]], tmp_path: Path
) -> None:
    bound, folder = machine(8), tmp_path / "pool"
    if kind == "link":
        folder.symlink_to(tmp_path)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert cores.take(2, folder) == list(range(8))
    assert bound == []
    assert shares("cpu", time.time()) == "8 cores with other sweeps"


def test_jobs_that_have_taken_no_gpu_share_the_gpus_even_with_cores_of_their_own(
    machine: Callable[[int], list[list[int]]], tmp_path: Path
) -> None:
    machine(8)
    began_s = time.time()
    assert shares("cuda", began_s) is None
    cores.take(1, tmp_path / "pool")
    assert shares("cuda", began_s) is None
    cores.take(2, tmp_path / "pool2")
    assert shares("cuda", began_s) == "the GPUs with 2 jobs at once"


def test_a_run_says_so_when_the_other_began_before_it_and_ended_before_its_end(
    machine: Callable[[int], list[list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(4)
    folder = tmp_path / "pool"
    cores.take(1, folder)
    cores.take(1, folder)
    monkeypatch.setenv(cores.SHARED, "")  # as the first sees it
    os.utime(folder / "sharing", (1, 1))
    sharing = Sharing("cpu")
    os.close(pool._held.pop())
    assert sharing.so_far() == "its cores with other sweeps"
    assert Sharing("cpu").so_far() is None


def test_hardware_threads_of_a_core_are_next_to_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for core in range(4):
        (tmp_path / f"{core}").write_text(f"{core % 2},{core % 2 + 2}\n")
    monkeypatch.setattr(cores, "_SIBLINGS", f"{tmp_path}/{{core}}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4})
    assert cores.usable() == [0, 2, 1, 3, 4], "nothing is known of core 4"
