"""`ListStream`: the GEMMs of a user's list, in its order or shuffled, in groups that follow one another.

In: rows (`RowStream`), and the group of each. Out: a stream with a command per GEMM. Without groups all commands are
independent, and each is a request of its own. With groups the whole stream is one request: commands of a group are
independent of each other, and no command of a group is launched before the whole group before it. The last command of
a group carries `Flag.GROUP_END`, at which the batcher flushes all that it holds. The next pass through the list begins
with a new group.

No command reads the output of another, so outputs do not show whether groups kept their order. The batcher keeps it,
and modes that take single commands launch them in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Flag
from launchopt.streams.row_stream import At, Columns, Rows, RowStream, Weights
from launchopt.streams.stream import Block


@dataclass(frozen=True, slots=True)
class ListOrder:
    """The order of the commands of a list, and the times at which they are due."""

    groups: Columns | None = None  # [rows]: number of the group, from 0, in ascending order; None: no groups
    is_kept: bool = True  # False: the order of the groups is ignored
    shuffle: bool = False  # True: commands come in a fixed random order within their group
    seed: int = 0  # fixes the random order
    due_ns: Columns | None = None  # [commands]: since the start; None: a closed loop


IN_ORDER = ListOrder()


class ListStream(RowStream):
    """Commands of `rows`, `repeat` times over. weights, copies: as for `RowStream`."""

    def __init__(
        self,
        rows: Rows,
        dtype: Dtype,
        weights: Weights,
        repeat: int = 1,
        copies: int = 1,
        order: ListOrder = IN_ORDER,
    ) -> None:
        super().__init__(rows, dtype, weights, repeat, copies)
        self._given, self.independent = order, order.groups is None
        kept = order.groups if order.is_kept else None
        # commands of a pass up to the end of each group; empty without groups
        self._group_stops = (
            self._stops[np.flatnonzero(np.diff(kept, append=-1))] if kept is not None else self._stops[:0]
        )
        self.requests = 1 if self.has_groups else self.commands

    @property
    def groups(self) -> int:
        """Number of groups in one pass through the list; 0: commands are independent, or their order is ignored."""
        return len(self._group_stops)

    @property
    def has_groups(self) -> bool:
        """Whether the list has groups, and their order is kept."""
        return self.groups > 0

    @property
    def weights_in_turn(self) -> bool:
        """Whether commands of a shape take its weights in turn: none is named and used again, and none is shuffled."""
        return super().weights_in_turn and not self._given.shuffle

    @property
    def ordered_requests(self) -> int:
        """Number of requests whose commands must run in order; 0: any order is correct."""
        return 1 if self.has_groups else 0

    def ordering(self, violated: bool, mode_keeps_order: bool) -> str:
        """Return the order that holds: per_request, also where groups keep theirs, or none."""
        return "per_request" if self.has_groups else super().ordering(violated, mode_keeps_order)

    def _order(self) -> NDArray[np.uint32] | None:
        if not self._given.shuffle:
            return None
        drawn = np.random.default_rng([self._given.seed, 0x11575]).random(self.pass_commands)
        if not self.has_groups:
            return np.argsort(drawn, kind="stable").astype(np.uint32)
        group_of = np.searchsorted(self._group_stops, np.arange(self.pass_commands), side="right")
        return np.lexsort((drawn, group_of)).astype(np.uint32)

    def _block(self, at: At) -> Block:
        records, due_ns = super()._block(at).records, self._given.due_ns
        if self.has_groups:
            records["step"] = at.number
            ends = np.isin(at.number % self.pass_commands + 1, self._group_stops)
            records["flags"][ends] = Flag.GROUP_END
        else:
            records["request"] = at.number
        return Block(records, None if due_ns is None else due_ns[at.number])
