"""graph_device: one launch generates several tokens of each request, because the step's graph launches itself again.

As mode=graph_loop, but without a conditional node. The last kernel of the graph launches the graph that it belongs to
(a tail launch). That launch begins when the present one has ended. The mode needs a driver of CUDA 12.4 or newer. It
needs no library, since the kernel that launches is compiled at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.modes.options import RepeatsSteps
from launchopt.modes.stacked import Stacked


@dataclass(slots=True)
class Options(RepeatsSteps):
    """Options of mode=graph_device."""


class GraphDevice(Stacked):
    """One launch by the host for up to mode.tokens tokens of each request."""

    name = "graph_device"
    own_strategy = "graph"
    options: Options = Options()
