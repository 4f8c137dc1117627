"""Run steps and batches by torch.compile, with one call of a compiled function each.

A step is compiled as a whole, from generated source code that calls its operators one after another. Each of its
tensors has its own storage object, although their rows alternate in memory. Otherwise, the compiler would treat a write
to one view as a write to all of them. Each function is compiled twice before the clock starts: for one row, and for any
larger number of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
import torch._dynamo

from launchopt.batching.batch import SEVERAL, Batch, StepBatch
from launchopt.command import ShapeKey, as_records
from launchopt.devices.base import Device
from launchopt.devices.pytorch.batches import INDEX_BYTES_A_COMMAND, Indices, runs, spaced
from launchopt.devices.pytorch.commands import stacks
from launchopt.devices.pytorch.ops import Sequences
from launchopt.devices.pytorch.step import Step
from launchopt.devices.pytorch.steps import STRATEGY, Steps, examples
from launchopt.devices.pytorch.views import Tensor, TorchArenas

MOST_FUNCTIONS = 4096  # most compiled variants that torch.compile may make
MOST_RUNS = 2  # most evenly spaced runs that take a call each (2 if slots wrap around); with more, slots are looked up
STRIDED = "def strided(a, b, c):\n    c.copy_(torch.bmm(b, a.transpose(1, 2)))\n"
SCATTERED = (
    "def scattered(a, b, c, at_a, at_b, at_c):\n"
    "    weights, inputs = a.index_select(0, at_a), b.index_select(0, at_b)\n"
    "    c.index_copy_(0, at_c, torch.bmm(inputs, weights.transpose(1, 2)))\n"
)


def compiled(source: str, name: str, names: Mapping[str, object], backend: str) -> Callable[..., None]:
    """Return the function `name` of some source code, compiled. It has its own code object and compiled variants."""
    made = dict(names)
    exec(compile(source, f"<{name}>", "exec"), made)
    # Each kind of step has its own function, so the number of functions is large.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MOST_FUNCTIONS
    function: Callable[..., None] = torch.compile(made[name], fullgraph=True, dynamic=False, backend=backend)
    return function


def grows(tensor: Tensor, dim: int | None) -> Tensor:
    """Tell the compiler that dimension `dim` may have any size from 2 on (None: no dimension); return the tensor."""
    if dim is not None:
        torch._dynamo.mark_dynamic(tensor, dim)
    return tensor


class CompiledSteps(Steps):
    """Compiled steps of the workload stream that a device has open."""

    def __init__(self, arenas: TorchArenas, device: Device, most: int, backend: str) -> None:
        super().__init__(arenas, device, is_apart=True)
        self._backend = backend
        self._names = {op.name.lower(): function for op, function in self.site.functions.items()}
        self._made: dict[str, Callable[..., None]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.compile advises to use TF32
            for batch in examples(self.stream, most):
                self.start()
                for _, step in self.of(batch):
                    _let_grow(step)
                    self._function(step)(*step.tensors)

    def _function(self, step: Step) -> Callable[..., None]:
        """Return the compiled function of a step. Steps with the same source code share a function."""
        if step.compiled is None:
            arguments = ", ".join(f"t{i}" for i in range(len(step.tensors)))
            source = "\n    ".join([f"def step({arguments}):", "now = None", *step.lines]) + "\n"
            if source not in self._made:
                self._made[source] = compiled(source, "step", {**self._names, "Sequences": Sequences}, self._backend)
                _let_grow(step)
            step.compiled = self._made[source]
        return step.compiled

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Make one call per part of the batch."""
        device = self._device
        for part, step in self.of(batch):
            function = self._function(step)
            start_ns = device.enter(SEVERAL, part.size)
            if step.gather is not None:
                step.gather()
            function(*step.tensors)
            gathers = int(step.gather is not None)
            device.leave(part, slice(0, len(part.words)), STRATEGY, flush_ns, start_ns, gathers)


def _let_grow(step: Step) -> None:
    for tensor, dim in zip(step.tensors, step.dims, strict=True):
        grows(tensor, dim)


class CompiledBatches:
    """Batches of independent GEMMs: one call per evenly spaced run, or one call that looks up the slots."""

    def __init__(self, arenas: TorchArenas, device: Device, limits: Mapping[ShapeKey, int], backend: str) -> None:
        self._device, strides = device, arenas.work.strides()
        self._moves = [strides[shape] for shape in limits]
        self._stacks = [stacks(arenas, shape) for shape in limits]
        self._indices = Indices(arenas, max(limits.values()))
        names = {"torch": torch}
        self._strided = [compiled(STRIDED, "strided", names, backend) for _ in limits]
        self._scattered = [compiled(SCATTERED, "scattered", names, backend) for _ in limits]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for index, limit in enumerate(limits.values()):
                for count in sorted({limit, 1}, reverse=True):
                    self._compile(index, count)

    def _compile(self, index: int, count: int) -> None:
        """Compile both functions of a shape: for one command if `count` is 1, otherwise for any larger number."""
        dim = 0 if count > 1 else None
        longest = min(self._most_even(index), count)
        if count == 1 or longest > 1:
            slices = (spaced(each, 0, move, longest) for each, move in zip(*self._of(index), strict=True))
            self._strided[index](*(grows(each, dim) for each in slices))
        at = self._indices.device[:, :count]
        at.copy_(torch.arange(count, device=at.device) % min(len(each) for each in self._stacks[index]))
        self._scattered[index](*self._stacks[index], *(grows(each, dim) for each in at))

    def _of(self, index: int) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
        return self._stacks[index], self._moves[index]

    def _most_even(self, index: int) -> int:
        """Return the number of commands in the longest evenly spaced run that fits into the arenas."""
        return min(1 + (len(each) - 1) // move for each, move in zip(*self._of(index), strict=True) if move)

    def start(self) -> None:
        """Do nothing: a run changes no state."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one call per evenly spaced run, or one call for the batch."""
        device, index = self._device, batch.shape_index
        found = runs(batch, self._moves[index], MOST_RUNS)
        if not found:
            self._look_up(batch, flush_ns)
            return
        records = as_records(batch.words)
        for run in found:
            count = run.stop - run.start
            start_ns = device.enter(index, count)
            operands = (
                spaced(each, int(records[f"slot_{role}"][run.start]), move, count)
                for role, each, move in zip("abc", *self._of(index), strict=True)
            )
            self._strided[index](*operands)
            device.leave(batch, run, STRATEGY, flush_ns, start_ns)

    def _look_up(self, batch: Batch, flush_ns: int) -> None:
        device, index, count = self._device, batch.shape_index, len(batch)
        start_ns = device.enter(index, count)
        self._indices.upload(batch, count)
        self._scattered[index](*self._stacks[index], *self._indices.device[:, :count])
        copied = INDEX_BYTES_A_COMMAND * count
        device.leave(batch, slice(0, count), STRATEGY, flush_ns, start_ns, 1, copied)

    def close(self) -> None:
        """Release the index tensors."""
        self._indices.close()
