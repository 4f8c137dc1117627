"""List the steps and sizes of batches that a run is likely to launch, to prepare them before the clock starts.

A small model can have hundreds of copies of its weights. That may be more than a run uses or a mode keeps prepared.
"""

from __future__ import annotations

from launchopt.streams.chains.chain import ChainStream


def copies_used(stream: ChainStream) -> int:
    """Return the number of copies of the weights that a run uses. Token i of a request uses copy i % replicas."""
    return min(stream.replicas, int(stream.outputs.max()))


def most_kept(stream: ChainStream, asked: int) -> int:
    """Return the number of steps to keep prepared: `asked`, but at least the number of copies of the weights.

    With fewer, each step would be dropped before the run launches it again.
    """
    return max(asked, copies_used(stream))


def likely_steps(stream: ChainStream, most: int, bound: int) -> list[tuple[int, int]]:
    """Return at most `bound` decode steps as (number of requests, copy of the weights); the requests are numbers 0 on.

    Steps of all requests, up to `most`, come first; then steps of one request.
    """
    sizes = dict.fromkeys((min(most, stream.requests), 1))
    return [(size, replica) for size in sizes for replica in range(copies_used(stream))][:bound]


def padded_sizes(limit: int) -> list[int]:
    """Return the sizes of batches to prepare: the powers of two below `limit`, and `limit`, in ascending order."""
    return sorted({*(1 << i for i in range(limit.bit_length()) if 1 << i < limit), limit})
