"""Imports without the garbage collector, which would take a tenth of the time of a start. Signals wait meanwhile."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from runner.ending.signals import signals


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turn the collector off in this block. If the block imports modules, later collections skip all objects so far.

    Nearly all objects that an import makes stay until the process ends.
    """
    was_on, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        with signals.held():
            yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        if was_on:
            gc.enable()
