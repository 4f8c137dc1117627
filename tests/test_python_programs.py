"""`launchopt.run` in the programs of users: scripts without a main guard, standard input, threads, notebooks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from support.doc_commands import FENCE
from support.paths import ROOT
from support.processes.own_process import environ_of, without_progress
from support.processes.own_run import eventually

import launchopt
from launchopt.recording import results

PAGE, NOTEBOOK = ROOT / "docs/python.md", ROOT / "docs/example.ipynb"
SMALL = '{"workload.cache": "hot", "workload.commands": 500, "workload.m": 16, "workload.k": 64}'
LONG = f'launchopt.run({SMALL}, device="cpu", mode=["baseline", "batched"], repeats=10000, folder="long")'
PATIENCE_S = 900  # a page takes 15 s of processor time, of which a busy machine gives little


def program(folder: Path, *words: str, typed: str = "") -> list[str]:
    """Run a program in a folder; return the lines that it prints."""
    call, limit = [sys.executable, *words], PATIENCE_S
    done = subprocess.run(
        call, input=typed, env=environ_of(), cwd=folder, capture_output=True, text=True, timeout=limit
    )
    said = set(without_progress(done.stderr).splitlines())
    assert (done.returncode, said - set(launchopt.load(folder).notices)) == (0, set())
    return done.stdout.splitlines()


def test_the_page_runs_as_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """It has three runs. Children import no module of the program, so that its first line is printed once."""
    fences = [body for language, body in FENCE.findall(PAGE.read_text(encoding="utf-8")) if language == "python"]
    assert len(fences) == 4
    (tmp_path / "program.py").write_text("\n".join(["print('begins')", *fences]))
    lines = program(tmp_path, "program.py")
    assert lines.count("begins") == 1
    assert lines[-1].split()[0] in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    assert (tmp_path / "page.html").is_file()
    assert launchopt.load(tmp_path / "results").modes == ("engine", "coalesced")


def test_a_thread_of_a_program_on_standard_input_runs(tmp_path: Path) -> None:
    typed = f"""
import threading, launchopt
def work():
    print(launchopt.run({SMALL}, device="cpu", mode="batched", against=[], quiet=True).modes)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("the rest of standard input")
"""
    assert program(tmp_path, "-", typed=typed) == ["('batched',)", "the rest of standard input"]


def test_a_run_outlives_no_program_and_keeps_what_was_measured(tmp_path: Path) -> None:
    code = f"import launchopt; {LONG}"
    killed = subprocess.Popen([sys.executable, "-c", code], env=environ_of(), cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: (tmp_path / "long/summary.parquet").exists())
        processes = psutil.Process(killed.pid).children(recursive=True)
        assert len(processes) >= 3
    finally:
        killed.kill()
        killed.wait()
    eventually(lambda: not any(each.is_running() for each in processes))
    assert launchopt.load(tmp_path / "long").status == "interrupted"


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotebookClient]:
    """The example in a kernel of its own, which writes its files below `tmp_path`."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", environ_of()["PYTHONPATH"])
    example = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(example, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        yield client


def interrupt(client: NotebookClient, folder: Path) -> None:
    """Interrupt the kernel as soon as a repeat has finished."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: (folder / "long/summary.parquet").exists())
    os.killpg(os.getpgid(client.km.provisioner.pid), signal.SIGINT)  # as Jupyter does


def test_the_example_runs_in_a_notebook_and_an_interrupt_keeps_what_was_measured(
    notebook: NotebookClient, tmp_path: Path
) -> None:
    cells = notebook.nb.cells
    for at, cell in enumerate(cells):
        notebook.execute_cell(cell, at)
    shown = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("| times as fast as engine |" in output.get("data", {}).get("text/markdown", "") for output in shown)

    cells.append(nbformat.v4.new_code_cell(LONG, metadata={"tags": ["raises-exception"]}))
    thread = Thread(target=interrupt, args=(notebook, tmp_path))
    thread.start()
    notebook.execute_cell(cells[-1], len(cells) - 1)
    thread.join()
    error = cells[-1].outputs[-1]
    assert (error.output_type, error.ename) == ("error", "KeyboardInterrupt")
    rows = results.read_summaries([tmp_path / "long"])
    assert error.evalue == f"interrupted; {len(rows)} finished repeats are in {tmp_path / 'long'}"
    assert launchopt.load(tmp_path / "long").status == "interrupted"
