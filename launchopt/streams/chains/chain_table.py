"""The table of a `ChainStream`: the steps of each request, and the places of its inputs and outputs.

The arena of activations holds the embedding table first, then a lane per request, then a region per prompt. Places are
in units of `UNIT_BYTES` from the start of that arena.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.errors import ArenaMemoryError
from launchopt.prefixes.sharing import NO_DONOR, SharedPrefixes
from launchopt.streams.chains.lengths import Lengths, StepKind, lengths_of
from launchopt.streams.chains.placement import UNIT_BYTES, Placement
from launchopt.types import Table

MOST_UNITS = 2**32 - 1  # most units of the arena, since a record has 32 bits for a slot
NO_PROMPT = -1  # in place of a kind


class ChainColumn(enum.IntEnum):
    """Columns of the table, which has a row per request."""

    DUE_NS = 0  # ns from the start of the run until the request arrives
    FULL_CHUNKS = 1  # chunks of the prompt before the last one
    REST_KIND = 2  # kind of the step of the prompt's last chunk; NO_PROMPT: the prompt is empty
    DECODES = 3  # number of decode steps
    LANE = 4  # first unit of its lane
    PREFILL = 5  # first unit of the region of its prompt
    PROMPT = 6  # unit of the row of its prompt's first token that is not cached, in the embedding table
    FIRST_TOKEN = 7  # number of its first output token among the output tokens of all requests
    AFTER = 8  # request that must end before this one starts; -1: none
    DONOR = 9  # request whose pages hold the cached tokens of its prompt; NO_DONOR: none is cached
    DONOR_STEPS = 10  # steps of that request that must have ended before this one starts
    CACHED = 11  # first tokens of its prompt that need no step


def count_steps(
    requests: Requests, outputs: NDArray[np.int64], chunk: int, prefixes: SharedPrefixes | None = None
) -> tuple[Table, list[StepKind], dict[StepKind, Lengths]]:
    """Return the table, with the columns that say which steps a request has; the kinds of steps; and their lengths.

    outputs: output tokens of each request, int64 [requests]. chunk: most tokens of a prompt in one step. prefixes:
    tokens of prompts that need no step.
    """
    prompts = requests.context_tokens
    table = np.zeros((len(requests), len(ChainColumn)), np.int64)
    table[:, ChainColumn.DONOR] = NO_DONOR
    if prefixes is not None:
        _share(table, prefixes, chunk)
    cached = table[:, ChainColumn.CACHED]
    full = np.where(prompts > 0, (prompts - cached - 1) // chunk, 0)
    table[:, ChainColumn.DUE_NS], table[:, ChainColumn.AFTER] = requests.arrival_ns, requests.after
    table[:, ChainColumn.FULL_CHUNKS] = full
    table[:, ChainColumn.DECODES] = outputs - (prompts > 0)
    table[:, ChainColumn.FIRST_TOKEN] = np.concatenate([[0], np.cumsum(outputs)[:-1]])
    lengths = lengths_of(prompts, chunk, table[:, ChainColumn.DECODES], cached)
    kinds = sorted(lengths, key=lambda kind: (kind.is_prompt, kind.ends_token, kind.n))
    kind_of = {kind: index for index, kind in enumerate(kinds)}
    table[:, ChainColumn.REST_KIND] = [
        kind_of[StepKind(int(n), True, True)] if prompt else NO_PROMPT
        for n, prompt in zip(prompts - cached - full * chunk, prompts, strict=True)
    ]
    return table, kinds, lengths


def _share(table: Table, prefixes: SharedPrefixes, chunk: int) -> None:
    """Write the columns DONOR, DONOR_STEPS and CACHED."""
    donors, cached = prefixes.donors, prefixes.cached
    needed = cached - cached[donors]  # of the donor's own tokens
    table[:, ChainColumn.DONOR], table[:, ChainColumn.CACHED] = donors, cached
    table[:, ChainColumn.DONOR_STEPS] = np.where(donors == NO_DONOR, 0, -(-needed // chunk))


def place_activations(
    table: Table, prompts: NDArray[np.int64], chunk: int, place: Placement, rows: int, row_units: int, seed: int
) -> int:
    """Write the columns LANE, PREFILL and PROMPT of the table; return the units of the whole arena.

    prompts: prompt tokens of each request, int64 [requests]. chunk: most tokens of a prompt in one step. rows: rows of
    the embedding table, of `row_units` units each. seed: fixes the rows of prompts. Raises ArenaMemoryError for an
    arena of more than MOST_UNITS. Cached tokens of a prompt take no space: their rows are those of other requests.
    """
    prompts = prompts - table[:, ChainColumn.CACHED]
    lanes = rows * row_units
    table[:, ChainColumn.LANE] = lanes + np.arange(len(table)) * place.lane_units
    full = table[:, ChainColumn.FULL_CHUNKS]
    widest, where = np.unique(np.where(full > 0, chunk, prompts - full * chunk), return_inverse=True)
    sizes = np.array([place.region_units(int(n)) if n else 0 for n in widest], np.int64)[where]
    prefill = lanes + len(table) * place.lane_units
    table[:, ChainColumn.PREFILL] = prefill + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    first_rows = np.random.default_rng([seed, 0x9307]).integers(0, rows - np.maximum(prompts, 1) + 1)
    table[:, ChainColumn.PROMPT] = first_rows * row_units
    total = int(prefill + sizes.sum())
    if total > MOST_UNITS:
        needed, most = (units * UNIT_BYTES / 1e9 for units in (total, MOST_UNITS))
        raise ArenaMemoryError(f"activations need {needed:,.0f} GB, of which {most:,.0f} can be addressed")
    return total
