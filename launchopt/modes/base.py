"""The base of modes: a mode is the rule that turns commands into launches.

A `Mode` is a configuration: it says whether it can run a stream on a device (`refusal`), and how much memory it needs.
`prepare` plans for one device and returns a `Prepared`, which launches until the stream ends. `takes` is the form in
which it is given commands:

    commands   as they arrive, one at a time
    batches    of one shape (or of several, with `merges_shapes`), at most one command of a request at a time
    steps      whole steps of several requests, all of one kind (launchopt/batching/step_batcher.py)

A `Prepared` has a method for each form: `submit_each`, `submit`, `submit_steps`. A launch stands between `device.enter`
and `device.leave`, which take the time, put the NVTX range and the events, and record the launch. With `compiled_loop`
the device launches everything in compiled code.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.base import Counters, Device, LaunchPath
from launchopt.errors import RunError
from launchopt.modes.options import ModeOptions
from launchopt.options import Value

if TYPE_CHECKING:
    from launchopt.batching.batcher import Batch
    from launchopt.batching.step_batcher import StepBatch
    from launchopt.devices.base import Device
    from launchopt.workloads.chain import Stream


class Takes(enum.Enum):
    """The form in which a mode is given work."""

    commands = "commands"
    batches = "batches"
    steps = "steps"


class Mode:
    """An execution strategy; a new one overrides what differs.

    options: see launchopt/modes/options.py. traced: a tool outside records every launch.
    """

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
    own_strategy: ClassVar[str] = ""  # Strategy of its own launches, where a run may well have others
    unwritten: ClassVar[frozenset[str]] = frozenset()  # nodes of a program whose outputs stay inside a fused launch
    ops: ClassVar[frozenset[Op]] = frozenset(Op)  # what it can launch
    dtypes: ClassVar[tuple[Dtype, ...]] = tuple(Dtype)

    options: ModeOptions = ModeOptions()

    def __init__(self, traced: bool = False, **values: Value) -> None:
        self.traced, self.options = traced, replace(self.options, **values)

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Why this mode cannot run `stream` on a device of `kind` (cpu, cuda); None: it can."""
        if kind not in cls.devices:
            return f"needs a GPU: on the {kind} device it has no meaning"
        if cls.takes_of(stream) is Takes.steps and not stream.has_steps:
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

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Device memory wanted beside the arenas, told before anything is allocated."""
        return 0

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Plan every launch that can be needed; `limits`: for each shape the most commands of a batch."""
        raise NotImplementedError


class Prepared:
    """A mode that is ready to launch the stream that `device` has open; a new one overrides what differs."""

    def __init__(self, mode: Mode, device: Device, path: LaunchPath | None = None) -> None:
        self.mode, self.device = mode, device
        self.path = path or LaunchPath()
        self.compiled_loop = mode.compiled_loop
        self.takes_commands = mode.takes_of(device.work) is Takes.commands

    def start(self, warm_up: bool = False) -> None:
        """Begin a run; `warm_up`: the run before the clock starts."""

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch commands of any shapes, in arrival order. RunError where the mode does not take commands."""
        raise RunError(f"mode={self.mode.name} takes {self.mode.takes_of(self.device.work).value}, not single commands")

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a batch. A mode that takes commands gets one where these depend on each other."""
        raise NotImplementedError

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch whole steps."""
        raise NotImplementedError

    def counters(self) -> Counters:
        """Return what graphs cost, and what the run executed beside its commands."""
        return Counters()

    def close(self) -> None:
        """Release what `prepare` took."""


class PreparedSteps(Prepared):
    """A mode that takes whole steps and has `launch` launch them."""

    def __init__(self, mode: Mode, device: Device, launch: Callable[[StepBatch, int], None]) -> None:
        super().__init__(mode, device)
        self._launch = launch

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch whole steps, flushed at `flush_ns`."""
        self._launch(batch, flush_ns)
