"""launchopt record: the program runs as without it, its processes are recorded, and a mistake is one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of

from launchopt.traces.execution_trace import read_execution_trace
from launchopt.traces.gemm_list import read_gemm_list
from launchopt.traces.gemms import read_gemms
from runner import commands

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
SERVE = """
import multiprocessing, os, sys, time, torch

class Inner(torch.nn.Linear):
    pass

def work(steps):
    model = torch.nn.Sequential(Inner(16, 32), torch.nn.ReLU(), Inner(32, 8))
    with torch.inference_mode():
        for _ in range(steps):
            model(torch.zeros(3, 16))

if __name__ == "__main__":
    torch.set_num_threads(1)  # a fork does not take over threads of OpenMP, and would wait for them
    steps, *kinds = sys.argv[1:]
    work(int(steps))
    workers = [multiprocessing.get_context(kind).Process(target=work, args=(2 + at,)) for at, kind in enumerate(kinds)]
    for worker in workers:
        worker.start()
        worker.join()
    print("served")
    sys.exit(any(worker.exitcode for worker in workers))
"""
ROWS = 2  # GEMMs of a step


def record(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `launchopt record WORDS` in a folder, with this interpreter as `python`."""
    call = [sys.executable, "-m", "runner", "record", *words]
    return subprocess.run(call, cwd=folder, env=environ_of(), capture_output=True, text=True)


@needs_torch
def test_a_program_that_calls_a_module_is_recorded_and_runs_as_without(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    done = record(tmp_path, "-o", "mine.csv", "--skip", "1", "--steps", "3", "--", sys.executable, "serve.py", "6")
    assert (done.returncode, done.stdout) == (0, "served\n")
    assert done.stderr.splitlines()[-1] == (
        "launchopt record: 6 GEMMs of 2 shapes in 4 groups; type: launchopt run workload=list workload.path=mine.csv"
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine.csv", "serve.py"]
    text = (tmp_path / "mine.csv").read_text()
    assert text.startswith("# recorded with PyTorch ")
    assert "serve" not in text
    assert str(tmp_path) not in text
    again = record(tmp_path, "-o", "mine.csv", "--", sys.executable, "serve.py", "1")
    assert (again.returncode, again.stdout) == (2, "")
    assert "mine.csv: exists: remove it, or name another file with -o" in again.stderr


@needs_torch
def test_each_process_has_a_file(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    done = record(tmp_path, "--", sys.executable, "-m", "serve", "1", "spawn", "fork", "forkserver")
    assert (done.returncode, done.stdout) == (0, "served\n")
    lists = [read_gemm_list(tmp_path / f"recorded-{number}.csv") for number in (1, 2, 3, 4)]
    assert [len(each) for each in lists] == [steps * ROWS for steps in (1, 2, 3, 4)]
    assert "ends early" not in done.stderr
    assert "recorded-1.csv: exists" in record(tmp_path, "--", "true").stderr


@needs_torch
def test_the_steps_behind_are_profiled(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    words = "--skip", "1", "--steps", "2", "--profile", "t.json.gz", "--", sys.executable, "serve.py"
    done = record(tmp_path, *words, "6")
    assert done.returncode == 0
    assert "launchopt record: t.json.gz: the host spends " in done.stderr
    assert len(read_gemms(tmp_path / "t.json.gz").gemms) == len(read_gemm_list(tmp_path / "recorded.csv")) == 2 * ROWS
    (tmp_path / "recorded.csv").unlink()
    assert "t.json.gz: exists: remove it, or name another file with --profile" in record(tmp_path, *words, "6").stderr
    (tmp_path / "t.json.gz").unlink()
    assert "t.json.gz: not written: the program made too few steps" in record(tmp_path, *words, "3").stderr


@needs_torch
def test_the_exit_code_is_the_programs_and_what_it_did_is_kept(tmp_path: Path) -> None:
    program = "import sys, torch; torch.zeros(2, 2) @ torch.zeros(2, 2); sys.exit(7)"
    assert record(tmp_path, "--", sys.executable, "-c", program).returncode == 7
    assert len(read_gemm_list(tmp_path / "recorded.csv")) == 1


@needs_torch
@pytest.mark.parametrize(("handler", "code"), [("", 143), ("signal.signal(15, lambda *_: sys.exit(5))", 5)])
def test_a_signal_reaches_the_program(handler: str, code: int, tmp_path: Path) -> None:
    program = f"""
import signal, sys, time, torch
{handler}
for _ in range(50):
    torch.zeros(2, 2) @ torch.zeros(2, 2)
print("up", flush=True)
time.sleep(60)
"""
    call = [sys.executable, "-m", "runner", "record", "--", sys.executable, "-c", program]
    with subprocess.Popen(
        call, cwd=tmp_path, env=environ_of(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == code
    assert len(read_gemm_list(tmp_path / "recorded.csv")) > 30


@needs_torch
def test_a_trace_that_grows_too_large_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    program = """
import time, torch
begun = time.monotonic()
while time.monotonic() - begun < 0.5:
    torch.zeros(2, 2) @ torch.zeros(2, 2)
print("to the end")
"""
    done = record(tmp_path, "--largest-mib", "1", "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "to the end\n")
    assert "recorded.csv: the trace reached its largest size, and the recording stopped" in done.stderr


@needs_torch
def test_replays_of_cuda_graphs_are_counted(tmp_path: Path) -> None:
    program = """
import torch
torch.cuda.CUDAGraph.replay.__closure__  # the counter
torch.zeros(2, 2) @ torch.zeros(2, 2)
for _ in range(3):
    try:
        torch.cuda.CUDAGraph.replay(None)
    except Exception:
        pass
"""
    done = record(tmp_path, "--", sys.executable, "-c", program)
    assert "recorded.csv: 3 replays of CUDA graphs, whose GEMMs are not in the trace" in done.stderr


@needs_torch
def test_an_execution_trace_of_the_programs_own_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    program = """
import torch
torch.zeros(2, 2) @ torch.zeros(2, 2)
own = torch.profiler.ExecutionTraceObserver().register_callback("own.json")
own.start()
torch.zeros(2, 2) @ torch.zeros(2, 2)
own.stop()
own.unregister_callback()
print("to the end")
"""
    done = record(tmp_path, "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "to the end\n")
    assert "recorded.csv: the program began an execution trace of its own" in done.stderr
    assert len(read_gemm_list(tmp_path / "recorded.csv")) == 1
    assert len(read_execution_trace(tmp_path / "own.json").gemms) == 1


@needs_torch
def test_a_list_that_another_recording_wrote_meanwhile_stays(tmp_path: Path) -> None:
    program = """
import torch
torch.zeros(2, 2) @ torch.zeros(2, 2)
open("recorded.csv", "w").write("of the other one")
"""
    done = record(tmp_path, "--", sys.executable, "-c", program)
    assert done.returncode == 0
    assert (tmp_path / "recorded.csv").read_text() == "of the other one"
    (own,) = tmp_path.glob("*-recorded.csv")
    assert len(read_gemm_list(own)) == 1
    assert f"workload.path={own.name}" in done.stderr


@needs_torch
def test_compiled_code_is_refused_with_what_to_type(tmp_path: Path) -> None:
    program = """
import torch
with torch.profiler.record_function("Torch-Compiled Region: 0/0"):
    torch.zeros(2, 2) @ torch.zeros(2, 2)
"""
    done = record(tmp_path, "--", sys.executable, "-c", program)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("set TORCH_COMPILE_DISABLE=1, and record again")


MISTAKES = {
    (
        "--",
        sys.executable,
        "-c",
        "pass",
    ): "error: recorded.csv: nothing was written: the program never imported PyTorch",
    ("--", sys.executable, "-I", "-c", "pass"): "the program is not Python, or is one that ignores PYTHONPATH",
    ("--", "true"): "the program is not Python, or is one that ignores PYTHONPATH",
    ("--", "no-such-program"): "error: program=no-such-program: no such program, or it may not be started",
    ("-o", "none/a.csv", "--", "true"): "error: none/a.csv: cannot be written (No such file or directory)",
    ("-o", "/proc/a.csv", "--", "true"): "error: /proc/a.csv: cannot be written (No such file or directory)",
    ("-o", "a.txt", "--", "true"): "error: -o/--output: a.txt: the name must end in .csv",
    ("--steps", "0", "--", "true"): "error: --steps: 0: must be a whole number of at least 1",
    ("--profile", "t.json.gz", "--", "true"): "error: --profile: needs --steps",
    ("python", "serve.py"): "error: put the program behind --, as in: launchopt record -- python serve.py",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = record(tmp_path, *words)
    assert done.returncode == 2
    assert MISTAKES[words] in done.stderr.splitlines()[0]
    assert list(tmp_path.iterdir()) == []


def test_a_program_without_pytorch_is_told_so(tmp_path: Path) -> None:
    program = "import sys; sys.path.clear(); import torch"
    done = record(tmp_path, "--", sys.executable, "-c", program)
    assert done.returncode == 1
    assert "nothing was written: the program's Python has no PyTorch" in done.stderr


@needs_torch
def test_a_program_without_gemms_says_how_many_steps_it_made(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    done = record(tmp_path, "--skip", "9", "--", sys.executable, "serve.py", "2")
    assert done.returncode == 2
    assert "a trace without GEMMs that can be replayed; the program made 2 steps" in done.stderr


def test_the_programs_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("print('mine')")
    call = [sys.executable, "-m", "runner", "record", "--", sys.executable, "-c", "pass"]
    done = subprocess.run(call, cwd=tmp_path, env=environ_of(tmp_path / "site", ROOT), capture_output=True, text=True)
    assert done.stdout.splitlines().count("mine") == 2, "of launchopt and of the program"


def test_version_of_the_program_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["record", "--", "true", "--version"]) == 2
    assert "not Python" in capsys.readouterr().err
