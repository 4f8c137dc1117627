"""Outputs that were compared in float64 before: a repeat that left the same bits in memory is not compared again.

A check reads what is in memory after the run, and a few words that the caller names. So the same contents have the same
result. They are recognised by their hashes (`verify.hashes`), and inputs have a check of their own (`verify.operands`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from launchopt.devices.arenas import Arenas
from launchopt.verify.commands import Verification
from launchopt.verify.hashes import Hashes


class Known(NamedTuple):
    """The result of a check, and the run whose outputs were compared."""

    found: Verification
    run: str


class KnownOutputs:
    """The right outputs that one job has seen."""

    def __init__(self, arenas: Arenas, hashing: Hashes) -> None:
        self._arenas, self._hashing = arenas, hashing
        self._known: dict[bytes, Known] = {}

    def check(self, run: str, also: bytes, compare: Callable[[], Verification]) -> Known:
        """Return the result for the outputs in memory. It comes from `compare` if no right outputs were the same.

        run: name of the run that left them. also: what else the result of `compare` depends on. Inputs must be right.
        """
        hashes = [self._hashing.of(flat) for flat in (*self._arenas.outputs(), *self._arenas.peers)]
        state = hashlib.blake2b(repr(hashes).encode() + also, digest_size=16).digest()
        if state not in self._known:
            compared = Known(compare(), run)
            if not compared.found.ok:
                return compared
            self._known[state] = compared
        return self._known[state]
