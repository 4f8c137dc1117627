"""The steps that a run is likely to ask for, in the order of a run, so that they can be prepared before the clock.

A small model can have hundreds of copies of its weights: more than are kept prepared, or more than a run uses.
"""

from __future__ import annotations

from launchopt.workloads.chain import ChainStream


def copies_used(stream: ChainStream) -> int:
    """Return the copies of the weights that a run uses: each token of a request uses the next copy, from the first."""
    return min(stream.replicas, int(stream.outputs.max()))


def most_kept(stream: ChainStream, asked: int) -> int:
    """Return the number of steps to keep prepared: `asked`, but no fewer than copies of the weights.

    With fewer, each step would be dropped before it comes again.
    """
    return max(asked, copies_used(stream))


def likely_steps(stream: ChainStream, most: int, bound: int) -> list[tuple[int, int]]:
    """Return at most `bound` decode steps as (requests, copy of the weights), requests counted from the first.

    Steps of all requests, up to `most`, come first; then steps of one request.
    """
    sizes = dict.fromkeys((min(most, stream.requests), 1))
    return [(size, replica) for size in sizes for replica in range(copies_used(stream))][:bound]
