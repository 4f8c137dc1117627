"""Make one step of evenly spaced requests, as calls of PyTorch ops on views of the operands.

`Maker` turns the records of a step, [rows, requests], and the rows of the template into a `Step`. A `Step` has one call
per row, for all requests together. QK, SOFTMAX and AV are one call, and so are GEMMs whose weights are stored side by
side. A call reads the output of the earlier row that the program names; RunError if the records name another slot. An
output that is not stored is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from launchopt.batching.batch import SEVERAL
from launchopt.command import INDEX_BYTES, Op, Records
from launchopt.devices.pytorch.calls import Call, Reading, Step
from launchopt.devices.pytorch.ops import ATTENTION, CALLS, Function, Heads, Sequences
from launchopt.devices.pytorch.views import Tensor, TorchArenas, apart
from launchopt.errors import RunError
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.placement import Origin, Place, Row
from launchopt.streams.chains.program import HEAD
from launchopt.streams.chains.weights import VECTOR_ROLES
from launchopt.streams.operands import Operand

INPUT, NOTHING = -1, -2  # values of `Wire.row`: the step's input, no tensor
PART = -1  # value of `Kind.behind`


class Wire(NamedTuple):
    """The source of an operand."""

    row: int  # row whose C the operand is; INPUT or NOTHING
    is_last: bool = False  # the operand is only the last column of that C


class Kind(NamedTuple):
    """A kind of step: its rows, the index of the shape of each, and the sources of their A and B.

    behind: for each row, the number of rows behind it that its call also computes; PART for those rows.
    """

    rows: list[Row]
    shapes: list[int]
    a: list[Wire]
    b: list[Wire]
    behind: list[int]


def wires_of(rows: Sequence[Row]) -> tuple[list[Wire], list[Wire]]:
    """Return the sources of A and of B of each row. Only the A of an ADD is the output of another row."""
    found: dict[Place, int] = {}
    a, b = list[Wire](), list[Wire]()
    for i, row in enumerate(rows):
        for wires, place, reads in ((a, row.a, row.op is Op.ADD), (b, row.b, row.op is not Op.SLOT_MAP)):
            if not reads:
                wires.append(Wire(NOTHING))
            elif place.origin == Origin.INPUT:
                wires.append(Wire(INPUT))
            elif row.name == HEAD:
                wires.append(Wire(i - 1, is_last=rows[i - 1].n > 1))
            else:
                wires.append(Wire(found[place]))
        if row.op is not Op.KV_WRITE:
            found[row.c] = i
    return a, b


def joined(rows: Sequence[Row], merged: Sequence[Sequence[str]]) -> tuple[list[Row], list[int]]:
    """Return the rows, and `Kind.behind`, with merged GEMMs as one, in the row of the first of them.

    merged: as in `Program`.
    """
    made, behind, sizes = list(rows), [0] * len(rows), {names[0]: len(names) for names in merged}
    for i, row in enumerate(rows):
        if row.name in sizes:
            stop = i + sizes[row.name]
            made[i] = replace(row, m=sum(each.m for each in rows[i:stop]))
            behind[i:stop] = [stop - 1 - i, *[PART] * (stop - 1 - i)]
    return made, behind


@dataclass(frozen=True, slots=True)
class Site:
    """Data that all steps of a workload stream share.

    unwritten: names of nodes whose outputs are not stored. is_apart: each tensor of a step has its own storage object,
    and the step has source code. is_private: the input and outputs of a prompt are in memory of its own.
    """

    arenas: TorchArenas
    stream: ChainStream
    functions: dict[Op, Function]
    heads: Heads | None
    positions: Tensor  # int32 [2, requests]; None without attention
    pages: Tensor  # int64 [requests, pages per request]; None without attention
    counting: Tensor  # int64: 0, 1, 2, ...
    gather_memory: Callable[[int], Tensor]  # returns memory for the gathered inputs of a number of requests
    unwritten: frozenset[str]
    is_apart: bool
    is_private: bool = False

    @property
    def lane(self) -> int:
        """Number of elements from one request's lane to the next."""
        return self.stream.lane_units * self.stream.activations.cols


class Maker:
    """Makes `step` from the records, [rows, requests], of a step of one kind.

    first_input: the first row that reads the step's input.
    """

    def __init__(self, site: Site, kind: Kind, records: Records, first_input: int) -> None:
        self._site, self._kind, self._records = site, kind, records
        self._columns, self.step = kind.rows[0].n, Step(records.shape[1], kind.rows[0].n)
        self._shared: dict[Hashable, Tensor] = {}
        self._names: dict[int, str] = {}
        self._input = self._inputs(first_input)
        self._input_slot = int(records["slot_b"][first_input, 0])
        self._outputs: list[Tensor | None] = []
        for i, row in enumerate(kind.rows):
            is_stored = kind.behind[i] != PART and row.name not in site.unwritten
            self._outputs.append(self._output(i, row) if is_stored else None)
            if kind.behind[i] == PART:
                self._read(i, "b", row.k)  # refuses a record that reads elsewhere than the first of the merged GEMMs
            else:
                self._call(i, row)
        if self.step.gather is not None:
            first = self.step.calls[0]
            self.step.calls[0] = first._replace(more=first.more + 1)

    def _own(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """Add a tensor to the step, with a name in the source code. dim: dimension that depends on the row count."""
        step = self.step
        if self._site.is_apart:
            tensor = apart(tensor)
            self._names[id(tensor)] = f"t{len(step.tensors)}"
        step.tensors.append(tensor)
        step.dims.append(dim if dim is not None and tensor.shape[dim] > 1 else None)
        return tensor

    def _rows(self, operand: Operand, slot: int, features: int, columns: int) -> Tensor:
        """Return a view [rows, features]: the columns of one request, or one column per request."""
        site, first = self._site, slot * (operand.slot_bytes // self._site.stream.dtype.itemsize)
        if columns > 1:
            sizes, strides = (columns, features), (operand.row_elements, 1)
            if site.is_private:
                return torch.empty_strided(sizes, strides, dtype=site.arenas.dtype, device=site.arenas.device)
            return site.arenas.strided(operand.arena, sizes, strides, first)
        return site.arenas.strided(operand.arena, (self.step.size, features), (site.lane, 1), first)

    def _inputs(self, at: int) -> Tensor:
        """Return the input of the step: rows of the embedding table or of lanes, gathered if not a lane apart."""
        site, step, row = self._site, self.step, self._kind.rows[at]
        slots, hidden = self._records["slot_b"][at].astype(np.int64), site.stream.hidden
        if self._columns > 1 or np.all(np.diff(slots) == site.stream.lane_units):
            return self._own(self._rows(row.operands[1], int(slots[0]), hidden, self._columns), 0)
        everything = site.arenas.slots(row.operands[1], 1, hidden)[:, 0]
        index, gather_memory = torch.from_numpy(slots).to(site.arenas.device), site.gather_memory(step.size)
        step.gather = partial(torch.index_select, everything, 0, index, out=gather_memory)
        return self._own(gather_memory, 0)

    def _output(self, i: int, row: Row) -> Tensor:
        """Return C of a row. Rows that write to the same slot share a tensor."""
        operand, slot, site = row.operands[2], int(self._records["slot_c"][i, 0]), self._site
        if row.op is Op.KV_WRITE:
            return self._pool(operand, slot)
        key = (slot, row.m, row.op is Op.SLOT_MAP)
        if key not in self._shared:
            if row.op is Op.SLOT_MAP:
                sizes = (1, row.n) if row.n > 1 else (self.step.size, 1)
                strides = (site.lane * site.stream.dtype.itemsize // INDEX_BYTES, 1)
                first = slot * (operand.slot_bytes // INDEX_BYTES)
                tensor = site.arenas.words(operand.arena, sizes, strides, first)
                self._shared[key] = self._own(tensor, 1 if row.n > 1 else 0)
            else:
                self._shared[key] = self._own(self._rows(operand, slot, row.m, row.n), 0)
        return self._shared[key]

    def _pool(self, operand: Operand, layer: int) -> Tensor:
        """Return the KV cache of a layer, [pages, 2, tokens per page, kv heads, head_dim].

        A paged cache has all pages; otherwise, it has the pages of the step's requests only.
        """
        site, attention = self._site, self._site.stream.attention
        assert attention is not None
        if ("pool", layer) not in self._shared:
            width, tokens = attention.kv_width, attention.page_tokens
            pages, first = attention.pages_total, layer * (operand.slot_bytes // site.stream.dtype.itemsize)
            if not attention.is_paged:
                pages = self.step.size
                first += int(self._records["request"][0, 0]) * 2 * tokens * width
            sizes = (pages, 2, tokens, attention.kv_heads, attention.head_dim)
            strides = (2 * tokens * width, tokens * width, width, attention.head_dim, 1)
            tensor = site.arenas.strided(operand.arena, sizes, strides, first)
            tensor = self._shared["pool", layer] = self._own(tensor, None if attention.is_paged else 0)
            self.step.caches.append(tensor)
        return self._shared["pool", layer]

    def _sequences(self) -> Sequences:
        """Return the state of the step's requests."""
        site, size, columns = self._site, self.step.size, self._columns
        request = int(self._records["request"][0, 0])
        own = slice(request, request + size)
        local = site.counting[:size] if columns == 1 else torch.zeros_like(site.counting[:columns])
        return Sequences(
            self._own(site.positions[0, own], 0),
            self._own(site.positions[1, own], 0),
            self._own(site.pages[own], 0),
            self._own(local, 0),
            self._own(site.counting[:columns], 0),
        )

    def _weight(self, i: int, row: Row) -> Tensor | Sequences | None:
        """Return A of a row whose A is not the output of another row: a weight, a vector, a cache or `Sequences`."""
        operand, slot = row.operands[0], int(self._records["slot_a"][i, 0])
        first = slot * (operand.slot_bytes // self._site.stream.dtype.itemsize)
        if row.op is Op.GEMM:
            sizes, strides = (row.k, row.m), (1, operand.row_elements)
            return self._own(self._site.arenas.strided(operand.arena, sizes, strides, first))
        if operand.arena.role in VECTOR_ROLES.values():
            return self._own(self._site.arenas.strided(operand.arena, (operand.arena.cols,), (1,), first))
        if row.op in (Op.QK, Op.AV):
            return self._pool(operand, slot)
        return self._sequences() if row.op is Op.SLOT_MAP else None

    def _read(self, i: int, role: str, width: int) -> tuple[Tensor | Reading | None, str]:
        """Return what a row reads, cut to its first `width` features, and its text in the source code.

        RunError: the records name another slot than the program does.
        """
        wire = (self._kind.a if role == "a" else self._kind.b)[i]
        if wire.row == NOTHING:
            return None, "None"
        expected, features = self._input_slot, self._site.stream.hidden
        if wire.row != INPUT:
            producer = self._kind.rows[wire.row]
            pitch_bytes = producer.operands[2].row_elements * producer.operands[2].arena.dtype.itemsize
            expected, features = int(self._records["slot_c"][wire.row, 0]), producer.m
            expected += (producer.n - 1) * pitch_bytes // producer.operands[2].slot_bytes if wire.is_last else 0
        if int(self._records[f"slot_{role}"][i, 0]) != expected:
            raise RunError(f"row {i} of a step reads {role.upper()} from another slot than its program names")
        columns = slice(width if features > width else None)
        cut = (slice(-1 if wire.is_last else None, None), columns)
        text = f"[{'-1' * wire.is_last}:, :{columns.stop or ''}]" if wire.is_last or columns.stop else ""
        if wire.row == INPUT:
            return self._input[cut], self._names.get(id(self._input), "") + text
        last = wire.row + self._kind.behind[wire.row]
        tensor, text = self._outputs[wire.row], f"v{last}{text}"
        return (Reading(last, cut if text[-1] == "]" else None) if tensor is None else tensor[cut]), text

    def _call(self, i: int, row: Row) -> None:
        """Add the call of row i to the step, and its line of source code. That of AV is for all rows of attention."""
        site, c, first, last = self._site, self._outputs[i], i, i + self._kind.behind[i]
        a, a_text = self._read(i, "a", row.m)
        b, b_text = self._read(i, "b", row.k)
        if row.op in ATTENTION[:-1]:
            return
        if row.op is Op.AV:
            first = i - 2
            b, b_text = self._read(first, "b", self._kind.rows[first].k)
        if a is None:
            a = self._weight(i, row)
            named = a if isinstance(a, Sequences) else (a,)
            a_text = ", ".join("None" if each is None else self._names.get(id(each), "") for each in named)
            a_text = f"Sequences({a_text})" if isinstance(a, Sequences) else a_text
        shape = SEVERAL if first < last else self._kind.shapes[i]
        copies = 0 if site.heads is None else site.heads.copies(row.op)
        more = CALLS[row.op] - 1 + copies
        self.step.calls.append(Call(site.functions[row.op], a, b, c, first, last, shape, more))
        stored = "None" if c is None else self._names.get(id(c), "")
        made = "now" if row.op is Op.SLOT_MAP else f"v{last}"
        self.step.lines.append(f"{made} = {row.op.name.lower()}({a_text}, {b_text}, {stored}, now)")
