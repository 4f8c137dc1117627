"""What the group `mode` may hold: a dataclass for modes with settings of their own, one for all others."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from omegaconf import MISSING

from launchopt.errors import ConfigError
from launchopt.modes import check_mode
from runner.config.bounds import within


@dataclass(slots=True)
class Mode:
    """An execution strategy."""

    name: str = MISSING

    def __post_init__(self) -> None:
        check_mode(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Its settings, as the mode takes them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}


@dataclass(slots=True)
class MultiStream(Mode):
    """Launches over several streams."""

    streams: int = 4

    def __post_init__(self) -> None:
        check_mode(self.name)
        within("mode.streams", self.streams, 2, 64)
        if self.streams & (self.streams - 1):
            raise ConfigError("mode.streams", self.streams, "must be a power of two")


@dataclass(slots=True)
class Graph(Mode):
    """Launches recorded into CUDA graphs, or lists of a step's instructions."""

    # Graphs, or lists, kept, or one a copy of the weights; beyond, the one used longest ago is updated or dropped.
    cached: int = 64

    def __post_init__(self) -> None:
        check_mode(self.name)
        within("mode.cached", self.cached, 1, 4096)


@dataclass(slots=True)
class Megakernel(Graph):
    """One launch a step."""

    ahead: bool = True  # whether the next launch is made while a step runs, and waits for its commands on the GPU
    bar1: bool = True  # whether the word that it waits for may lie in the GPU's memory, where the host can store there
    racecheck: bool = False  # whether the kernel is the one whose order NVIDIA's racecheck knows: not for timing


@dataclass(slots=True)
class Persistent(Mode):
    """No launches: a kernel that stays."""

    patience_s: float = 60.0  # without a command the kernel ends, and the run fails
    bar1: bool = True  # whether the ring that it polls may lie in the GPU's memory, where the host can store there

    def __post_init__(self) -> None:
        check_mode(self.name)
        within("mode.patience_s", self.patience_s, 0.1, 86_400)


MODE_SETTINGS: dict[str, type[Mode]] = {
    "multistream": MultiStream,
    "graph": Graph,
    "torch_graph": Graph,
    "megakernel": Megakernel,
    "persistent": Persistent,
}


def mode_settings(name: str) -> Mode:
    """The settings of a mode as they are when nothing is said."""
    return MODE_SETTINGS.get(name, Mode)(name=name)
