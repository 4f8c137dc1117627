"""Ctrl-C once and twice, SIGTERM, SIGHUP: to the group, as a terminal and `timeout` send them, and to one process."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pandas as pd
import pytest
from support.processes.own_run import LONG, SHORT, Victim, assert_nothing_left, eventually, on_linux

from launchopt.recording import results
from runner.run import children
from runner.run.signals import STOPPING, Signals

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
    assert exit_code == 130
    done = assert_kept(run)
    assert done >= 1
    expected = f"error: interrupted; {done} finished repeats are in {run.results_folder()}\n"
    assert without_announcement(stderr) == expected


@on_linux
def test_an_interrupted_sweep_stops_there(victim: Callable[[str], Victim]) -> None:
    run = victim(f"-m {SHORT},1".replace("repeats=", "repeats=1,"))
    sweep = run.folder / "outputs/sweep"
    eventually(lambda: run.children() and list(sweep.glob("*/1/summary.parquet")))
    os.killpg(run.process.pid, signal.SIGINT)
    exit_code, stderr = run.end()
    assert exit_code == 130
    message = without_announcement(stderr)
    assert message.startswith("error: interrupted; ")
    assert message.count("\n") == 1
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
    eventually(lambda: when(run))
    while run.process.poll() is None:
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.05)
    exit_code, stderr = run.end()
    assert exit_code == 130
    assert without_announcement(stderr) == f"error: interrupted; 0 finished repeats are in {run.results_folder()}\n"
    assert assert_kept(run) == 0


# What each signal does, in this process


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(children, "_interrupts", [])
    before = {each: signal.getsignal(each) for each in STOPPING}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def a_repeat(arrive: tuple[signal.Signals, ...], reached: list[str]) -> None:
    """During which these signals come."""
    with Signals() as signals:
        with signals.finishing("batched 3/5"):
            for each in arrive:
                signal.raise_signal(each)
                signals.announce()
                reached.append(f"after {each.name}")
            reached.append("its end")
        reached.append("the next")


def test_the_first_waits_for_the_end_of_what_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        a_repeat((signal.SIGINT,), reached)
    assert reached == ["after SIGINT", "its end"]
    assert capsys.readouterr().err == "finishing batched 3/5; Ctrl-C again stops now\n"


@pytest.mark.parametrize("before", [(), (signal.SIGINT,)])
@pytest.mark.parametrize("last", STOPPING)
def test_all_others_stop_now(before: tuple[signal.Signals, ...], last: signal.Signals) -> None:
    arrive = (*before, last) if before or last != signal.SIGINT else (last, last)
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        a_repeat(arrive, reached)
    assert reached == [f"after {each.name}" for each in arrive[:-1]]
    assert {signal.getsignal(each) for each in STOPPING} == {signal.SIG_IGN}, "what is put in order is not disturbed"


def test_between_two_repeats_there_is_nothing_to_finish() -> None:
    with pytest.raises(KeyboardInterrupt), Signals():
        signal.raise_signal(signal.SIGINT)


def test_what_came_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_interrupts", [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt), Signals():
        pass


def test_nohup_stays_in_force() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals():
        signal.raise_signal(signal.SIGHUP)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(each) for each in STOPPING]
    with Signals() as signals, signals.finishing("batched 1/1"):
        pass
    assert [signal.getsignal(each) for each in STOPPING] == before
