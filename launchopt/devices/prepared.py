"""A prepared mode as its device sees it: the path of a launch, and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # the process that plans a run imports this module, and must not load Numba
    from launchopt.batching.batch import Batch
    from launchopt.devices.cublaslt.tables import Tables
    from launchopt.devices.cuda.streams import Streams
    from launchopt.devices.megakernel.launch_ahead import LaunchAhead
    from launchopt.devices.resident.kernel import Resident


@dataclass(frozen=True, slots=True)
class LaunchPath:
    """The plans, CUDA streams and kernels that a device launches with while a prepared mode runs."""

    packable_bytes: Sequence[int] = ()  # bytes that packing copies per command, by shape; 0: the shape is never packed
    tables: Tables | None = None  # plans of the mode; None: the device's own plans
    streams: Streams | None = None  # several CUDA streams; None: only the main stream
    resident: Resident | None = None  # the persistent kernel, if the mode has one
    ahead: LaunchAhead | None = None  # makes launches before their commands arrive, if the mode does so

    @property
    def stream_count(self) -> int:
        """Number of CUDA streams that take launches."""
        return len(self.streams.all) if self.streams else 1


class PreparedMode(Protocol):
    """The interface that a device needs of a mode that runs on it."""

    path: LaunchPath
    compiled_loop: bool  # True: compiled code makes every launch; False: `submit` or `submit_each` does
    takes_commands: bool  # True: `submit_each` launches arriving commands; False: `submit` launches batches or steps

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch commands of any shapes, in the order given."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a batch."""


@dataclass(slots=True)
class Counters:
    """Time spent on graphs, replays, and padding commands. Only the object that creates it changes it."""

    costs_ns: dict[str, int] = field(default_factory=dict)  # total ns by name, since setup; "update": since `start`
    padded_commands: int = 0  # commands executed only to fill up a graph of fixed size
    graph_replays: int | None = None  # replays in this run; None: the mode has no graphs
    unfused_commands: int = 0  # commands of this run that scattered operands kept from their fused launches

    def start(self) -> None:
        """Begin a run: reset the counts of one run to 0."""
        self.padded_commands = self.unfused_commands = 0
        self.costs_ns.pop("update", None)
        if self.graph_replays is not None:
            self.graph_replays = 0

    def spend(self, name: str, ns: int) -> None:
        """Add `ns` to the cost `name`: "capture", "instantiate", "upload" or "update"."""
        self.costs_ns[name] = self.costs_ns.get(name, 0) + ns

    def replayed(self, padded: int = 0) -> None:
        """Count one replay of a graph with `padded` commands that only fill it up."""
        self.graph_replays = (self.graph_replays or 0) + 1
        self.padded_commands += padded
