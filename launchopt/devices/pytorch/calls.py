"""One step of requests, as a list of calls of PyTorch ops.

A call is an op and its A, B and C. It reads tensors over the operands, or the output of an earlier call that is not
stored. For torch.compile, a step also has source code of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from launchopt.devices.pytorch.ops import Function, Now, Sequences
from launchopt.devices.pytorch.views import Tensor


class Reading(NamedTuple):
    """The output of an earlier row that is not stored. cut: the part that is read; None: all of it."""

    row: int
    cut: tuple[slice, slice] | None

    def of(self, outputs: Sequence[Tensor | None]) -> Tensor:
        """Return the tensor, from the outputs of all rows so far."""
        tensor = outputs[self.row]
        assert tensor is not None
        return tensor if self.cut is None else tensor[self.cut]


class Call(NamedTuple):
    """The call for the rows first..last. c: None: the output is not stored."""

    function: Function
    a: Tensor | Sequences | Reading | None
    b: Tensor | Reading | None
    c: Tensor | None
    first: int
    last: int
    shape: int  # index of the shape of its commands, or SEVERAL
    more: int  # number of operators that submit work, less one

    @property
    def rows(self) -> int:
        """Number of rows that the call computes."""
        return self.last + 1 - self.first

    def run(self, outputs: list[Tensor | None], now: Any) -> Any:
        """Make the call, and store its output in `outputs` if it is stored nowhere else. Return `Now`."""
        a, b = self.a, self.b
        if type(a) is Reading:
            a = a.of(outputs)
        if type(b) is Reading:
            b = b.of(outputs)
        made = self.function(a, b, self.c, now)
        if self.c is None:
            outputs[self.last] = made
        return made if type(made) is Now else now


class Shared(NamedTuple):
    """A step in memory of its own, whose graph serves others, and the tensors of one of these others."""

    step: Step
    given: tuple[Tensor, Tensor]  # input there, and here
    taken: tuple[list[Tensor], list[Tensor]]  # outputs here, and there
    copied_bytes: int

    @property
    def copies(self) -> int:
        """Number of operators that copy. PyTorch copies tensors without gaps by one for all of them."""
        return 1 + (1 if all(each.is_contiguous() for each in self.taken[0]) else len(self.taken[0]))

    def fetch(self) -> None:
        """Copy the input there."""
        there, here = self.given
        there.copy_(here)

    def store(self) -> None:
        """Copy all outputs here."""
        torch._foreach_copy_(*self.taken)


def shared(step: Step, own: Step) -> Shared:
    """Return how `step`, which has memory of its own, serves `own`, which has the same calls."""
    pairs = [each for each in zip(step.tensors, own.tensors, strict=True) if each[0].data_ptr() != each[1].data_ptr()]
    (given, *taken), copied = pairs, sum(there.nbytes for there, _ in pairs)
    return Shared(step, given, ([here for _, here in taken], [there for there, _ in taken]), copied)


@dataclass(slots=True, eq=False)
class Step:
    """The calls of a step of `size` requests.

    shared: the step whose graph it replays; None: it has a graph of its own, or none. tensors: all tensors of the
    calls. lines: source code of the calls, in which tensor i is ti, and the output of row i is vi. dims: the dimension
    of each tensor that depends on the number of rows; None: no dimension does. compiled: the function that
    torch.compile made of the source code; None: not compiled yet.
    """

    size: int
    columns: int = 1  # columns of each request
    was_run: bool = False
    shared: Shared | None = None
    calls: list[Call] = field(default_factory=list)
    gather: Callable[[], object] | None = None  # copies scattered inputs to adjacent lanes
    tensors: list[Tensor] = field(default_factory=list)
    dims: list[int | None] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    caches: list[Tensor] = field(default_factory=list)  # the KV caches among the tensors
    compiled: Callable[..., None] | None = None

    def run(self) -> None:
        """Make all calls."""
        self.was_run = True
        if self.gather is not None:
            self.gather()
        now, outputs = None, self.no_outputs()
        for call in self.calls:
            now = call.run(outputs, now)

    def no_outputs(self) -> list[Tensor | None]:
        """Return an empty list of outputs for the calls."""
        return [None] * (self.calls[-1].last + 1)
