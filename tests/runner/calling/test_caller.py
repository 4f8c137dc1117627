"""A run for a program ends in its result or in one error, whatever its process does; the program stays as it was."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.processes.own_process import environ_of

from launchopt.errors import ConfigError, Interrupted, LaunchoptError, RunError
from runner import cli
from runner.calling import caller
from runner.calling.caller import call
from runner.calling.child import Ended, _plain
from runner.config.typed.words import WordsError
from runner.ending.signals import Stopped
from runner.run.folder_lock import FolderError

SEND = """
import signal, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from launchopt.errors import Interrupted, RunError
from runner.calling.child import Ended
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
def send(*ended):
    Connection(int(sys.argv[2]), readable=False).send(Ended(*ended))
    sys.exit(ended[0])
"""
STOPPED = """
signal.signal(signal.SIGINT, lambda *_: send(130, Path('there'), Interrupted('interrupted; 2 repeats are kept')))
print("ready", file=sys.stderr, flush=True)
time.sleep(60)
"""


def boot(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let the process of a run execute this program instead."""
    monkeypatch.setattr(caller, "BOOT", program)


@pytest.mark.parametrize("words", [["workload.m=0"], ["mode=grahp"], ["workload=decode", "seed=x"]])
def test_a_refused_run_raises_the_line_that_the_command_prints(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        call(words)
    assert capfd.readouterr() == ("", "")
    with contextlib.suppress(SystemExit):
        cli.run(words)
    assert refused.value.exit_code == 2
    assert capfd.readouterr().err == f"error: {refused.value}\n"
    assert refused.value.key == words[-1].partition("=")[0]
    assert list(tmp_path.iterdir()) == []


def test_a_call_leaves_the_program_as_it_was(tmp_path: Path) -> None:
    """In a process of its own, since this one has loaded Hydra, and pytest's handlers."""
    program = """
import logging, os, signal, sys, threading
def state():
    signals = [signal.getsignal(each) for each in signal.valid_signals()]
    masks, hooks = signal.pthread_sigmask(signal.SIG_BLOCK, []), (sys.excepthook, sys.unraisablehook)
    streams = (sys.stdout, sys.stderr, logging.root.handlers, logging.root.level, threading.active_count())
    return signals, masks, hooks, streams, os.getcwd(), dict(os.environ), sys.path[:], sys.meta_path[:]
import launchopt
def hear(*_): pass
signal.signal(signal.SIGTERM, hear)
before = state()
for _ in range(2):
    try:
        launchopt.run({"workload.m": 0})
    except launchopt.ConfigError as error:
        print(error)
assert state() == before
print([each for each in ("hydra", "omegaconf", "pandas", "numba", "pyarrow") if each in sys.modules])
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, file], env=environ_of(), capture_output=True, text=True, cwd=tmp_path)
    line = "workload.m=0: out of range; allowed: from 1 to 2147483647\n"
    assert (done.stdout, done.stderr, done.returncode) == (2 * line + "[]\n", "", 0)


def test_modules_of_the_user_stand_for_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runner.py", "queue.py", "launchopt.py", "hydra.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^workload\.m=0: out of range"):
        call(["workload.m=0"])


def test_settings_that_run_nothing_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="these settings run nothing; type: launchopt run mode=help"):
        call(["mode=help"])


def test_an_interpreter_that_does_not_say_where_it_is_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RunError, match="does not say where it is"):
        call([])


def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(RunError, match="the process of the run cannot be started: No such file"):
        call([])


IN_PIECES = (
    "import sys, time\nfor part in ('first\\nErr', 'or: in ', 'pieces\\n'): "
    "sys.stderr.write(part); sys.stderr.flush(); time.sleep(0.05)\nsys.exit(1)"
)


GPU_FAULT = r"raise SystemExit('error: the context is lost\nError in sys.excepthook:\n\nOriginal exception was:')"


@pytest.mark.parametrize(
    ("program", "kind", "code", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", RunError, 1, "the process of the run was ended by SIGKILL"),
        ("raise SystemExit('error: ulimit -n: too few')", RunError, 1, "ulimit -n: too few"),
        ("raise ValueError('of ours')", RunError, 1, "ValueError: of ours"),
        (IN_PIECES, RunError, 1, "Error: in pieces"),
        (GPU_FAULT, RunError, 1, "the context is lost"),
        ("raise SystemExit(3)", RunError, 1, "the process of the run ended with code 3"),
        ("raise SystemExit(143)", Interrupted, 143, "interrupted by SIGTERM"),
        (SEND + "send(1, None, RunError('broken'))", RunError, 1, "broken"),
    ],
)
def test_every_end_of_the_process_is_an_error(
    program: str, kind: type[LaunchoptError], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch, program)
    with pytest.raises(kind) as raised:
        call([], is_quiet=True)
    assert (str(raised.value), raised.value.exit_code) == (said, code)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_what_the_run_prints_on_standard_error_is_shown(
    is_quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    boot(
        monkeypatch, SEND + "print('[0:30] half of it é', file=sys.stderr); print('a table'); send(0, Path('f'), None)"
    )
    assert call([], is_quiet=is_quiet) == Path("f")
    assert capsys.readouterr() == ("", "" if is_quiet else "[0:30] half of it é\n")


def test_standard_input_is_left_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    boot(monkeypatch, SEND + "send(0, Path(repr(sys.stdin.read())), None)")
    read, write = os.pipe()
    before = os.dup(0)
    try:
        os.dup2(read, 0)
        os.write(write, b"for the program")
        assert call([]) == Path("''")
        assert os.read(0, 99) == b"for the program"
    finally:
        os.dup2(before, 0)
        for each in (read, write, before):
            os.close(each)


class Interrupting:
    """Standard error of a program that gets Ctrl-C as soon as its run is ready."""

    def write(self, text: str) -> None:
        if "ready" in text:
            signal.raise_signal(signal.SIGINT)

    def flush(self) -> None:
        pass


def test_ctrl_c_goes_on_to_the_run_and_comes_back_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    boot(monkeypatch, SEND + STOPPED)
    monkeypatch.setattr(sys, "stderr", Interrupting())
    with pytest.raises(KeyboardInterrupt, match="interrupted; 2 repeats are kept"):
        call([])


def test_a_third_ctrl_c_waits_for_no_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "signal.signal(signal.SIGINT, lambda *_: print('ready', file=sys.stderr, flush=True)); "
    boot(monkeypatch, SEND + deaf + "print('ready', file=sys.stderr, flush=True)\nwhile True: time.sleep(60)")
    monkeypatch.setattr(sys, "stderr", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        call([])


class Writing:
    """Standard error of a program, for which each text raises an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def write(self, text: str) -> None:
        raise self.error


def test_an_exception_of_the_program_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as SystemExit, which a program's handler of SIGTERM raises at any place."""
    boot(monkeypatch, SEND + "print('ready', file=sys.stderr, flush=True); time.sleep(60)")
    monkeypatch.setattr(sys, "stderr", Writing(SystemExit(3)))
    with pytest.raises(SystemExit):
        call([])


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_run_goes_on_if_nobody_reads_its_progress(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    boot(monkeypatch, SEND + "print('ready', file=sys.stderr, flush=True); send(0, Path('f'), None)")
    monkeypatch.setattr(sys, "stderr", Writing(error))
    assert call([]) == Path("f")


def test_a_fork_that_holds_the_pipe_keeps_no_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of the program can fork at any time. The fork ends long after the process of the run."""
    forking = "import os\nif not os.fork():\n    import time; time.sleep(20); os._exit(0)\nos._exit(3)"
    boot(monkeypatch, forking)
    begun_s = time.monotonic()
    with pytest.raises(RunError, match="ended with code 3"):
        call([])
    assert time.monotonic() - begun_s < 15


def test_a_thread_can_call(monkeypatch: pytest.MonkeyPatch) -> None:
    boot(monkeypatch, SEND + "send(0, Path('f'), None)")
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(call([])))
    thread.start()
    thread.join()
    assert found == [Path("f")]


def test_an_error_becomes_one_that_a_program_can_read() -> None:
    """Its class is in `launchopt.errors`, and its fields need no other module."""
    locked, word = _plain(FolderError("hydra.run.dir", Path("f"), "in use")), _plain(WordsError("no word"))
    assert (type(locked), locked.exit_code) == (RunError, 2)
    assert (type(word), word.exit_code, str(word)) == (LaunchoptError, 2, "no word")
    config = _plain(ConfigError("seed", object, "a number"))
    read = pickle.loads(pickle.dumps(config))
    assert (type(read), str(read), vars(read)) == (ConfigError, str(config), vars(config))
    assert (read.value, read.allowed) == (str(object), "a number")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_program_keeps_its_exit_code(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        """A run that ends once it is interrupted."""

        ends = False

        def wait(self) -> Ended:
            if not self.ends:
                raise Stopped(number)
            return Ended(130, None, Interrupted("interrupted", 130))

        def interrupt(self) -> None:
            self.ends = True

    monkeypatch.setattr(caller, "_started", lambda words, is_quiet: contextlib.nullcontext(Run()))
    with pytest.raises(Stopped) as stop:
        call([])
    assert stop.value.exit_code == 128 + number
