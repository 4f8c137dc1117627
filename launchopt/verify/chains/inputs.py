"""Reconstruct the inputs that each step of a run read, from the memory contents after the run.

The first token of a request reads the last row of its prompt. A later token reads the embedding row of the previous
token's id, or, without sampling, the previous token's output. The run kept these outputs in its history. They are
scaled and get signs as in feedback (`devices.feedback.host`). All activations are returned as float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.arenas import Arenas, from_float32, to_float32, to_host
from launchopt.devices.feedback.host import scaled, signed
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.placement import UNIT_BYTES
from launchopt.types import Array, Words

Numbers = NDArray[np.int64]


class Inputs:
    """Reads activations by their unit, and inputs of tokens.

    ids: id of each token, [tokens]; or the words of `Flights.done`, to which a run under way writes ids.

    A unit is the granularity of offsets into the arena of activations (`streams.chains.placement.UNIT_BYTES`).
    """

    def __init__(self, stream: ChainStream, arenas: Arenas, ids: Numbers | Words) -> None:
        self._stream, self._arenas, self._ids, self._xp = stream, arenas, ids, arenas.xp
        self._flat = arenas.arrays[stream.activations].reshape(-1)
        self._peers = arenas.peers
        self._unit = stream.activations.cols

    def rows(self, units: Numbers, width: int, copies: Array = None) -> Array:
        """Return `width` activations from each unit on, as float64 [len(units), width].

        copies: copies of activations, in which units are counted; None: the arena.
        """
        xp = self._xp
        first = xp.asarray(units) * self._unit
        flat = self._flat if copies is None else copies.reshape(-1)
        return self._wide(flat[first[:, None] + xp.arange(width)])

    def parts(self, units: Numbers, width: int, copies: Array = None) -> list[Array]:
        """Return what `rows` returns, of every GPU that splits the model, in their order. copies: as in `Audit`."""
        first = self._xp.asarray(units)[:, None] * self._unit + self._xp.arange(width)
        flats = [self._flat, *self._peers] if copies is None else [each.reshape(-1) for each in copies]
        flats.insert(self._arenas.rank, flats.pop(0))
        return [self._wide(flat[first]) for flat in flats]

    def words(self, units: Numbers, width: int, copies: Array = None) -> Array:
        """Return `width` int32 words from each unit on, as float64 [len(units), width]. copies: as in `rows`."""
        xp = self._xp
        flat = (self._flat if copies is None else copies.reshape(-1)).view(np.int32)
        first = xp.asarray(units) * (UNIT_BYTES // 4)
        return flat[first[:, None] + xp.arange(width)].astype(np.float64)

    def history(self, numbers: Numbers) -> Array:
        """Return the last outputs of these tokens, which the run kept, float64 [tokens, hidden]."""
        return self._wide(self._kept(numbers))

    def of_prompts(self, requests: Numbers, columns: Numbers) -> Array:
        """Return columns of prompts, float64 [columns, hidden].

        requests, columns: the request of each column, and its number within the prompt. Column 0 of a request without a
        prompt is its first input. A cached column has the input with which another request computed it.
        """
        stream = self._stream
        return self.rows(stream.prompt_units(requests, columns), stream.hidden)

    def of_tokens(self, numbers: Numbers, requests: Numbers, at: Numbers) -> Array:
        """Return the input of each token, float64 [tokens, hidden].

        numbers: the number of each token within the run. requests: its request. at: its number within the request.
        """
        stream, xp = self._stream, self._xp
        row_units = stream.units(stream.hidden)
        units = stream.prompt_units(requests, last_of_prompt(stream, requests))
        later = at > 0
        if stream.vocab is not None:
            # A wrong id must not index beyond the embedding table.
            before = np.clip(ids_of(self._ids[numbers[later] - 1]), 0, stream.vocab - 1)
            units[later] = before * row_units
            return self.rows(units, stream.hidden)
        values = self.rows(units, stream.hidden)
        if later.any():
            wide = to_host(to_float32(self._kept(numbers[later] - 1), stream.dtype))
            turned = signed(scaled(wide), requests[later].astype(np.uint32), (at[later] - 1).astype(np.uint32))
            fed = from_float32(turned, stream.dtype)
            values[xp.asarray(np.flatnonzero(later))] = xp.asarray(self._wide(fed))
        return values

    def _kept(self, numbers: Numbers) -> Array:
        return self._arenas.arrays[self._stream.history][self._xp.asarray(numbers), : self._stream.hidden]

    def _wide(self, values: Array) -> Array:
        return to_float32(values, self._stream.dtype).astype(np.float64)


def ids_of(words: Numbers | Words) -> Numbers:
    """Return the ids in the lower halves of words, which hold an int32 each."""
    ids: Numbers = words.astype(np.uint32).view(np.int32).astype(np.int64)
    return ids


def last_of_prompt(stream: ChainStream, requests: Numbers) -> Numbers:
    """Return the position of the column whose step computes each request's first token, [requests]."""
    last: Numbers = np.maximum(stream.asked.context_tokens[requests], 1) - 1
    return last
