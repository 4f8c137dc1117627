"""Measures the attention of a decode step of Llama 3 8B in one launch, beside the time of reading keys and values.

The floor is the bytes of K and V by the rate at which the GPU reads its memory, measured in turn with the launches.
"""

from __future__ import annotations

from collections.abc import Iterator

from launchopt.devices.cuda.floors.attention import AttentionTime
from launchopt.streams.chains.attention import AttentionShape
from runner.bench.figures import Figure, in_turn, ratios

TOKENS = 4096
PAGE = 16  # tokens of a page of a paged cache
REQUESTS = (1, 4, 16, 64)
GOAL, GOAL_REQUESTS = 1.2, 16  # at most this many times the floor, with this many requests or more


def shape_of(page: int | None) -> AttentionShape:
    """Return the attention of Llama 3 8B."""
    return AttentionShape(32, 8, 128, TOKENS, page)


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield the time of a launch, and its ratio to the floor, for each number of requests. Needs a GPU."""
    if device != "cuda":
        return
    for page in (None, PAGE):
        for requests in REQUESTS:
            yield from _figures(requests, page, repeats)


def _figures(requests: int, page: int | None, repeats: int) -> Iterator[Figure]:
    timed = AttentionTime(shape_of(page), requests, TOKENS)
    times, floors = in_turn(repeats, timed.us, timed.reading_us)
    cache = f"pages of {page} tokens" if page else "contiguous"
    case = f"{requests} request{'s' * (requests > 1)} of {TOKENS:,} tokens, {cache}"
    goal = GOAL if requests >= GOAL_REQUESTS else None
    yield Figure("attention", f"{case}: a launch", "us", times)
    yield Figure("attention", f"{case}: a launch / reading K and V", "x", ratios(times, floors), goal)
