"""Launch whole steps by PyTorch: cut a batch into parts, and find or make the `Step` of each part.

The requests of a part have consecutive numbers and lanes, and use one copy of the weights. Each prompt is a part of its
own. Parts and steps are cached by the slots that determine their addresses, so that a run need not make views again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from launchopt.batching.batch import Batch, FlushReason, StepBatch
from launchopt.command import COMMAND_DTYPE, WORDS, Records, RecordWord, as_records, as_words
from launchopt.devices.base import Device
from launchopt.devices.pytorch.calls import Step
from launchopt.devices.pytorch.ops import Heads, plain
from launchopt.devices.pytorch.step import Kind, Maker, Site, joined, wires_of
from launchopt.devices.pytorch.views import Tensor, TorchArenas, as_tensor
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import ChainStream, chain_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.placement import Origin

KEPT = 1024  # most entries in the cache of steps, and in the cache of parts of batches
STRATEGY = Strategy.torch
KEY_WORDS = slice(int(RecordWord.MN), int(RecordWord.STEP_TOKEN))  # words of a record that select its part of a step
Kept = TypeVar("Kept")


class Steps:
    """Steps of the workload stream that a device has open. unwritten, is_apart: see `step.Site`."""

    def __init__(self, arenas: TorchArenas, device: Device, unwritten: frozenset[str], is_apart: bool = False) -> None:
        self._arenas, self._device, self.stream = arenas, device, chain_of(arenas.work)
        stream, self._kinds = self.stream, dict[tuple[int, int], Kind]()
        rows = [stream.rows_of(kind) for kind in range(len(stream.kinds))]
        # In kinds with equal keys, each row reads the output of the same row. Only this about a kind matters here.
        self._kind_of = {(len(own), int(stream.template["n"][own.start])): kind for kind, own in enumerate(rows)}
        first = slice(0, len(rows[0]))
        self._first_input = int(np.argmax(stream.b_from[first] == Origin.INPUT))
        self._first_weight = int(np.argmax(stream.replica_moves[first] != 0))
        self._key_rows = 1 + max(self._first_input, self._first_weight)  # leading rows that determine all addresses
        self._cuts: OrderedDict[Hashable, list[tuple[slice, Step]]] = OrderedDict()
        self._steps: OrderedDict[Hashable, Step] = OrderedDict()
        self._gather_memory: Tensor = None
        self.site = self._site(unwritten, is_apart)

    def _site(self, unwritten: frozenset[str], is_apart: bool) -> Site:
        arenas, stream, state = self._arenas, self.stream, self._arenas.state
        heads = positions = pages = None
        if stream.attention is not None:
            assert state is not None
            heads = Heads(stream.attention, stream.norm_epsilon, arenas.dtype, arenas.device)
            positions, pages = as_tensor(state.positions), as_tensor(state.table).long()
        functions = plain(stream.norm_epsilon) | (heads.functions if heads else {})
        longest = max(stream.requests, max(kind.n for kind in stream.kinds))
        counting = torch.arange(longest, device=arenas.device)
        gather = self.gather_memory
        return Site(arenas, stream, functions, heads, positions, pages, counting, gather, unwritten, is_apart)

    def of(self, batch: StepBatch) -> list[tuple[StepBatch, Step]]:
        """Return the parts of a batch, each with its step."""
        words, size = batch.words, batch.size
        key = batch.rows, words[: self._key_rows * size, KEY_WORDS].tobytes()
        cuts = self._cuts.get(key)
        if cuts is None:
            cuts = _kept(self._cuts, key, self._cut(batch))
        if len(cuts) == 1:
            return [(batch, cuts[0][1])]
        whole = words.reshape(batch.rows, size, WORDS)
        return [
            (StepBatch(whole[:, own].reshape(-1, WORDS), batch.reason, step.size, batch.rows), step)
            for own, step in cuts
        ]

    def _cut(self, batch: StepBatch) -> list[tuple[slice, Step]]:
        records = as_records(batch.words).reshape(batch.rows, batch.size)
        lanes, requests = records["slot_c"][0].astype(np.int64), records["request"][0].astype(np.int64)
        weights = records["slot_a"][self._first_weight].astype(np.int64)
        follows = (np.diff(requests) == 1) & (np.diff(lanes) == self.stream.lane_units) & (np.diff(weights) == 0)
        cuts = np.flatnonzero(~follows | (records["n"][0, 0] > 1)) + 1
        bounds = [0, *cuts.tolist(), batch.size]
        return [(slice(first, stop), self._step(records[:, first:stop])) for first, stop in pairwise(bounds)]

    def _step(self, records: Records) -> Step:
        columns, inputs = int(records["n"][0, 0]), records["slot_b"][self._first_input]
        where = (
            int(records["request"][0, 0]),
            int(records["slot_c"][0, 0]),
            int(records["slot_a"][self._first_weight, 0]),
        )
        key = (records.shape, columns, *where, inputs.tobytes())
        found = self._steps.get(key)
        if found is None:
            kind = self._kind(len(records), columns)
            found = _kept(self._steps, key, self.made(kind, records))
        return found

    def made(self, kind: Kind, records: Records) -> Step:
        """Return a new step."""
        return Maker(self.site, kind, records, self._first_input).step

    def _kind(self, rows: int, columns: int) -> Kind:
        key = rows, columns
        if key not in self._kinds:
            stream = self.stream
            placed = stream.rows(self._kind_of[key])
            index = {shape: index for index, shape in enumerate(stream.shapes)}
            shapes = [index[stream.shape_of(row)] for row in placed]
            rows_of_calls, behind = joined(placed, stream.program.merged)
            self._kinds[key] = Kind(rows_of_calls, shapes, *wires_of(placed), behind)
        return self._kinds[key]

    def gather_memory(self, requests: int) -> Tensor:
        """Return memory for gathered inputs, [requests, hidden].

        Its rows are a lane apart, so that it has the strides for which functions are compiled.
        """
        pitch = self.stream.lane_units * self.stream.activations.cols
        if self._gather_memory is None or len(self._gather_memory) < requests * pitch:
            self._gather_memory = torch.zeros(requests * pitch, dtype=self._arenas.dtype, device=self._arenas.device)
        return self._gather_memory.as_strided((requests, self.stream.hidden), (pitch, 1))

    def start(self, is_warm_up: bool = False) -> None:
        """Begin a run: zero the KV caches, and reset positions.

        Attention multiplies unwritten values by 0, which must not give NaN.
        """
        if self.stream.attention is not None:
            self._arenas.zero(self.stream.cache)
            state = self._arenas.state
            assert state is not None
            self.site.positions.copy_(as_tensor(state.starts))
        self._arenas.synchronize()

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Make one launch for each row of each part."""
        for part, step in self.of(batch):
            launch(self._device, part, step, flush_ns)


def _kept(cache: OrderedDict[Hashable, Kept], key: Hashable, made: Kept) -> Kept:
    """Store `made` under `key`, drop the oldest entry if there are more than KEPT, and return `made`."""
    cache[key] = made
    if len(cache) > KEPT:
        cache.popitem(last=False)
    return made


def launch(device: Device, part: StepBatch, step: Step, flush_ns: int) -> None:
    """Launch a step operator by operator, and record one launch per call."""
    step.was_run = True
    row, size = Batch(0, part.words, part.reason), part.size
    enter, leave, now, gather, outputs = device.enter, device.leave, None, step.gather, step.no_outputs()
    for call in step.calls:
        row.shape_index = call.shape
        start_ns = enter(call.shape, size * call.rows)
        if gather is not None:
            gather()
            gather = None
        now = call.run(outputs, now)
        own = slice(call.first * size, (call.last + 1) * size)
        leave(row, own, STRATEGY, flush_ns, start_ns, call.more)


def example(stream: ChainStream, kind: int, requests: range, replica: int) -> StepBatch:
    """Return a step of some requests as the driver issues it, with weight copy `replica`.

    The input of a decode step is in the request's lane.
    """
    rows, table = stream.rows_of(kind), stream.table[requests.start : requests.stop]
    own = slice(rows.start, rows.stop)
    origins = np.zeros((len(Origin), len(requests)), np.int64)
    origins[Origin.LANE], origins[Origin.PREFILL] = table[:, ChainColumn.LANE], table[:, ChainColumn.PREFILL]
    origins[Origin.INPUT] = table[:, ChainColumn.PROMPT if stream.kinds[kind].is_prompt else ChainColumn.LANE]
    records = np.repeat(stream.template[own, None], len(requests), axis=1).astype(COMMAND_DTYPE)
    records["request"] = np.array(requests)
    for role, sources in (("a", stream.a_from), ("b", stream.b_from), ("c", stream.c_from)):
        records[f"slot_{role}"] += origins[sources[own]].astype(np.uint32)
    records["slot_a"] += (replica * stream.replica_moves[own]).astype(np.uint32)[:, None]
    return StepBatch(as_words(records.reshape(-1)), FlushReason.full, len(requests), len(rows))


def examples(stream: ChainStream, most: int) -> Iterator[StepBatch]:
    """Yield likely steps of a run: decode steps of `most` requests and of one request, and the longest prompts."""
    if stream.decode_kind >= 0:
        for requests in sorted({min(most, stream.requests), 1}, reverse=True):
            for replica in range(stream.replicas):
                yield example(stream, stream.decode_kind, range(requests), replica)
    prompts = ((kind, about) for kind, about in enumerate(stream.kinds) if about.is_prompt)
    longest = {(about.ends_token, about.n == 1): kind for kind, about in sorted(prompts, key=lambda each: each[1].n)}
    for kind in longest.values():
        is_end = stream.kinds[kind].ends_token
        has = stream.table[:, ChainColumn.REST_KIND] == kind if is_end else stream.table[:, ChainColumn.FULL_CHUNKS] > 0
        request = int(np.argmax(has))
        yield example(stream, kind, range(request, request + 1), 0)
