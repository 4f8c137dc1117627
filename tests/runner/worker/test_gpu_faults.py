"""A GPU without memory, or with a kernel that breaks its context: a run ends in order, whoever noticed, and says why.

The same is asked of stand-ins on the CPU device, which raise what CuPy does, and of a real GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.paths import ROOT
from support.processes.injected_faults import FAULT, LEFT_BYTES, REPEAT, SITECUSTOMIZE
from support.processes.own_process import alone, environ_of
from support.processes.own_run import Victim, assert_nothing_left, on_linux

from launchopt.devices.cuda.errors import GpuErrors, StatusError, fault_of, is_lost
from launchopt.errors import ArenaMemoryError, GpuError, Interrupted, RunError
from launchopt.recording import results

REPEATS = 5
JOB = f"workload.cache=hot workload.commands=4000 queue.capacity=256 repeats={REPEATS}"
SMALL = f"{JOB} workload.m=16 workload.k=64"
DECODE = "workload=decode model=tiny workload.cache=hot workload.tokens=20 workload.requests=4 repeats=5 watchdog_s=5"
LARGE = "workload.commands=4000 workload.replicas=2000 repeats=1"  # 4 GB of operands
PATIENCE_S = 240.0

NO_MEMORY = "CUDA error 2 ("
LOST = "CUDA error 700 (cudaErrorIllegalAddress: an illegal memory access was encountered)"
MAKE_READY = "while the job was made ready"
MODES = ("batched", "baseline", "graph", "multistream", "pointer_array", "kernel")


class Faulty(Victim):
    """A run into whose consumer a fault is put: see `injected_faults`."""

    def __init__(self, fault: str, arguments: str, folder: Path) -> None:
        self.folder, self._known = folder, {}
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *alone(arguments.split())],
            cwd=folder,
            env=injecting(folder) | {FAULT: fault, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> tuple[int, str]:
        """Exit code and standard error; its children were seen meanwhile."""
        limit = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < limit:
            self.children()
            time.sleep(0.05)
        return self.end()


def injecting(folder: Path) -> dict[str, str]:
    """The environment of a process whose consumer hears of faults."""
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    environ = environ_of()
    path = os.pathsep.join([str(folder), str(ROOT / "tests"), environ["PYTHONPATH"]])
    return environ | {"PYTHONPATH": path}


Start = Callable[[str, str], Faulty]


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Start]:
    """Starts a run with a fault and these arguments."""
    started: list[Faulty] = []

    def start(fault: str, arguments: str) -> Faulty:
        started.append(Faulty(fault, arguments, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


@dataclass(frozen=True)
class Expected:
    """How a run ends: its reason holds `words`; `repeats` were finished before."""

    exit_code: int
    words: tuple[str, ...]
    repeats: int = 0


def in_the_middle(what: str, mode: str = "batched") -> Expected:
    return Expected(1, (f"consumer: {what}", f" in {mode}, repeat {REPEAT}: "), REPEAT)


def assert_ended(run: Faulty, expected: Expected) -> None:
    """One line, a manifest that says the same, every repeat before in tables that can be read, and nothing else."""
    exit_code, stderr = run.ended()
    assert exit_code == expected.exit_code, stderr
    assert stderr.count("\n") == 1, stderr
    assert [word for word in expected.words if word not in stderr] == []
    manifest, folder = run.manifest(), run.results_folder()
    assert (manifest["status"], manifest["repeats_done"]) == ("failed", expected.repeats)
    assert stderr == f"error: {manifest['error']}\n"
    assert_tables(folder, expected.repeats)
    assert [path.name for path in run.temporary.iterdir()] == []
    assert_nothing_left(run)


def assert_tables(folder: Path, repeats: int) -> None:
    """Every repeat that was finished is in each, and no file is half of one."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".hydra" not in path.parts]
    wanted = {"summary.parquet", "histograms.parquet", "launches.parquet"} if repeats else set()
    assert {path.name for path in files} == {"manifest.json"} | wanted
    for name in wanted:
        assert set(pq.read_table(folder / name)["repeat"].to_pylist()) == set(range(repeats))
    rows = results.read_summaries([folder]) if repeats else []
    assert [row["status"] for row in rows] == ["ok"] * repeats


# On the CPU device.


@on_linux
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("prepare says_no_memory", Expected(2, (f"consumer: {NO_MEMORY}", "while batched was prepared", "nvidia-smi"))),
        ("run says_no_memory", in_the_middle(NO_MEMORY)),
        ("run says_context_lost", in_the_middle(LOST, "baseline")),
        ("run says_failed_of_lost_context", in_the_middle(LOST)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_cupy_raises_is_said_in_one_line(fault: str, expected: Expected, faulty: Start) -> None:
    pytest.importorskip("cupy")
    mode = "baseline" if " in baseline," in expected.words[1] else "batched"
    assert_ended(faulty(fault, f"{SMALL} mode={mode} device=cpu"), expected)


@on_linux
@pytest.mark.parametrize(
    ("mode", "device", "fault"),
    [
        ("batched", "cpu", "lands_no_more"),
        ("coalesced", "cpu", "lands_no_more"),
        *(
            pytest.param(mode, "cuda", "launch_bad_kernel", marks=pytest.mark.gpu)
            for mode in ("batched", "coalesced", "graph")
        ),
    ],
)
def test_a_lost_gpu_of_which_every_request_waits_for_a_token(mode: str, device: str, fault: str, faulty: Start) -> None:
    """No launch follows that could fail. The waiting loop checks the GPU long before the limit of the watchdog."""
    pytest.importorskip("cupy")
    run = faulty(f"run {fault}", f"{DECODE} mode={mode} device={device}")
    exit_code, stderr = run.ended()
    assert (exit_code, stderr.count("\n")) == (1, 1), stderr
    assert f"error: consumer: {LOST} in {mode}, repeat {REPEAT}: " in stderr
    manifest = run.manifest()
    assert (manifest["status"], manifest["repeats_done"]) == ("failed", REPEAT)
    assert_nothing_left(run)


@on_linux
@pytest.mark.parametrize(
    ("device", "fault"),
    [("cpu", "says_context_lost"), pytest.param("cuda", "launch_bad_kernel", marks=pytest.mark.gpu)],
)
def test_the_next_job_of_a_sweep_has_a_context_of_its_own(device: str, fault: str, faulty: Start) -> None:
    pytest.importorskip("cupy")
    run = faulty(f"run {fault} batched", f"-m {SMALL} mode=batched,baseline device={device} hydra.sweep.dir=sweep")
    exit_code, stderr = run.ended()
    assert (exit_code, stderr.count("\n")) == (1, 1), stderr
    assert f"error: consumer: {LOST} in batched, repeat {REPEAT}: " in stderr
    failed, fine = (results.read_manifest(run.folder / "sweep" / job) for job in "01")
    assert (failed["status"], failed["repeats_done"]) == ("failed", REPEAT)
    assert (fine["status"], fine["repeats_done"]) == ("ok", REPEATS)
    assert_nothing_left(run)


def test_what_the_runtime_raises_carries_its_number() -> None:
    cupy = pytest.importorskip("cupy")
    for code, kind in ((2, ArenaMemoryError), (700, GpuError), (716, GpuError)):
        error = cupy.cuda.runtime.CUDARuntimeError(code)
        assert is_lost(error) == (code != 2)
        with pytest.raises(kind, match=rf"^CUDA error {code} \(cudaError.*\) {MAKE_READY}: "), GpuErrors():
            raise error
    assert fault_of(cupy.cuda.runtime.CUDARuntimeError(1)) is None, "an invalid value is a mistake of ours"


def test_what_is_no_fault_of_a_gpu_is_passed_on() -> None:
    for error in (RunError("a disk is full"), ValueError("no"), Interrupted("stopped"), MemoryError()):
        assert fault_of(error) is None
        assert not is_lost(error)
        with pytest.raises(type(error)) as caught, GpuErrors():
            raise error
        assert caught.value is error


def later(where: str) -> GpuErrors:
    """No longer while a job is made ready."""
    gpu = GpuErrors()
    gpu.where = where
    return gpu


def test_a_status_is_told_by_its_number() -> None:
    for error, kind in ((StatusError("no", 2), ArenaMemoryError), (StatusError("no", 719), GpuError)):
        with pytest.raises(kind, match=rf"^CUDA error {error.code} \(no\) {MAKE_READY}: "), GpuErrors():
            raise error
    no_memory = StatusError.of_cublas(3, "NAME")
    with (
        pytest.raises(GpuError, match=r"^CUDA error 2 \(cublasLtMatmul failed: NAME\) in graph, warm-up run: "),
        later("in graph, warm-up run"),
    ):
        raise no_memory
    assert fault_of(StatusError.of_cublas(7, "an invalid value")) is None


def test_a_librarys_many_lines_become_one_that_ends() -> None:
    wordy = StatusError("CUDA error:\nan illegal\x1b memory access\n" + "and so on " * 100, 700)
    with pytest.raises(GpuError) as caught, later("in torch_eager, repeat 0"):
        raise wordy
    text = str(caught.value)
    assert text.startswith(r"CUDA error 700 (CUDA error: an illegal\x1b memory access and so on ")
    assert text.isprintable()
    assert len(text) < 600


# On a GPU.


@contextmanager
def neighbour(folder: Path) -> Iterator[None]:
    """Another process has all of the GPU's memory but a little."""
    imported = "from support.processes import injected_faults as f"
    take = f"{imported}; f.take_memory({LEFT_BYTES}); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", take], env=injecting(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield
        finally:
            process.kill()


@pytest.mark.gpu
def test_memory_that_a_neighbour_holds_is_no_room_for_a_plan(faulty: Start, tmp_path: Path) -> None:
    with neighbour(tmp_path):
        run = faulty("never none", f"{LARGE} mode=batched device=cuda")
        exit_code, stderr = run.ended()
    assert (exit_code, stderr.count("\n")) == (2, 1), stderr
    assert "may be used: lower workload.commands or batching.max_batch" in stderr
    assert not (tmp_path / "outputs").exists(), "refused before anything was written"
    assert_nothing_left(run)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("fault", "job", "where"),
    [
        ("job take_most_memory", LARGE, "while operands were put into memory of "),
        ("prepare ask_for_too_much", JOB, "while batched was prepared"),
    ],
)
def test_memory_that_is_gone_once_the_plan_was_made(fault: str, job: str, where: str, faulty: Start) -> None:
    expected = Expected(2, (f"consumer: {NO_MEMORY}", where, "nvidia-smi"))
    assert_ended(faulty(fault, f"{job} mode=batched device=cuda"), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["find_memory_taken", "ask_for_too_much"])
def test_memory_that_is_gone_in_the_middle(kind: str, faulty: Start) -> None:
    assert_ended(faulty(f"run {kind}", f"{JOB} mode=batched device=cuda"), in_the_middle(NO_MEMORY))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_that_breaks_the_context(mode: str, faulty: Start) -> None:
    """The mode determines who gets the error first: cuBLASLt, the driver, a graph, or the wait for the end."""
    run = faulty("run launch_bad_kernel", f"{JOB} mode={mode} device=cuda")
    assert_ended(run, in_the_middle(LOST, mode))


@pytest.mark.gpu
def test_a_kernel_that_breaks_the_context_while_plans_are_made(faulty: Start) -> None:
    run = faulty("prepare launch_bad_kernel", f"{JOB} mode=batched device=cuda")
    assert_ended(run, Expected(1, (f"consumer: {LOST}", "while batched was prepared", "compute-sanitizer")))
