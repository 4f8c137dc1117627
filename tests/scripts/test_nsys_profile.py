"""scripts/nsys_profile.sh with a fake nsys, and with the real one if it is installed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.results.profiler_bench import BASH, NOWHERE, SCRIPTS, Bench, is_running, needs_bash

from launchopt.timing import nvtx_ranges

SCRIPT = SCRIPTS / "nsys_profile.sh"
pytestmark = needs_bash


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "nsys_profile.sh")


def test_without_nsys_it_says_how_to_get_it(bench: Bench) -> None:
    done = bench.run("workload=x", PATH=NOWHERE)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 2
    assert "developer.nvidia.com" in done.stderr
    assert not bench.out.exists()


def test_help_needs_nothing(bench: Bench) -> None:
    done = bench.run("--help", PATH=NOWHERE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


@pytest.mark.parametrize("argument", ["-m", "--multirun", "hydra.mode=MULTIRUN"])
def test_a_sweep_is_refused(bench: Bench, argument: str) -> None:
    done = bench.run("mode=batched,single", argument)
    assert done.returncode == 2
    assert "one run at a time" in done.stderr
    assert not bench.notes.exists()


@pytest.mark.parametrize("argument", ["timing=cupti", "timing.kind=torch"])
def test_a_second_tracer_is_refused(bench: Bench, argument: str) -> None:
    done = bench.run("mode=batched", argument)
    assert done.returncode == 2
    assert "CUPTI accepts one tracer, and here that is nsys" in done.stderr
    assert not bench.notes.exists()


@pytest.mark.parametrize("limit", ["0", "1.5", "soon", ""])
def test_a_wrong_time_limit_is_refused(bench: Bench, limit: str) -> None:
    done = bench.run(FAKE="0", NSYS_TIMEOUT_S=limit)
    assert done.returncode == (2 if limit else 0)  # empty means unset


@pytest.mark.parametrize("code", ["0", "7"])
def test_flags_overrides_and_the_exit_code_pass_through(bench: Bench, code: str) -> None:
    done = bench.run("workload=gemv_micro", "model.name=a b", FAKE=code)
    assert done.returncode == int(code)
    profile, export, table = bench.notes.read_text().splitlines()
    assert profile == (
        "profile -t cuda,nvtx --cuda-graph-trace=node -s none --cpuctxsw=none "
        f"-o {bench.out}/profile {bench.folder}/fake_python -m runner workload=gemv_micro model.name=a b"
    )
    assert export.startswith("export --type sqlite")
    assert table == f"python -m runner.nsys {bench.out}/profile.sqlite"


def test_an_earlier_profile_is_never_overwritten(bench: Bench) -> None:
    assert bench.run(FAKE="0").returncode == 0
    done = bench.run(FAKE="0")
    assert done.returncode == 2
    assert "another folder" in done.stderr


def test_a_relative_output_folder_is_the_callers(bench: Bench) -> None:
    assert bench.run(FAKE="0", NSYS_OUT="here").returncode == 0
    assert (bench.folder / "here/profile.sqlite").exists()


def test_only_the_own_agent_is_ended_if_it_hangs(bench: Bench) -> None:
    with subprocess.Popen(["sleep", "300"], env=bench.environ | {"LAUNCHOPT_PROFILER_RUN": "another run"}) as bystander:
        try:
            done = bench.run(FAKE="agent")
            assert done.returncode == 0, done.stderr
            assert not is_running(int(Path(f"{bench.notes}.agent").read_text()))
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_the_time_limit_ends_nsys(bench: Bench) -> None:
    done = bench.run(FAKE="hang", NSYS_TIMEOUT_S="1")
    assert done.returncode == 124
    assert "NSYS_TIMEOUT_S" in done.stderr
    assert not is_running(int(bench.pid_file.read_text()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_everything(bench: Bench, number: signal.Signals, code: int) -> None:
    pid_file = bench.pid_file
    with bench.start(FAKE="hang") as process:
        while not (pid_file.exists() and pid_file.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert not is_running(int(pid_file.read_text()))


def test_ranges_cost_nothing_where_no_tool_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvtx")
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    nvtx_ranges.domain.cache_clear()
    domain = nvtx_ranges.domain()
    assert not nvtx_ranges.attached()
    assert type(domain).__name__ == "DummyDomain"
    domain.push_range(nvtx_ranges.attributes(domain, "submit", 3))
    domain.pop_range()


def test_a_payload_is_made_a_python_int() -> None:
    class Domain:
        def get_event_attributes(self, message: str, payload: int) -> tuple[str, type]:
            return message, type(payload)

    assert nvtx_ranges.attributes(Domain(), "submit", np.int32(3)) == ("submit", int)
    with pytest.raises(TypeError):
        nvtx_ranges.attributes(Domain(), "submit", 1.5)  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_ranges_of_a_child_process_are_seen_by_the_real_nsys(tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    # A copy of the checkout whose run is a child process that makes the ranges, as the consumer of a run does.
    for package in ("launchopt", "runner"):
        shutil.copytree(SCRIPT.parents[1] / package, tmp_path / package)
    (tmp_path / "runner/worker/child.py").write_text(
        "from launchopt.timing import nvtx_ranges as r\n"
        "def work():\n"
        "    d = r.domain(); a = r.attributes(d, 'submit', 3)\n"
        "    for _ in range(5): d.push_range(a); d.pop_range()\n"
    )
    (tmp_path / "runner/__main__.py").write_text(
        "import multiprocessing as mp\nfrom runner.worker.child import work\n"
        "if __name__ == '__main__':\n"
        "    p = mp.get_context('spawn').Process(target=work); p.start(); p.join()\n"
        "    raise SystemExit(p.exitcode or 7)\n"
    )
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "lib.sh", tmp_path / "scripts")
    script = shutil.copy(SCRIPT, tmp_path / "scripts")
    done = subprocess.run(
        [str(BASH), script],
        env=os.environ | {"PYTHON": sys.executable},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 7, done.stdout + done.stderr
    row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["submit"])
    assert row[:4] == ["submit", "5", "0", "0"]
    assert len(list((tmp_path / "outputs/nsys").glob("*/profile.sqlite"))) == 1
