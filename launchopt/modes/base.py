"""What a mode is: the rule that turns commands into launches.

A mode is made, asked whether it can run a stream on a device (`refusal`), prepared once, then given work until the
stream ends. `takes` says in what form:

    commands   as they arrive, one at a time: nothing is held back for company
    batches    of one shape (or of several, with `merges_shapes`), at most one command of a request at a time
    steps      whole steps of several requests, all of one kind (launchopt/batching/step_batcher.py)

Batches and steps come to `submit`, which launches between `device.enter` and `device.leave`: they take the time, put
the NVTX range and the events, and note what ran. A device runs the whole loop compiled where `compiled_loop` says so.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.errors import RunError
from launchopt.modes.options import ModeOptions
from launchopt.options import Value
from launchopt.workloads.chain import ChainStream

if TYPE_CHECKING:
    from launchopt.batching.batcher import Batch
    from launchopt.devices.base import Device
    from launchopt.workloads.chain import Stream


class Takes(enum.Enum):
    """The form in which a mode is given work."""

    commands = "commands"
    batches = "batches"
    steps = "steps"


class Mode:
    """An execution strategy; a new one overrides what differs. `options`: see launchopt/modes/options.py."""

    name: ClassVar[str]
    summary: ClassVar[str]  # what one launch means
    takes: ClassVar[Takes] = Takes.batches
    compiled_loop: bool = False  # the device launches everything itself, without `submit`
    merges_shapes: ClassVar[bool] = False  # one bucket holds commands of every shape
    keeps_order: ClassVar[bool] = False  # without chains: each request's commands run in the order they were asked for
    sample_every: ClassVar[int] = 1  # of so many launches one is timed on the device at the most: where that costs much
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    packages: ClassVar[tuple[str, ...]] = ()  # imported in `prepare`; what pip calls the extra is in `extra`
    extra: ClassVar[str] = ""
    own_strategy: ClassVar[str] = ""  # recorder.Strategy of its own launches, where a run may well have others
    unwritten: ClassVar[frozenset[str]] = frozenset()  # nodes of a program whose outputs stay inside a fused launch
    ops: ClassVar[frozenset[Op]] = frozenset(Op)  # what it can launch
    dtypes: ClassVar[tuple[Dtype, ...]] = tuple(Dtype)

    options: ModeOptions = ModeOptions()

    def __init__(self, **values: Value) -> None:
        self.options = replace(self.options, **values)
        self.packable_bytes: Sequence[int] = ()  # for each shape the bytes a packed command copies, 0: never packed
        self.tables: Any = None  # lt_launch's tables where they are not the device's own
        self.streams: Any = None  # devices.streams.Streams, where it uses more than one
        self.resident: Any = None  # devices.resident.Resident, where a kernel stays
        self.ahead: Any = None  # devices.launch_ahead.LaunchAhead, where launches are made ahead of their commands
        self.traced = False  # whether every launch is recorded from outside: said before `prepare`
        self.rehearses = False  # whether the next run is a rehearsal, before the clock: said before `start`
        self.costs_ns: dict[str, int] = {}  # capture, instantiate, upload, update: where there is such a thing
        self.padded_commands = 0  # executed for nothing, since `start`
        self.graph_replays: int | None = None

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Why this mode cannot run `stream` on a device of `kind` (cpu, cuda); None: it can."""
        if kind not in cls.devices:
            return f"needs a GPU: on the {kind} device it has no meaning"
        if cls.takes_of(stream) is Takes.steps and not isinstance(stream, ChainStream):
            return "takes whole steps: this workload's commands are independent of each other"
        if stream.dtype not in cls.dtypes:
            return f"has no {stream.dtype.name}: {', '.join(dtype.name for dtype in cls.dtypes)}"
        if strange := {shape.op for shape in stream.shapes} - cls.ops:
            return f"launches no {', '.join(sorted(op.name for op in strange))}"
        return None

    @classmethod
    def lacks(cls) -> str | None:
        """What must be installed before this mode can run here; None: nothing."""
        missing = [name for name in cls.packages if find_spec(name) is None]
        if not missing:
            return None
        return f"needs {' and '.join(missing)}: pip install -e '.[{cls.extra}]'"

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """The form in which it is given this stream."""
        return cls.takes

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Of its `unwritten` those that a launch of this stream may leave out."""
        return cls.unwritten

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan every launch that can come: `limits` says how many commands of a shape a batch can hold."""

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Device memory wanted beside the arenas, told before anything is allocated."""
        return 0

    def start(self) -> None:
        """A run is about to begin."""
        self.padded_commands = 0
        self.costs_ns.pop("update", None)
        if self.graph_replays is not None:
            self.graph_replays = 0

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Commands of any shapes, in arrival order (only where it takes commands)."""
        raise RunError(f"mode={self.name} takes {self.takes.value}, not single commands")

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """A batch, or whole steps."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what `prepare` took."""
