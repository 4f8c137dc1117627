"""Recording a PyTorch program: the list says what the program did, and nothing is written when it cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of

import launchopt
from launchopt.errors import ConfigError, DataError, PackageError
from launchopt.traces.execution_trace import read_execution_trace
from launchopt.traces.gemm_list import read_gemm_list
from launchopt.traces.merged_rows import merged

ROWS = ["8,3,16,1,fp32,w0,0,x0", "8,3,16,1,fp32,w1,0,x0", "4,3,8,1,fp32,w2,1,x1"]


@pytest.fixture(scope="module")
def step() -> Any:
    """A step of two layers side by side, and one that reads the sum of both."""
    torch: Any = pytest.importorskip("torch")
    x, weights = torch.zeros(3, 16), [torch.zeros(size) for size in ((8, 16), (8, 16), (4, 8))]

    def run(divisor: int = 1) -> None:
        linear = torch.nn.functional.linear
        linear(linear(x, weights[0]).relu() + linear(x, weights[1]), weights[2]).view(3 // divisor, 4)

    return run


def test_the_list_is_what_the_program_did(step: Any, tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    with launchopt.record(path):
        step()
    origin, *lines = path.read_text().splitlines()
    assert origin.startswith("# recorded with PyTorch ")
    assert lines == ["m,n,k,count,dtype,weight,group,input", *ROWS]
    assert len(read_gemm_list(path)) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_a_matrix_and_its_transpose_do_not_become_columns_of_one_gemm(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    x, square = torch.zeros(1, 16), torch.zeros(16, 16)
    with launchopt.record(tmp_path / "gemms.csv"):
        torch.nn.functional.linear(x, square)
        _ = (x @ square, x @ square.t(), x[0] @ square)
    assert [each.weight for each in read_gemm_list(tmp_path / "gemms.csv")] == ["w0", "w0", "w1", "w1"]


def test_a_product_of_a_sparse_matrix_is_no_dense_gemm(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "gemms.csv"
    program = """
import sys, torch, launchopt
sparse, weight, x = torch.eye(8).to_sparse(), torch.randn(8, 16), torch.randn(8, 8)
with launchopt.record(sys.argv[1]):
    torch.sparse.mm(sparse, x)
    torch.addmm(x, sparse, x)
    sparse @ x @ weight
"""  # in a process of its own: it starts threads, with which the forks below would hang
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, env=environ_of(ROOT), capture_output=True)
    assert [(row.m, row.n, row.k) for row in read_gemm_list(path)] == [(16, 8, 8)]
    assert "# left out: 3 GEMM operators of a sparse matrix\n" in path.read_text()


@pytest.mark.parametrize(("skip", "steps", "recorded"), [(0, 2, 2), (2, None, 3), (1, 3, 3), (4, 9, 1)])
def test_steps_are_skipped_and_counted(step: Any, tmp_path: Path, skip: int, steps: int, recorded: int) -> None:
    with launchopt.record(tmp_path / "gemms.csv", skip=skip, steps=steps) as recording:
        for _ in range(5):
            step()
            recording.step()
    assert len(read_gemm_list(tmp_path / "gemms.csv")) == recorded * len(ROWS)


def test_nothing_is_written_without_gemms_or_when_the_program_fails(step: Any, tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    with pytest.raises(DataError, match="nothing was written: a trace without GEMMs"), launchopt.record(path):
        pass
    with pytest.raises(ConfigError, match=r"skip=3: step\(\) was called 0 times"), launchopt.record(path, skip=3):
        step()
    with pytest.raises(ZeroDivisionError), launchopt.record(path):
        step(divisor=0)
    assert list(tmp_path.iterdir()) == []
    with launchopt.record(path):
        step()
    assert path.exists()


@pytest.mark.parametrize(("skip", "steps"), [(-1, None), (0, 0), (0.5, None), (0, True)])
def test_wrong_numbers_of_steps_are_refused(skip: Any, steps: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allowed: whole numbers from"):
        launchopt.record(tmp_path / "gemms.csv", skip=skip, steps=steps)


def test_a_file_that_cannot_be_written_is_refused_before_the_program_runs(step: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"), launchopt.record(tmp_path / "none" / "gemms.csv"):
        pytest.fail("the program ran")
    with pytest.raises(DataError, match="cannot be written"), launchopt.record(tmp_path):
        pytest.fail("the program ran")


def test_a_recording_within_another_one_is_refused_and_the_outer_one_goes_on(step: Any, tmp_path: Path) -> None:
    with launchopt.record(tmp_path / "gemms.csv"):
        with pytest.raises(DataError, match="another recording runs"), launchopt.record(tmp_path / "inner.csv"):
            pytest.fail("the program ran")
        step()
    assert len(read_gemm_list(tmp_path / "gemms.csv")) == len(ROWS)


def test_a_fork_within_a_recording_adds_nothing_and_takes_nothing_away(step: Any, tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    with launchopt.record(path):
        step()
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                for _ in range(50):  # more than is buffered
                    step()
                with launchopt.record(tmp_path / "own.csv"):
                    step()
                raise SystemExit  # as a worker that ends within the block
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        step()
    assert len(read_gemm_list(path)) == 2 * len(ROWS)
    assert len(read_gemm_list(tmp_path / "own.csv")) == len(ROWS)


def test_a_fork_that_leaves_the_block_leaves_the_recording_to_its_parent(step: Any, tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    parent = os.getpid()
    with launchopt.record(path):
        child = os.fork()
        step()
    if os.getpid() != parent:
        os._exit(path.exists())
    assert os.waitpid(child, 0)[1] == 0
    assert len(read_gemm_list(path)) == len(ROWS)


def test_two_execution_traces_in_one_process_are_refused_and_do_not_crash(step: Any, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    own = torch.profiler.ExecutionTraceObserver()

    def trace(within: Callable[[], None]) -> None:
        own.register_callback(str(tmp_path / "own.json"))
        own.start()
        within()
        own.stop()
        own.unregister_callback()

    def refused(within: Callable[[], None]) -> None:
        with pytest.raises(DataError, match="another execution trace runs"), launchopt.record(tmp_path / "gemms.csv"):
            within()

    trace(lambda: refused(lambda: pytest.fail("the program ran")))
    refused(lambda: trace(step))
    assert len(read_execution_trace(tmp_path / "own.json").gemms) == len(ROWS)
    with launchopt.record(tmp_path / "gemms.csv"):
        step()
    assert torch.profiler.ExecutionTraceObserver.register_callback.__module__.startswith("torch")


def test_the_list_is_written_where_the_program_was_when_the_recording_began(
    step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)
    with launchopt.record("gemms.csv"):
        step()
        monkeypatch.chdir("inner")
    assert (tmp_path / "gemms.csv").exists()


def test_a_recording_can_be_used_again_and_counts_its_steps_anew(step: Any, tmp_path: Path) -> None:
    recording = launchopt.record(tmp_path / "gemms.csv", skip=1, steps=1)
    for _ in range(2):
        recording.step()  # outside of it: not counted
        with recording:
            for _ in range(3):
                step()
                recording.step()
        assert len(read_gemm_list(tmp_path / "gemms.csv")) == len(ROWS)


def test_a_full_folder_for_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    with pytest.raises(DataError, match=r"TMPDIR.* is full"), launchopt.record(tmp_path / "gemms.csv"):
        pass  # as a trace that was cut short, it cannot be read as a list


def test_it_says_that_pytorch_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PackageError, match="pip install torch"), launchopt.record(tmp_path / "gemms.csv"):
        pytest.fail("the program ran")


def test_a_decoder_of_hugging_face_gives_its_linear_layers_in_order(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=32)
    model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path / "gemms.csv"
    with torch.inference_mode(), launchopt.record(path):
        model.generate(torch.arange(3)[None], max_new_tokens=3, do_sample=False)
    layer = [(16, 16), (8, 16), (8, 16), (16, 16), (24, 16), (24, 16), (16, 24)]  # q, k, v, o, gate, up, down
    groups = [0, 0, 0, 1, 2, 2, 3]
    step, steps = [*layer, *layer, (32, 16)], [3, 1, 1]  # columns of a step: the prompt, then a token each
    gemms = read_gemm_list(path)
    assert [(each.m, each.k) for each in gemms] == step * 3
    assert len({each.weight for each in gemms}) == len(step)
    assert [each.n for each in gemms[:: len(step)]] == steps
    together = merged(gemms)
    assert [each.m for each in together[:5]] == [32, 16, 48, 16, 32], "q, k, v; o; gate, up; down; the next layer"
    assert together[0].weight == together[9].weight, "in the next step"
    of_step = [*groups, *(each + 4 for each in groups), 8]
    assert [int(each.group) for each in gemms] == [each + 9 * number for number in range(3) for each in of_step]
