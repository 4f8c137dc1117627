"""A run in which nothing moves is ended, and says who stood still; what merely takes long is left alone."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.processes.own_run import LONG, SHORT, Victim, assert_nothing_left, eventually, on_linux

from launchopt.errors import RunError
from launchopt.recording import results
from runner import app
from runner.run import watchdog
from runner.run.watchdog import BUSY_ELSE, BUSY_TIMED, StalledError, Watchdog, Watched, has_helpers, limited, pulse_of

LIMIT_S = 8.0


@dataclass
class Fake:
    """A child; `moves`: whether the kernel sees it run."""

    name: str
    pid: int
    moves: bool = False


class Scene:
    """A watchdog, its children, and a clock that stands until it is put on."""

    def __init__(self, timed: bool = True, limit_s: float = LIMIT_S) -> None:
        self.now_s, self.popped, self.helped = 100.0, 0, False
        self.consumer, self.producer = Fake("consumer", 1), Fake("producer", 2)
        self.watchdog = Watchdog(limit_s, lambda: self.now_s, self._pulse, lambda pid: self.helped)
        self.watchdog.begin("batched 3/5", timed)

    def _pulse(self, pid: int) -> tuple[float, ...]:
        child = {1: self.consumer, 2: self.producer}[pid]
        return (self.now_s if child.moves else 0.0,)

    def passes(self, seconds: float, step_s: float = 0.1, may_wait: bool = False, pops: int = 0) -> None:
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.popped += pops
            self.watchdog.look((1000, self.popped), (self.consumer, self.producer), may_wait)


def test_a_child_that_does_not_run_is_named() -> None:
    scene = Scene()
    scene.producer.moves = True
    scene.passes(LIMIT_S - 0.5)
    with pytest.raises(StalledError) as caught:
        scene.passes(5.0)
    assert caught.value.child is scene.consumer
    assert caught.value.exit_code == 1
    text = str(caught.value)
    assert text.startswith("consumer has not moved for ")
    assert text.endswith(" s (batched 3/5); watchdog_s=8: raise it if that is no fault; 0 waits for ever")


def test_the_other_child_is_named_too() -> None:
    scene = Scene()
    scene.consumer.moves = True
    with pytest.raises(StalledError, match=r"^producer has not moved"):
        scene.passes(LIMIT_S + 2)


def test_commands_that_move_are_enough() -> None:
    scene = Scene()
    scene.passes(LIMIT_S * 100, step_s=1.0, pops=1)


def test_a_child_that_comes_back_is_left_alone() -> None:
    scene = Scene()
    scene.producer.moves = True
    for _ in range(5):
        scene.passes(LIMIT_S - 2.5)
        scene.consumer.moves = True
        scene.passes(2.5)
        scene.consumer.moves = False


@pytest.mark.parametrize(("timed", "times"), [(True, BUSY_TIMED), (False, BUSY_ELSE)])
def test_who_runs_may_take_longer_but_not_for_ever(timed: bool, times: int) -> None:
    scene = Scene(timed)
    scene.consumer.moves = scene.producer.moves = True
    scene.passes(times * LIMIT_S - 2)
    with pytest.raises(StalledError, match=f"^consumer runs, but .*{times} times that"):
        scene.passes(4)


def test_an_open_loop_may_wait_for_its_next_arrival() -> None:
    scene = Scene()
    scene.consumer.moves = scene.producer.moves = True
    scene.passes(BUSY_TIMED * LIMIT_S * 3, may_wait=True)
    scene.producer.moves = False
    with pytest.raises(StalledError, match=r"^producer has not moved"):
        scene.passes(LIMIT_S + 3, may_wait=True)


def test_who_waits_for_a_compiler_runs() -> None:
    scene = Scene(timed=False)
    scene.helped = True
    scene.passes(LIMIT_S * 10)
    with pytest.raises(StalledError, match="gets nowhere"):
        scene.passes(LIMIT_S * BUSY_ELSE)


def test_time_that_the_parent_did_not_run_counts_for_nobody() -> None:
    scene = Scene()
    scene.passes(LIMIT_S / 2)
    scene.now_s += 3600  # Ctrl-Z, a machine that slept
    scene.passes(LIMIT_S / 4)


def test_a_new_phase_begins_anew() -> None:
    scene = Scene()
    for _ in range(5):
        scene.passes(LIMIT_S - 1)
        scene.watchdog.begin("batched 4/5", timed=True)


def test_off() -> None:
    Scene(limit_s=0).passes(1e6, step_s=100.0)


@on_linux
def test_what_the_kernel_knows() -> None:
    with psutil.Popen(["sleep", "60"]) as sleeper:
        try:
            eventually(lambda: sleeper.status() == psutil.STATUS_SLEEPING)
            before = pulse_of(sleeper.pid)
            assert before == pulse_of(sleeper.pid)
            assert not has_helpers(sleeper.pid)
        finally:
            sleeper.kill()
    assert pulse_of(sleeper.pid) == ()
    assert not has_helpers(sleeper.pid)
    mine = pulse_of(psutil.Process().pid)
    time.sleep(0.001)
    assert pulse_of(psutil.Process().pid) != mine


@on_linux
def test_a_consumer_that_hangs_ends_the_run(victim: Callable[[str], Victim]) -> None:
    run = victim(f"{LONG} watchdog_s=4")
    run.in_the_middle()[0].send_signal(signal.SIGSTOP)
    exit_code, stderr = run.end()
    assert exit_code == 1
    reason = stderr.removeprefix("error: ").rstrip("\n")
    assert reason.startswith("consumer has not moved for ")
    assert "(baseline 1/1); watchdog_s=4: " in reason
    manifest = run.manifest()
    assert (manifest["status"], manifest["error"], manifest["repeats_done"]) == ("failed", reason, 0)
    assert_nothing_left(run)


@on_linux
def test_a_producer_that_hangs_while_it_starts(victim: Callable[[str], Victim]) -> None:
    run = victim(f"{SHORT} watchdog_s=4")
    eventually(lambda: len(run.children()) == 2)
    run.children()[1].send_signal(signal.SIGSTOP)
    exit_code, stderr = run.end()
    assert exit_code == 1
    assert stderr.startswith("error: producer has not moved for ")
    assert run.manifest()["status"] == "failed"
    assert_nothing_left(run)


def test_a_gap_between_arrivals_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of an open loop says that its children may wait. The watchdog then lets them (above)."""
    looks: list[bool] = []

    def look(self: Watchdog, words: tuple[int, ...], owing: Sequence[Watched], may_wait: bool = False) -> None:
        looks.append(may_wait)

    monkeypatch.setattr(Watchdog, "look", look)
    words = "mode=batched device=cpu workload.cache=hot workload.commands=3 against=[]"
    words += " arrival=constant arrival.rate_per_s=1"
    assert app.main([*words.split(), f"hydra.run.dir={tmp_path}/run"]) == 0
    assert any(looks)


@on_linux
def test_a_flood_waits_for_a_consumer_that_pauses(victim: Callable[[str], Victim]) -> None:
    """More than the ring holds, and a consumer that stands still for a while: the producer waits, nothing is lost."""
    run = victim(f"{SHORT} workload.commands=300000 queue.capacity=512 repeats=1")
    consumer, _ = run.in_the_middle()
    consumer.send_signal(signal.SIGSTOP)
    popped = run.popped()
    time.sleep(1.0)
    size_bytes = sum(ring.stat().st_size for ring in run.rings())
    assert size_bytes < 100_000, "what waits, waits in the ring"
    consumer.send_signal(signal.SIGCONT)
    assert run.end() == (0, "")
    (row,) = results.read_summaries([run.results_folder()])
    assert popped < row["commands"] == 300_000
    assert (row["status"], row["verified"]) == ("ok", True)
    assert row["producer_blocked_ms"] > 0
    assert_nothing_left(run)


def test_a_limit_ends_the_wait_and_none_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now_s[0])
    seen: list[tuple[str, int]] = []
    report, unlimited = (limited(lambda *message: seen.append(message), limit) for limit in (2.5, None))
    now_s[0] = 102.5
    report("warm-up", 3)
    now_s[0] = 102.6
    with pytest.raises(RunError, match=r"^timeout: longer than job_timeout_s=2\.5 \(at: batched 1/5\); finished "):
        report("batched 1/5", 4)
    unlimited("batched 1/5", 5)
    assert seen == [("warm-up", 3), ("batched 1/5", 5)]
