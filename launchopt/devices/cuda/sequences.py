"""Where each request stands, and which pages of the KV cache it has: what attention needs beside its operands.

In: an attention (workloads/attention.py), how many requests, the stream's seed; NumPy or CuPy. Out: `positions`, int32
[2, requests] (where a step's first column stands, and the next step's), and `table`, int32 [requests, pages_a_request].
Both stay where they are, so that launches may be recorded with their addresses; Op.SLOT_MAP alone moves positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.workloads.attention import Attention


class SeqState:
    """Of `requests` requests, in the memory of the array module `xp`, whose current stream does the copying."""

    def __init__(self, xp: Any, attention: Attention, requests: int, seed: int) -> None:
        self.positions: Any = xp.zeros((2, requests), np.int32)
        self.table: Any = xp.asarray(attention.page_table(seed))
        self.requests = requests

    def reset(self) -> None:
        """A new run: no request has a token. The pages stay."""
        self.positions[...] = 0
