"""Ctrl-C once and twice, SIGTERM, SIGHUP: to the group, as a terminal and `timeout` send them, and to one process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pandas as pd
import pytest
from support.processes.own_process import environ_of
from support.processes.own_run import LONG, SHORT, Victim, assert_nothing_left, eventually, on_linux

from launchopt.recording import results
from runner import ending
from runner.ending.signals import STOPPING, Signals, Stopped

SECONDS = f"{SHORT} workload.commands=300000".replace("batched", "baseline")  # a repeat takes about a second


def without_announcement(stderr: str) -> str:
    """A repeat can be over before it is said that it will be finished."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not (line.startswith("finishing ") and line.endswith(" stops now\n")))


def assert_kept(run: Victim) -> int:
    """The finished repeats are there, whole; how many."""
    manifest, folder = run.manifest(), run.results_folder()
    done = int(manifest["repeats_done"])
    assert manifest["status"] == "interrupted"
    rows = results.read_summaries([folder]) if done else []
    assert [row["repeat"] for row in rows] == list(range(done))
    assert {row["status"] for row in rows} <= {"ok"}
    if done:
        assert set(pd.read_parquet(folder / "launches.parquet")["repeat"]) >= set(range(done))
    assert not list(folder.glob(".*"))
    assert_nothing_left(run)
    return done


@on_linux
def test_ctrl_c_once_finishes_the_repeat_and_keeps_it(victim: Callable[[str], Victim]) -> None:
    run = victim(SECONDS)
    run.in_the_middle()
    os.killpg(run.process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    exit_code, stderr = run.end()
    assert exit_code == 130
    done = assert_kept(run)
    assert done >= 1, "the repeat under way was finished"
    announced = f"finishing baseline {done}/10000; Ctrl-C again stops now\n"
    assert stderr == f"{announced}error: interrupted; {done} finished repeats are in {run.results_folder()}\n"


@on_linux
@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("group", signal.SIGTERM),
        ("group", signal.SIGHUP),
        ("consumer", signal.SIGTERM),
    ],
)
def test_finished_repeats_are_kept(number: signal.Signals, whom: str, victim: Callable[[str], Victim]) -> None:
    run = victim(SHORT)
    eventually(lambda: run.repeats_done() >= 1)
    if whom == "group":
        os.killpg(run.process.pid, number)
    else:
        run.children()[0].send_signal(number)
    exit_code, stderr = run.end()
    assert exit_code == 128 + number
    done = assert_kept(run)
    assert done >= 1
    expected = f"error: interrupted by {number.name}; {done} finished repeats are in {run.results_folder()}\n"
    assert without_announcement(stderr) == expected


@on_linux
def test_an_interrupted_sweep_stops_there(victim: Callable[[str], Victim]) -> None:
    run = victim(f"-m {SHORT},1".replace("repeats=", "repeats=1,"))
    sweep = run.folder / "outputs/sweep"
    eventually(lambda: run.children() and list(sweep.glob("*/1/summary.parquet")))
    os.killpg(run.process.pid, signal.SIGTERM)
    exit_code, message = run.end()
    assert exit_code == 143
    assert message.startswith("error: interrupted by SIGTERM; ")
    assert message.count("\n") == 1
    (about,) = [json.loads(path.read_text()) for path in sweep.glob("*/sweep.json")]
    assert (about["status"], about["exit_code"]) == ("interrupted", 143)
    jobs = sorted(path.parent for path in sweep.glob("*/*/manifest.json"))
    assert [results.read_manifest(job)["status"] for job in jobs] == ["ok", "interrupted"]
    assert_nothing_left(run)


def started(run: Victim) -> bool:
    return len(run.children()) == 2


def under_way(run: Victim) -> bool:
    return run.popped() > 10_000


@on_linux
@pytest.mark.parametrize("when", [started, under_way])
def test_impatience_changes_nothing(when: Callable[[Victim], bool], victim: Callable[[str], Victim]) -> None:
    run = victim(LONG)
    eventually(lambda: run.process.poll() is not None or when(run))
    while run.process.poll() is None:
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.05)
    exit_code, stderr = run.end()
    assert exit_code == 130
    assert without_announcement(stderr) == f"error: interrupted; 0 finished repeats are in {run.results_folder()}\n"
    assert assert_kept(run) == 0


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has a handler for the signal."""
    with Path(f"/proc/{pid}/status").open() as status:
        caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> number - 1 & 1)


@on_linux
@pytest.mark.parametrize("name", ["runner", "runner.report", "launchopt"])
def test_a_signal_before_anything_is_loaded_ends_the_command_with_a_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "launchopt").write_text("from runner.__main__ import main\nmain()\n")  # what pip installs
    words = [str(tmp_path / name)] if name == "launchopt" else ["-m", name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for _ in range(20):  # a busy machine may look only after the command has printed its usage and ended
        with subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environ_of(), **pipes) as process:
            eventually(lambda: process.poll() is not None or handles(process.pid, signal.SIGTERM))
            process.send_signal(signal.SIGTERM)
            outputs = process.communicate()
        if process.returncode == 143:
            break
    assert (process.returncode, *outputs) == (143, "", "error: interrupted by SIGTERM\n")
    assert [path.name for path in tmp_path.iterdir()] == ["launchopt"]


# What each signal does, in this process


@pytest.fixture
def signals() -> Iterator[Signals]:
    """The handlers, installed for one test."""
    alarm = signal.getsignal(signal.SIGALRM)
    before = {each: signal.signal(each, signal.SIG_DFL) for each in STOPPING}  # a worker of pytest-xdist ignores some
    hooks = sys.unraisablehook, sys.excepthook
    installed = Signals()
    installed.stand()
    installed.orderly()
    yield installed
    sys.unraisablehook, sys.excepthook = hooks
    for each, handler in [*before.items(), (signal.SIGALRM, alarm)]:
        signal.signal(each, handler)


def a_repeat(signals: Signals, arrive: tuple[int, ...], reached: list[str]) -> None:
    """During which these signals come."""
    with signals.finishing("batched 3/5"):
        for each in arrive:
            signal.raise_signal(each)
            signals.announce()
            reached.append(f"after {STOPPING[each]}")
        reached.append("its end")
    reached.append("the next")


def test_the_first_waits_for_the_end_of_what_is_under_way(signals: Signals, capsys: pytest.CaptureFixture[str]) -> None:
    reached: list[str] = []
    with pytest.raises(Stopped):
        a_repeat(signals, (signal.SIGINT,), reached)
    assert reached == ["after SIGINT", "its end"]
    assert capsys.readouterr().err == "finishing batched 3/5; Ctrl-C again stops now\n"


@pytest.mark.parametrize("before", [(), (signal.SIGINT,)])
@pytest.mark.parametrize("last", STOPPING)
def test_all_others_stop_now(before: tuple[int, ...], last: int, signals: Signals) -> None:
    arrive = (*before, last) if before or last != signal.SIGINT else (last, last)
    reached: list[str] = []
    with pytest.raises(Stopped) as stopped:
        a_repeat(signals, arrive, reached)
    assert reached == [f"after {STOPPING[each]}" for each in arrive[:-1]]
    assert stopped.value.exit_code == 128 + last
    for each in STOPPING:
        signal.raise_signal(each)  # the cleanup is not disturbed


def test_between_two_repeats_there_is_nothing_to_finish(signals: Signals) -> None:
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGINT)


def test_a_repeat_that_fails_after_ctrl_c_keeps_its_error_and_the_next_does_not_begin(signals: Signals) -> None:
    with pytest.raises(ValueError, match="broke"), signals.finishing("batched 3/5"):  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise ValueError("broke")
    signals.check_lost()  # the error is the repeat's own
    with pytest.raises(Stopped):
        signals.check()


def test_a_block_that_must_be_whole_is(signals: Signals) -> None:
    reached = []
    with pytest.raises(Stopped), signals.held():  # noqa: PT012
        with signals.held():
            signal.raise_signal(signal.SIGTERM)
        reached.append("inner")
        signal.raise_signal(signal.SIGHUP)
        reached.append("outer")
    assert reached == ["inner", "outer"]


class Deaf:
    """Where Python loses an exception."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_python_loses_comes_again(signals: Signals, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stopped):  # noqa: PT012
        Deaf()
        time.sleep(10)
    assert capsys.readouterr().err == ""


def test_a_lost_signal_is_raised_at_the_end_of_a_block_that_must_be_whole(signals: Signals) -> None:
    reached = []
    Deaf()
    with pytest.raises(Stopped), signals.held():  # noqa: PT012
        time.sleep(0.1)  # in which Python would raise it again
        reached.append("the end of the block")
    assert reached == ["the end of the block"]


def test_a_lost_signal_is_raised_once_and_its_cleanup_is_whole(signals: Signals) -> None:
    reached = []

    def clean_up() -> None:
        try:
            signals.check()
        finally:
            time.sleep(0.1)
            reached.append("the end of the cleanup")

    Deaf()
    with pytest.raises(Stopped):
        clean_up()
    assert reached == ["the end of the cleanup"]


def test_a_lost_signal_does_not_disturb_the_last_line(
    signals: Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose() -> int:
        Deaf()
        signals.check()
        return 0

    def slowly(line: str, file: TextIO) -> None:
        time.sleep(0.1)
        file.write(line)

    monkeypatch.setattr(ending, "signals", signals)
    monkeypatch.setattr(ending, "print", slowly, raising=False)
    assert ending.outcome(lose) == 143
    assert capsys.readouterr().err == "error: interrupted by SIGTERM"


def test_an_error_that_a_library_makes_of_a_signal_is_the_signal(
    signals: Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose() -> int:
        try:
            signal.raise_signal(signal.SIGHUP)
        except Stopped:
            raise ImportError("numpy.core.multiarray failed to import") from None
        return 0

    monkeypatch.setattr(ending, "signals", signals)
    assert ending.outcome(lose) == 129
    assert capsys.readouterr().err == "error: interrupted by SIGHUP\n"
    signal.raise_signal(signal.SIGTERM)  # the exit code is known


def test_a_removed_current_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ending, "signals", Signals())
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert ending.outcome(lambda: 0) == 0
    (tmp_path / "gone").rmdir()
    assert ending.outcome(lambda: 0) == 2
    assert capsys.readouterr().err == "error: the current folder was removed; type: cd FOLDER\n"


def test_ctrl_c_without_handlers_of_ours_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ending, "signals", Signals())
    assert ending.outcome(interrupted) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    others = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    hooks = sys.unraisablehook, sys.excepthook
    Signals().stand()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    sys.unraisablehook, sys.excepthook = hooks
    for each, handler in [*others.items(), (signal.SIGHUP, before)]:
        signal.signal(each, handler)
