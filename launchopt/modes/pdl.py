"""pdl: one launch a command of our own GEMV kernel, which starts loading weights before the kernel ahead of it ends.

Programmatic dependent launch. The kernel prefetches its first weights, which no kernel writes, and waits for the grid
ahead of it (griddepcontrol.wait) before it reads its input. mode=kernel is the same without.
"""

from __future__ import annotations

from launchopt.modes.kernel import Kernel


class Pdl(Kernel):
    """One dependent launch of our own kernel a command."""

    name = "pdl"
    summary = "one dependent launch (PDL) of our own GEMV kernel a command"
    early = True
