"""pdl: one programmatic dependent launch of our own GEMV kernel per command.

The kernel starts before the previous kernel ends. It prefetches its first weights, which no kernel writes. Then it
waits for the previous grid (griddepcontrol.wait), and reads its input. mode=kernel launches the same kernel without
this overlap.
"""

from __future__ import annotations

from launchopt.modes.kernel import Kernel


class Pdl(Kernel):
    """One dependent launch of our own kernel per command."""

    name = "pdl"
    early = True
