"""Runs that tests start in processes of their own, and end whatever happens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes.own_run import Victim


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Callable[[str], Victim]]:
    """Starts `python -m runner` with these arguments."""
    victims: list[Victim] = []

    def start(arguments: str) -> Victim:
        victims.append(Victim(arguments, tmp_path))
        return victims[-1]

    yield start
    for each in victims:
        each.close()
