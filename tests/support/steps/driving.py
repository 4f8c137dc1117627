"""A driver in a thread, beside a consumer's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord

PATIENCE_S = 120.0  # time after which a thread that still waits will wait for ever; compiling takes part of it


def run_beside(drive: Callable[[], None], loop: Callable[[], object], ring: Ring) -> None:
    """Run `loop` here and `drive` in a thread, to the end of both. Stop the ring if the loop fails or takes long."""
    thread = threading.Thread(target=drive, daemon=True)
    watch = threading.Timer(PATIENCE_S, ring.set_word, (HeaderWord.STOP, 1))
    watch.start()
    thread.start()
    try:
        loop()
    finally:
        watch.cancel()
        if thread.is_alive() and not ring.drained:
            ring.set_word(HeaderWord.STOP, 1)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
