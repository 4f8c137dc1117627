"""graph_loop: one launch generates several tokens of each request, because the GPU repeats the step.

The driver issues up to mode.tokens=64 decode steps of a request together. One launch executes them: a CUDA graph with a
conditional WHILE node, whose body is the captured step with sampling and feedback. So no token waits for the host. The
node needs a driver of CUDA 12.4 or newer. The host learns of each token as soon as the GPU has stored it, so times per
token are true. A request that arrives during a loop waits for the end of the loop.

The first token of a request is a launch of its own, because its input lies elsewhere. Prompts, and steps whose operands
are not evenly spaced in memory, are launched one by one as in mode=coalesced. At most mode.cached=64 graphs are kept,
one for each set of requests. The body reads one copy of the weights, so the mode takes no workload that cycles over
several copies.

On the CPU device a graph is a recorded list of calls. The results of each token are fed back between two lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.modes.options import RepeatsSteps
from launchopt.modes.stacked import Stacked


@dataclass(slots=True)
class Options(RepeatsSteps):
    """Options of mode=graph_loop."""


class GraphLoop(Stacked):
    """One launch for up to mode.tokens tokens of each request."""

    name = "graph_loop"
    own_strategy = "graph"
    options: Options = Options()
