"""What each signal does, in the process that has our handlers."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from runner import ending
from runner.ending.signals import STOPPING, Signals, Stopped


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
