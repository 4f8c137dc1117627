"""Templates: the records of every kind of step, without the fields that are known only when a step is issued.

In: the slots of a program's operands (`placement`), and the kinds of steps. Out: `Templates`: arrays over all commands
of all kinds, one kind after another, for compiled code; and the shape of each command, with its operands.

The slots of layer i are those of layer i - 2 plus a constant. So only the first layers are placed one by one. This
matters for a trace: each of its hundreds of prompt lengths is a kind of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, MOST_LAYOUTS, NO_TOKEN, Dtype, Flag, Records, ShapeKey
from launchopt.errors import ConfigError
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import Placement, Row
from launchopt.streams.operands import Operands

PLACED_LAYERS = 5  # the first one, whose input is that of the step, and two pairs of alternating layers
ORIGINS = ("a", "b", "c")


class Templates:
    """The commands of all kinds: arrays of shape [commands].

    records: the records. a_from, b_from, c_from: origins of their slots. moves: slots of A between two copies of the
    weights. stops [kinds]: the end of each kind. shapes: for each kind, its shapes with their counts.
    """

    def __init__(self, placement: Placement, kinds: Sequence[StepKind], layers: int, dtype: Dtype) -> None:
        self._placement, self._layers, self._dtype = placement, layers, dtype
        self.operands: dict[ShapeKey, Operands] = {}
        self._known: dict[tuple[int, int], Operands] = {}  # by the words of a record that hold the shape
        self.shapes: list[Counter[ShapeKey]] = []
        parts = [self._of_kind(kind) for kind in kinds]
        self.stops = np.cumsum([len(records) for records, _ in parts])
        self.records: Records = np.concatenate([records for records, _ in parts])
        others = np.concatenate([columns for _, columns in parts])
        self.a_from, self.b_from, self.c_from = np.ascontiguousarray(others[:, :3].T.astype(np.int8))
        self.moves: NDArray[np.int64] = np.ascontiguousarray(others[:, 3])

    def _of_kind(self, kind: StepKind) -> tuple[Records, NDArray[np.int64]]:
        """Return the records of a kind, and the three origins and the move of each: int64 [commands, 4]."""
        before, layers, after = self._placement.rows(kind, min(self._layers, PLACED_LAYERS))
        shapes = [self.shape_of(row) for row in (*before, *layers[0], *after)]
        of_layer = slice(len(before), len(before) + len(layers[0]))
        columns = [_columns(before), *self._continued([_columns(rows) for rows in layers]), _columns(after)]
        places = np.concatenate(columns)
        records = np.zeros(len(places), COMMAND_DTYPE)
        index = [*range(of_layer.start), *[*range(of_layer.start, of_layer.stop)] * self._layers]
        index += range(of_layer.stop, len(shapes))
        self.shapes.append(Counter(shapes[i] for i in index))
        for name, value in _keys(shapes).items():
            records[name] = value[index]
        for column, role in enumerate(ORIGINS):
            records[f"slot_{role}"] = places[:, column]
        records["step"] = np.arange(len(records))
        records["token"] = 0 if kind.ends_token else NO_TOKEN
        records["flags"][-1] = Flag.STEP_END
        return records, places[:, 3:]

    def _continued(self, layers: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Return the columns of all layers, extrapolated from the first ones."""
        layers = list(layers)
        for layer in range(len(layers), self._layers):
            layers.append(2 * layers[layer - 2] - layers[layer - 4])
        return layers

    def shape_of(self, row: Row) -> ShapeKey:
        """Return the shape of a row. Rows of one size whose operands are stored differently get different layouts."""
        shape = ShapeKey(row.m, row.n, row.k, self._dtype, row.op, packing=row.operands[0].arena.packing)
        for layout in range(MOST_LAYOUTS):
            key = replace(shape, layout=layout)
            if self._known.setdefault(key.packed, row.operands) == row.operands:
                self.operands[key] = row.operands
                return key
        raise ConfigError("program", str(shape), f"its operands lie in more than {MOST_LAYOUTS} ways")


def _columns(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Return the slots of A, B and C, their origins, and the move: int64 [rows, 7]."""
    places = [((row.a, row.b, row.c), row.move) for row in rows]
    found = [(*(p.slot for p in three), *(p.origin for p in three), move) for three, move in places]
    return np.array(found, np.int64).reshape(len(rows), 7)


def _keys(shapes: Sequence[ShapeKey]) -> dict[str, NDArray[np.int64]]:
    """Return the fields of a record that hold its shape, each as int64 [shapes]."""
    columns = {name: [getattr(shape, name) for shape in shapes] for name in ("m", "n", "k", "op")}
    columns["dtype"] = [shape.packed_dtype for shape in shapes]
    return {name: np.array(column, np.int64) for name, column in columns.items()}
