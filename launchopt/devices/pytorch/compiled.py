"""Run steps and batches by torch.compile.

A step is compiled as a whole, from generated source code that calls its ops one after another, and then captured in a
CUDA graph. Each of its tensors has its own storage object, although their rows alternate in memory. Otherwise, the
compiler would treat a write to one view as a write to all of them. Functions are compiled before the clock starts. That
for the most requests of a batch is tuned thoroughly, that for one request less so. A function for any number between,
which takes minutes to tune, is not tuned; nor is that for prompts. Runs of independent commands are compiled
for one command, and for any larger number.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
import torch._dynamo
import torch._inductor

from launchopt.batching.batch import SEVERAL, StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.pytorch.batches import Batches, Multiply
from launchopt.devices.pytorch.calls import Step
from launchopt.devices.pytorch.graphs import GraphSteps
from launchopt.devices.pytorch.ops import Sequences
from launchopt.devices.pytorch.steps import STRATEGY, example
from launchopt.devices.pytorch.views import Tensor, TorchArenas

MOST_FUNCTIONS = 4096  # most compiled variants that torch.compile may make
INDUCTOR = "inductor"
# Coordinate descent also makes a product with a single row a reduction, which is fused with neighbouring ops.
TUNED: dict[str, str | int | bool] = {"coordinate_descent_tuning": True}
# One direction at a time, tuning ends at other kernels in each compilation, some of them slow. max_autotune beside all
# directions compiles for much longer.
THOROUGHLY_TUNED = TUNED | {"coordinate_descent_check_all_directions": True}


def strided(a: Tensor, b: Tensor, c: Tensor) -> None:
    """Multiply a run of independent commands."""
    c.copy_(torch.bmm(b, a.transpose(1, 2)))


def compiled(
    function: Callable[..., None], backend: str, options: Mapping[str, str | int | bool] | None = None
) -> Callable[..., None]:
    """Return a function, compiled as a whole. options: of Inductor; those that this PyTorch lacks are left out."""
    # Each kind of step has its own function, so the number of functions is large.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MOST_FUNCTIONS
    known = set(torch._inductor.list_options()) if options and backend == INDUCTOR else set[str]()
    kept = {name: value for name, value in (options or {}).items() if name in known}
    made: Callable[..., None] = torch.compile(
        function, fullgraph=True, dynamic=False, backend=backend, options=kept or None
    )
    return made


def made_of(source: str, name: str, names: Mapping[str, object]) -> Callable[..., None]:
    """Return the function `name` of some source code. It has its own code object, and so its own compiled variants."""
    made = dict(names)
    exec(compile(source, f"<{name}>", "exec"), made)
    function: Callable[..., None] = made[name]  # type: ignore[assignment]
    return function


def let_grow(tensors: Sequence[Tensor], dims: Sequence[int | None]) -> None:
    """Tell the compiler that a dimension of each tensor may have any size from 2 on. None: no dimension."""
    for tensor, dim in zip(tensors, dims, strict=True):
        if dim is not None:
            torch._dynamo.mark_dynamic(tensor, dim)


class CompiledSteps(GraphSteps):
    """Compiled and captured steps of the workload stream that a device has open."""

    def __init__(
        self, arenas: TorchArenas, device: Device, most: int, bound: int, unwritten: frozenset[str], backend: str
    ) -> None:
        self._backend, self._made = backend, dict[tuple[str, int], Callable[..., None]]()
        self._sizes: set[int] = set()  # numbers of requests with a function of their own
        self._most = most
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.compile advises to use TF32
            super().__init__(arenas, device, most, bound, unwritten, is_apart=True)

    def prepare_likely(self, most: int) -> None:
        """Compile the likely steps, and a function for decode steps of any number of requests."""
        stream, start_ns = self.stream, time.monotonic_ns()
        most = min(most, stream.requests)
        self._sizes, self._most = {1, most}, most
        super().prepare_likely(most)
        if stream.decode_kind >= 0 and most > 2:
            self.start()
            for _, step in self.of(example(stream, stream.decode_kind, range((most + 1) // 2), 0)):
                self.run(step)
        self._arenas.synchronize()
        self.counters.spend("compile", time.monotonic_ns() - start_ns)

    def run(self, step: Step) -> None:
        """Call the function of a step."""
        step.was_run = True
        if step.gather is not None:
            step.gather()
        self._function(step)(*step.tensors)

    def _function(self, step: Step) -> Callable[..., None]:
        """Return the compiled function of a step. Steps with the same source code share a function."""
        if step.compiled is None:
            arguments = ", ".join(f"t{i}" for i in range(len(step.tensors)))
            source = "\n    ".join([f"def step({arguments}):", "now = None", *step.lines]) + "\n"
            is_fixed = step.columns == 1 and step.size in self._sizes
            key = source, step.size if is_fixed else 0
            if key not in self._made:
                ops = {op.name.lower(): function for op, function in self.site.functions.items()}
                function = made_of(source, "step", {**ops, "Sequences": Sequences})
                tuned = THOROUGHLY_TUNED if step.size == self._most else TUNED
                self._made[key] = compiled(function, self._backend, tuned if is_fixed else None)
            if not is_fixed:
                let_grow(step.tensors, step.dims)
            for cache in step.caches:
                torch._dynamo.mark_static_address(cache, guard=False)
            step.compiled = self._made[key]
        return step.compiled

    def launch(self, part: StepBatch, step: Step, flush_ns: int) -> None:
        """Call the function of a step that has no graph."""
        device = self._device
        start_ns = device.enter(SEVERAL, part.size)
        self.run(step)
        gathers = int(step.gather is not None)
        device.leave(part, slice(0, len(part.words)), STRATEGY, flush_ns, start_ns, gathers)


class CompiledBatches(Batches):
    """Batches of independent GEMMs: one call of a compiled function for each evenly spaced run."""

    def __init__(self, arenas: TorchArenas, device: Device, limits: Mapping[ShapeKey, int], backend: str) -> None:
        self._backend = backend
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(arenas, device, limits)

    def function(self, shape: ShapeKey) -> Multiply:
        """Return a compiled function for a shape."""
        source = "def run(a, b, c):\n    strided(a, b, c)\n"
        return compiled(made_of(source, "run", {"strided": strided}), self._backend, TUNED)

    def first_call(self, function: Multiply, operands: list[Tensor]) -> None:
        """Compile a function for one command, or for any larger number."""
        if len(operands[0]) > 1:
            let_grow(operands, [0, 0, 0])
        function(*operands)
