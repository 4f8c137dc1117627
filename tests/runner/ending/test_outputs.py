"""Outputs that nobody takes: closed, full, or a pipe without a reader. Commands finish; their exit code says it."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of
from support.processes.own_run import on_linux

from launchopt.recording import results
from runner.ending.outputs import CLOSED, Output

FULL = Path("/dev/full")
COMMANDS = ["runner --version", "runner completion zsh", "runner.help.completion fish", "runner --help"]
REASONS = {"closed": "Bad file descriptor", "full": "No space left on device"}
TINY = "workload=gemv_256 workload.commands=64 mode=batched repeats=2 device=cpu"


def shell(words: str, folder: Path) -> tuple[int, str]:
    """Run `python -m WORDS`, with redirections; return its exit code and standard error."""
    call = ["bash", "-c", f"{sys.executable} -m {words}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(call, cwd=folder, env=environ_of(), stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


@on_linux
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_output_nobody_takes_says_so_in_one_line(command: str, tmp_path: Path) -> None:
    assert shell(f"{command} >/dev/null", tmp_path) == (0, "")
    for how, where in (("closed", ">&-"), ("full", f">{FULL}")):
        text = f"error: standard output: {REASONS[how]}; the command finished, and its files are complete\n"
        assert shell(f"{command} {where}", tmp_path) == (1, text)
    assert shell(f"{command} | true", tmp_path) == (CLOSED, "")


@on_linux
@pytest.mark.parametrize("where", ["2>&-", f"2>{FULL}", ">&- 2>&- <&-"])
def test_a_mistake_keeps_its_exit_code_whether_or_not_its_line_can_be_read(where: str, tmp_path: Path) -> None:
    assert shell(f"runner nosuch {where}", tmp_path) == (2, "")


@on_linux
def test_a_sweep_without_a_reader_finishes_and_its_files_are_whole(tmp_path: Path) -> None:
    assert shell(f"runner -m {TINY} seed=1,2 hydra.sweep.dir=s 2>&- | true", tmp_path) == (CLOSED, "")
    about = json.loads((tmp_path / "s/sweep.json").read_text())
    assert (about["status"], about["counts"]) == ("ok", {"ok": 2})
    assert len(results.read_summaries([tmp_path / "s"])) == 4


@on_linux
@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("PYTHONIOENCODING=utf-8", "a \u2014 \xe9\n"),
        ("PYTHONIOENCODING=latin-1", "a \\u2014 \xe9\n"),
        ("LC_ALL=POSIX PYTHONCOERCECLOCALE=0 PYTHONUTF8=0", "a \\u2014 \\xe9\n"),
    ],
)
def test_a_character_that_an_output_lacks_is_escaped(setting: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "dash.py").write_text(
        "from runner.ending import end\nend(lambda: print('a \\u2014 \\xe9') or 0)\n", encoding="utf-8"
    )
    call = ["env", *setting.split(), sys.executable, "dash.py"]
    environment = environ_of() | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("latin-1" if "latin-1" in setting else "utf-8") == printed


@on_linux
def test_a_run_on_closed_outputs_finishes(tmp_path: Path) -> None:
    assert shell(f"runner {TINY} against=[] hydra.run.dir=r >&- 2>&- <&-", tmp_path) == (1, "")
    assert results.read_manifest(tmp_path / "r")["status"] == "ok"
    assert len(results.read_summaries([tmp_path / "r"])) == 2


def test_a_failure_is_kept_and_the_rest_is_dropped() -> None:
    reader, writer = os.pipe()
    with Output(writer, "w") as output:
        assert (output.write(b"abc"), output.failure) == (3, None)
        os.close(reader)
        assert (output.write(b"de"), output.write(b"f")) == (2, 1)
        assert output.failure is not None
        assert output.failure.errno == errno.EPIPE


def test_a_reader_that_pauses_gets_everything() -> None:
    reader, writer = os.pipe()
    text = b"x" * (1 << 20)
    read: list[bytes] = []

    def take() -> None:
        time.sleep(0.2)
        while part := os.read(reader, 1 << 16):
            read.append(part)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(take)
        with io.BufferedWriter(Output(writer, "w")) as output:
            output.write(text)
        done.result()
    assert b"".join(read) == text
    os.close(reader)


@on_linux
def test_a_signal_ends_a_command_whose_reader_has_paused_for_ever(tmp_path: Path) -> None:
    program = "end(lambda: print('begun', file=sys.stderr) or print('x' * (1 << 20)) or 0)"
    call = [sys.executable, "-c", f"import sys; from runner.ending import end; {program}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, cwd=tmp_path, env=environ_of(), **pipes) as process:
        assert process.stderr
        assert process.stderr.readline() == "begun\n"
        time.sleep(0.2)
        process.terminate()
        assert process.wait(60) == 143
        assert process.stderr.read() == "error: interrupted by SIGTERM\n"
