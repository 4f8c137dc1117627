"""Which children of a run stay for the next one."""

from __future__ import annotations

import pytest

from runner.run import children


def test_children_without_a_job_so_far_stay_and_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class FakeChild:
        def __init__(self, name: str, has_worked: bool) -> None:
            self.name, self.has_worked = name, has_worked

        def ask_to_exit(self) -> None:
            pass

        def end(self) -> None:
            ended.append(self.name)

    waiting = {name: FakeChild(name, name == "consumer") for name in children.NAMES}
    monkeypatch.setattr(children, "_waiting", waiting)
    children.dismiss(only_used=True)
    assert (ended, list(waiting)) == (["consumer"], ["producer"])
    children.dismiss()
    assert not waiting
