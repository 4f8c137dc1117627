"""The steps of a stream's requests: their kinds, start positions and origins, and the records that a driver issues."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from launchopt.command import NO_TOKEN, Records
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import Origin


def steps_of(stream: ChainStream, request: int) -> list[StepKind]:
    """Return the kinds of a request's steps, in order."""
    left, kinds = int(stream.asked.context_tokens[request] - stream.table[request, ChainColumn.CACHED]), []
    while left:
        columns = min(left, stream.chunk_tokens or left)
        left -= columns
        kinds.append(StepKind(columns, True, left == 0))
    tokens = sum(kind.ends_token for kind in kinds)
    return kinds + [StepKind(1, False, True)] * (int(stream.outputs[request]) - tokens)


def rows_of(stream: ChainStream, kind: StepKind) -> slice:
    """Return the rows of the template that belong to a kind of step."""
    at = stream.kinds.index(kind)
    return slice(0 if at == 0 else int(stream.kind_stops[at - 1]), int(stream.kind_stops[at]))


def origins_of(stream: ChainStream, request: int, step: int) -> NDArray[np.uint32]:
    """Return for each Origin the slot that is added to slots of a step: uint32 [len(Origin)]."""
    row, kind = stream.table[request], steps_of(stream, request)[step]
    given = int(row[ChainColumn.PROMPT]) + step * (stream.chunk_tokens or 0) * stream.units(stream.hidden)
    lane = int(row[ChainColumn.LANE])
    origins = np.zeros(len(Origin), np.uint32)
    origins[[Origin.LANE, Origin.PREFILL]] = lane, row[ChainColumn.PREFILL]
    origins[Origin.INPUT] = given if kind.is_prompt or step == 0 else lane
    return origins


def records_of(stream: ChainStream, request: int, step: int) -> Records:
    """Return the records that the driver issues for a step, without sequence numbers and times of arrival."""
    kinds = steps_of(stream, request)
    rows, origins = rows_of(stream, kinds[step]), origins_of(stream, request, step)
    token = sum(before.ends_token for before in kinds[:step])
    records = stream.template[rows].copy()
    records["slot_a"] += ((token % stream.replicas) * stream.replica_moves[rows]).astype(np.uint32)
    for role, origin in (("a", stream.a_from), ("b", stream.b_from), ("c", stream.c_from)):
        records[f"slot_{role}"] += origins[origin[rows]]
    records["request"], records["token"] = request, token if kinds[step].ends_token else NO_TOKEN
    return records


def positions_of(stream: ChainStream) -> dict[StepKind, list[int]]:
    """Return the start positions of the steps of each kind."""
    found = defaultdict(list)
    for request in range(stream.requests):
        at = 0
        for kind in steps_of(stream, request):
            found[kind].append(at)
            at += kind.n
    return found
