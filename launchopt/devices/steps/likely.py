"""Steps that a run is likely to ask for, in the order in which it comes to them: what is made ready before the clock.

In: a stream, how many requests a batch can have, how many may be kept. Out: how many requests, from the first on, and
which copy of the weights. Of a small model there can be hundreds of copies, more than are kept, or than a run comes to.
"""

from __future__ import annotations

from launchopt.workloads.chain import ChainStream


def copies_used(stream: ChainStream) -> int:
    """Copies of the weights that a run comes to: a token the next one, from the first on."""
    return min(stream.replicas, int(stream.outputs.max()))


def most_kept(stream: ChainStream, asked: int) -> int:
    """How many steps are kept where `asked` are: never fewer than copies, or each would be gone when it comes again."""
    return max(asked, copies_used(stream))


def likely_steps(stream: ChainStream, most: int, bound: int) -> list[tuple[int, int]]:
    """At most `bound` decode steps: of all requests, and then of the first alone, with each copy of the weights."""
    sizes = dict.fromkeys((min(most, stream.requests), 1))
    return [(size, replica) for size in sizes for replica in range(copies_used(stream))][:bound]
