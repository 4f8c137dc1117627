"""Launch independent GEMMs one by one by torch.mm, which writes directly to the output.

Views of slots are made before the clock starts, since indexing a tensor is an operator too.
"""

from __future__ import annotations

import numpy as np
import torch

from launchopt.batching.batch import Batch, FlushReason
from launchopt.command import WORDS, ShapeKey, as_records
from launchopt.devices.base import Device
from launchopt.devices.pytorch.views import Tensor, TorchArenas
from launchopt.recording.launch_rows import Strategy
from launchopt.types import ShapeIndices, Words

MOST_LISTED = 16_384  # most slots whose views are made in advance; a view takes about a kilobyte
STRATEGY = Strategy.torch


def stacks(arenas: TorchArenas, shape: ShapeKey) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of all slots of a GEMM's weights [slots, m, k], inputs [slots, n, k] and outputs [slots, n, m]."""
    a, b, c = arenas.work.operands(shape)
    inputs, outputs = arenas.slots(b, shape.n, shape.k), arenas.slots(c, shape.n, shape.m)
    return arenas.slots(a, shape.m, shape.k), inputs, outputs


def _listed(stack: Tensor) -> Tensor:
    return stack.unbind(0) if len(stack) <= MOST_LISTED else stack


def _views(arenas: TorchArenas, shape: ShapeKey) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights (transposed), inputs and outputs of a GEMM, each a tensor or list that is indexed by slot."""
    weights, inputs, outputs = stacks(arenas, shape)
    return _listed(weights.transpose(1, 2)), _listed(inputs), _listed(outputs)


class Commands:
    """Launches of single GEMMs of the workload stream that a device has open."""

    def __init__(self, arenas: TorchArenas, device: Device) -> None:
        self._device = device
        self._views = [_views(arenas, shape) for shape in arenas.work.shapes]
        for weights, inputs, outputs in self._views:
            torch.mm(inputs[0], weights[0], out=outputs[0])
        self._one = Batch(0, np.zeros((0, WORDS), np.uint64), FlushReason.full)

    def start(self) -> None:
        """Do nothing: a run changes no state."""

    def submit_each(self, words: Words, shape_of: ShapeIndices, flush_ns: int) -> None:
        """Call one operator per command."""
        records = as_records(words)
        slots = zip(*(records[f"slot_{role}"].tolist() for role in "abc"), strict=True)
        enter, leave, views, multiply, one = self._device.enter, self._device.leave, self._views, torch.mm, self._one
        one.words = words
        for i, (index, (a, b, c)) in enumerate(zip(shape_of.tolist(), slots, strict=True)):
            weights, inputs, outputs = views[index]
            one.shape_index = index
            start_ns = enter(index, 1)
            multiply(inputs[b], weights[a], out=outputs[c])
            leave(one, slice(i, i + 1), STRATEGY, flush_ns, start_ns)
