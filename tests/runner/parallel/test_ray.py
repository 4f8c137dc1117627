"""Sweeps by Ray in a cluster that runs already, of two nodes on this machine; clusters that cannot run a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.processes.own_process import environ_of
from support.results.side_by_side import (
    LONG,
    SMALL,
    begun,
    ended,
    gone,
    has_records,
    job_process,
    only_sweep,
    outcome,
    running,
)
from support.results.sweeps import statuses, sweep_json
from support.thorough import is_thorough

RAY, ADDRESS = "hydra/launcher=ray", "hydra.launcher.ray.init.address"
NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
node = cluster.add_node(num_cpus=1)
print("at", cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(node, allow_graceful=False)
cluster.shutdown()
"""
pytest.importorskip("ray", reason="needs Ray: pip install 'launchopt[ray]'")
pytest.importorskip("hydra_plugins.hydra_ray_launcher")
slow = pytest.mark.skipif(not is_thorough(), reason="Ray takes seconds to start: with --thorough")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The setting that names a cluster, and the process that keeps it: it loses the second node at a line of input."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # short: Ray's sockets lie in it
        Path(folder, "ray").mkdir()
        pipe, environ = subprocess.PIPE, environ_of() | {"RAY_TMPDIR": folder}
        call = [sys.executable, "-c", NODES]
        with subprocess.Popen(
            call, cwd=folder, env=environ, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        ) as keeper:
            assert keeper.stdin
            assert keeper.stdout
            address = next(line.split()[1] for line in keeper.stdout if line.startswith("at "))
            others = psutil.Process(keeper.pid).children(recursive=True)
            yield f"{ADDRESS}={address}", keeper
            keeper.stdin.close()
        for each in others:
            if each.is_running():
                each.kill()


@slow
def test_a_cluster_that_runs_elsewhere_writes_into_the_folder_of_the_sweep_and_goes_on(
    cluster: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    for _ in range(2):
        ran = ended([RAY, cluster[0], *SMALL.split(), "hydra.sweep.dir=outputs/sweep/it", "seed=0,1,2"], tmp_path)
        assert ran.exit_code == 0, ran.stderr
        assert ran.stderr == ""
        assert set(statuses(only_sweep(tmp_path))) == {"ok"}
        assert not has_records(only_sweep(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["outputs"]


@slow
def test_ctrl_c_ends_the_tasks_that_run_and_cancels_those_that_wait(
    cluster: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    with begun([RAY, cluster[0], *LONG.split(), "seed=0,1,2,3,4"], tmp_path) as sweep:
        begun_jobs = running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        owns = [job_process(folder, job) for job in begun_jobs]
        processes = [*owns, *(child for each in owns for child in each.children(recursive=True))]
        os.killpg(sweep.pid, signal.SIGINT)
        ran = outcome(sweep)
    assert gone(processes)
    assert ran.exit_code == 130, ran.stderr
    assert sorted(statuses(folder)) == ["interrupted"] * 2 + ["not run"] * 3
    assert not has_records(folder)


@slow
@pytest.mark.parametrize(("retries", "end"), [(0, "failed"), (1, "ok")])
def test_a_job_whose_node_is_lost_fails_or_runs_again_and_the_others_run(
    retries: int, end: str, cluster: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    words = [RAY, cluster[0], f"+hydra.launcher.ray.remote.max_retries={retries}", *LONG.split(), "repeats=60"]
    with begun([*words, "seed=0,1,2"], tmp_path) as sweep:
        running(tmp_path, 2)
        assert cluster[1].stdin
        cluster[1].stdin.write("lose\n")
        cluster[1].stdin.flush()
        ran = outcome(sweep)
    folder = only_sweep(tmp_path)
    assert sorted(statuses(folder)) == [end, "ok", "ok"], ran.stderr
    assert ran.exit_code == (0 if retries else 1)
    if not retries:
        assert "the launcher could not run all jobs: RuntimeError: " in ran.stderr
        (lost,) = (each for each in sweep_json(folder)["jobs"] if each["status"] == "failed")
        assert lost["error"] == "its process was killed"


@slow
@pytest.mark.parametrize("word", ["num_cpus=-1", "num_gpus=[1]"])
def test_a_task_that_ray_does_not_take_is_refused(word: str, tmp_path: Path) -> None:
    ran = ended([RAY, f"{ADDRESS}=local", f"+hydra.launcher.ray.remote.{word}", *SMALL.split()], tmp_path)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith("error: hydra.launcher.ray.remote={")
    assert list(tmp_path.iterdir()) == []


@slow
@pytest.mark.parametrize("word", ["num_gpus=64", "num_cpus=100000"])
def test_a_task_that_no_machine_could_run_is_refused_and_nothing_is_left(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: Ray's sockets lie in it
        monkeypatch.setenv("TMPDIR", folder)
        ran = ended([RAY, f"{ADDRESS}=local", f"+hydra.launcher.ray.remote.{word}", *SMALL.split()], tmp_path)
        assert list(Path(folder).glob("launchopt-scratch-*")) == []
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith(f"error: hydra.launcher.ray.remote.{word}: machines of this Ray cluster have at most ")
    assert [each.name for each in tmp_path.iterdir() if each.name != ".cache"] == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody.invalid:6379", "127.0.0.1", "127.0.0.1:99999999"])
def test_a_cluster_that_does_not_answer_is_refused(address: str, tmp_path: Path) -> None:
    ran = ended([RAY, f"{ADDRESS}='{address}'", *SMALL.split(), "seed=0,1"], tmp_path)
    wanted = "no Ray cluster answers there; give the HOST:PORT of one, or leave it out to start one here"
    assert (ran.exit_code, ran.stderr) == (2, f"error: {ADDRESS}={address}: {wanted}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["num_cpus=two", "runtime_env=1", "max_calls=1"])
def test_settings_of_a_task_are_numbers_that_are_known(word: str, tmp_path: Path) -> None:
    ran = ended([RAY, f"+hydra.launcher.ray.remote.{word}", *SMALL.split()], tmp_path)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert f"hydra.launcher.ray.remote.{word.partition('=')[0]}" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_address_is_a_word(tmp_path: Path) -> None:
    ran = ended([RAY, f"{ADDRESS}='ray://a:1'", *SMALL.split()], tmp_path)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    assert f"{ADDRESS}=ray://a:1: give a word of letters" in ran.stderr
