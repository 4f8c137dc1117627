"""Requests whose prefix another request computes: the driver holds them back until that is done, and no longer."""

from __future__ import annotations

import pytest
from support.steps.driver_runs import CONTINUOUS, Peer, running
from support.steps.shared_prompts import stream_of
from support.steps.stream_steps import steps_of

from launchopt.producing.production import RunKind, Schedule
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn


class Watching(Peer):
    """A consumer that notes how many steps of each request had ended when a request's first step began."""

    def __init__(self, stream: ChainStream, *args: object, **named: object) -> None:
        super().__init__(stream, *args, **named)  # type: ignore[arg-type]
        self.at_start: dict[int, dict[int, int]] = {}

    def pop(self, most: int = 16) -> int:
        before = set(self.begun)
        count = super().pop(most)
        for request in set(self.begun) - before:
            self.at_start[request] = dict(self.notified)
        return count


@pytest.mark.parametrize("chunk", [None, 3, 1])
@pytest.mark.parametrize(
    "schedule",
    [CONTINUOUS, Schedule(continuous=True, most_running=2), Schedule(continuous=True, budget_tokens=5)],
    ids=["all", "two running", "budget of 5"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_request_starts_once_its_prefix_is_computed(chunk: int | None, schedule: Schedule, seed: int) -> None:
    stream = stream_of(chunk=chunk)
    with running(stream, schedule) as run:
        peer = Watching(stream, run, seed)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)
    assert set(peer.at_start) == set(range(stream.requests))
    for request, notified in peer.at_start.items():
        donor, needed = stream.table[request, [ChainColumn.DONOR, ChainColumn.DONOR_STEPS]].tolist()
        assert donor < 0 or notified.get(donor, 0) >= needed


@pytest.mark.parametrize("kind", [RunKind.WARM_UP, RunKind.AUDIT])
def test_warm_up_and_audit_runs_end(kind: RunKind) -> None:
    stream = stream_of(chunk=3)
    with running(stream, CONTINUOUS, kind=kind) as run:
        peer = Watching(stream, run, 0)
        peer.play()
    assert set(peer.at_start) == set(range(stream.requests))


def test_requests_behind_one_that_is_held_back_pass_it_and_those_held_back_keep_their_order() -> None:
    prompts = ["aaaabbbbccccd", "aaaabbbbx", "aaaabbbby", "gggg", "aaaabbbbz", "hh"]
    stream = stream_of(prompts, [1] * len(prompts), chunk=4)
    with running(stream, Schedule(continuous=True, most_running=3)) as run:
        peer = Watching(stream, run, 0)
        peer.play()
    first = [request for at, request in enumerate(peer.begun) if request not in peer.begun[:at]]
    assert first == [0, 3, 5, 1, 2, 4]
    assert len(steps_of(stream, 0)) == 4


def test_all_that_is_shared_at_once_is_computed_once() -> None:
    prompts = ["aaaabbbbccccx"] * 6
    stream = stream_of(prompts, [2] * 6)
    assert sum(kind.n for request in range(6) for kind in steps_of(stream, request) if kind.is_prompt) == 13 + 5
    with running(stream, CONTINUOUS) as run:
        peer = Watching(stream, run, 1)
        peer.play()
    assert peer.begun[0] == 0
