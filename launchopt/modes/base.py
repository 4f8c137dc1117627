"""The base classes of modes. A mode is a rule that turns commands into launches.

A `Mode` is a configuration. `refusal` says whether it can run a workload on a device, and `scratch_bytes` how much
memory it needs. `prepare` makes the plans for one device and returns a `Prepared`, which launches until the workload
ends. `takes` is the form in which the mode gets its commands:

    commands   single commands, as they arrive
    batches    batches of one shape (of several, with `merges_shapes`), with at most one command per request
    steps      whole steps of several requests, all of one kind (launchopt/batching/step_batcher.py)

A `Prepared` has one method per form: `submit_each`, `submit`, `submit_steps`. Each makes its launches between
`device.enter` and `device.leave`. These two time the launch, mark it with an NVTX range and events, and record it. With
`compiled_loop` the device makes all launches in compiled code.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import EXPERT_OPS, Dtype, Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.cuda.op_kernels import GEMV_MOST_COLUMNS
from launchopt.devices.prepared import Counters, LaunchPath
from launchopt.distribution import install_command, missing
from launchopt.errors import RunError
from launchopt.modes.options import ModeOptions
from launchopt.modes.stack import PRESETS, QUANTISED_BY, SAME_BATCHES, label_of, split_conflict
from launchopt.options import Value
from launchopt.stack import Stack

if TYPE_CHECKING:
    from launchopt.batching.batch import Batch, StepBatch
    from launchopt.devices.base import Device
    from launchopt.streams.chains.chain import Stream
    from launchopt.streams.chains.groups import LeftOut


class Takes(enum.Enum):
    """The forms in which a mode gets its commands."""

    commands = "commands"
    batches = "batches"
    steps = "steps"


HOPPER = 90  # compute capability, times 10, of GPUs that copy in bulk, and that unpack weights for tensor cores


def too_old(what: str, capability: int, instead: str) -> str:
    """Return why kernels for Hopper do not run on a GPU of this compute capability, times 10."""
    needed = f"needs compute capability {HOPPER / 10} or newer"
    return f"{what} {needed}, and this GPU has {capability / 10}: use {instead}"


def no_steps(stream: Stream) -> str:
    """Return why a mode that takes whole steps of requests cannot run a stream that has none."""
    if stream.independent:
        return "takes whole steps: this workload's commands are independent of each other"
    if stream.has_groups:
        return "takes whole steps of requests, and this workload is groups of commands"
    return "takes whole steps of requests, and this workload has none"


class Mode:
    """An execution strategy. A subclass overrides attributes and methods.

    traced: an external tool (CUPTI, torch.profiler) records every launch. values: the mode's options by name
    (launchopt/modes/options.py).
    """

    name: ClassVar[str]
    takes: ClassVar[Takes] = Takes.batches
    prefers_steps: ClassVar[bool] = False  # takes whole steps of a workload that has steps
    compiled_loop: bool = False  # compiled code makes all launches, without `submit`
    merges_shapes: ClassVar[bool] = False  # one bucket holds commands of every shape
    keeps_order: ClassVar[bool] = False  # for independent commands: each request's commands run in arrival order
    sample_every: ClassVar[int] = 1  # at most one of this many launches is timed on the device
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    packages: ClassVar[tuple[str, ...]] = ()  # packages that `prepare` imports
    extra: ClassVar[str] = ""  # pip's extra that installs them
    # Name of the Strategy of the mode's own launches, if a run may also have other launches.
    own_strategy: ClassVar[str] = ""
    unwritten: ClassVar[frozenset[str]] = frozenset()  # nodes of a program whose outputs stay inside a fused launch
    ops: ClassVar[frozenset[Op]] = frozenset(Op) - EXPERT_OPS  # ops that it can launch
    dtypes: ClassVar[tuple[Dtype, ...]] = tuple(Dtype)
    quantised: ClassVar[tuple[str, ...]] = ("cpu",)  # kinds of device on which it computes with quantised weights
    quantises_inputs: ClassVar[bool] = False  # quantises inputs, too, as the weights are, in the timed region

    stack: ClassVar[Stack] = Stack()  # its choices; `modes.stack.PRESETS` has those of every mode
    options: ModeOptions = ModeOptions()

    def __init__(self, traced: bool = False, **values: Value) -> None:
        self.traced, self.options = traced, replace(self.options, **values)  # type: ignore[arg-type]  # checked by OmegaConf

    def __init_subclass__(cls) -> None:
        """Give a mode the stack of its preset, unless its class has one."""
        super().__init_subclass__()
        if "stack" not in vars(cls) and (preset := PRESETS.get(vars(cls).get("name", ""))) is not None:
            cls.stack = preset

    @classmethod
    def label(cls) -> str:
        """Return the label of an arm of this mode: its name, and how its stack differs from the preset's."""
        return label_of(cls.name, cls.stack)

    @classmethod
    def stack_on(cls, stream: Stream) -> Stack:
        """Return the choices that hold for `stream`, as results have them."""
        return cls.stack

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream` on a device of `kind` (cpu, cuda), or None if it can."""
        if kind not in cls.devices:
            return f"needs a GPU: on the {kind} device it has no meaning"
        if cls.takes_of(stream) is Takes.steps and not stream.has_steps:
            return no_steps(stream) + (": use mode=grouped or graph" if stream.has_groups else "")
        if stream.tensor > 1 and (rule := split_conflict(cls.stack)) is not None:
            return rule.reason
        if stream.tensor > 1 and cls.takes_of(stream) is Takes.batches:
            return SAME_BATCHES
        if stream.dtype not in cls.dtypes:
            return f"has no {stream.dtype.name}: {', '.join(dtype.name for dtype in cls.dtypes)}"
        if stream.packing and (why := cls.quantised_refusal(kind, stream)) is not None:
            return why
        if strange := {shape.op for shape in stream.shapes} - cls.ops:
            return f"cannot launch {', '.join(sorted(op.name for op in strange))}"
        return None

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot compute with the quantised weights of `stream`, or None if it can."""
        if kind in cls.quantised:
            widest = max(shape.n for shape in stream.shapes if shape.packing)
            if kind == "cpu" or widest <= GEMV_MOST_COLUMNS:
                return None
            return f"our GEMV reads quantised weights for up to {GEMV_MOST_COLUMNS} columns, and this has {widest}"
        why = f"has no kernels for {stream.packing.format} weights on the {kind} device"
        return f"{why}: use {QUANTISED_BY[kind]}, or workload.weights=none"

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, cannot run what `refusal` let pass; or None."""
        return None

    @classmethod
    def lacks(cls) -> str | None:
        """Return which packages must be installed before the mode can run, or None if none are missing."""
        lacking = missing(*cls.packages)
        if not lacking:
            return None
        return f"needs {' and '.join(lacking)}: {install_command(cls.extra)}"

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """Return the form in which the mode gets the commands of `stream`."""
        return Takes.steps if cls.prefers_steps and stream.has_steps else cls.takes

    @property
    def together(self) -> int:
        """Most decode steps of a request that the driver issues together, since one launch executes them."""
        return 1

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Return the nodes of `unwritten` whose outputs a launch of `stream` may leave out."""
        return cls.unwritten

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes of device memory that the mode needs beside the arenas."""
        return 0

    @classmethod
    def whole_pass(cls, stream: Stream) -> int:
        """Return the commands of a pass through a list with groups if one launch takes all of them, in order; else 0.

        Of a layer with experts, those of its longest step. The batcher then holds a pass, or a step, and does not flush
        at the end of a group.
        """
        return 0

    @classmethod
    def shared_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int]) -> int:
        """Return the bytes of a GPU's memory that the mode needs, and that it shares with other arms of a run."""
        return 0

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Plan every launch that may be needed. limits: for each shape the largest number of commands of a batch."""
        raise NotImplementedError


class Prepared:
    """A mode that is ready to launch the workload that `device` has open. A subclass overrides methods.

    library: version and settings of the library that launches, for the column of that name; None: launchopt launches.
    left_out: rows that the mode's stack asks to launch together, and that are not.
    """

    library: str | None = None
    left_out: Sequence[LeftOut] = ()

    def __init__(self, mode: Mode, device: Device, path: LaunchPath | None = None) -> None:
        self.mode, self.device = mode, device
        self.path = path or LaunchPath()
        self.compiled_loop = mode.compiled_loop
        self.takes_commands = mode.takes_of(device.work) is Takes.commands

    def start(self, warm_up: bool = False) -> None:
        """Begin a run. warm_up: it is the run before the measured runs."""

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch commands of any shapes, in arrival order; raise RunError if the mode does not take commands."""
        raise RunError(f"mode={self.mode.name} takes {self.mode.takes_of(self.device.work).value}, not single commands")

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a batch. A mode that takes commands gets batches if its commands depend on each other."""
        raise NotImplementedError

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch whole steps."""
        raise NotImplementedError

    def counters(self) -> Counters:
        """Return the times of graph operations, and the counts of replays and padded commands."""
        return Counters()

    def close(self) -> None:
        """Release the resources of `prepare`."""


class PreparedSteps(Prepared):
    """A mode that takes whole steps, and launches them with the function `launch`."""

    def __init__(self, mode: Mode, device: Device, launch: Callable[[StepBatch, int], None]) -> None:
        super().__init__(mode, device)
        self._launch = launch

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch whole steps, flushed at `flush_ns`."""
        self._launch(batch, flush_ns)
