"""Events that a profiler recorded wrongly: the same event twice, and events that cannot have lasted so long.

Work on a stream runs in order. An event that ends after a later event of the same stream has ended has a wrong end.
Kernels of one graph launch may overlap on a stream, and are not compared with each other.
"""

from __future__ import annotations

import re

import numpy as np

from launchopt.analysis.profiles.gpu_event_owners import Bools, Ints, ranks
from launchopt.traces.events import LATEST_NS, NONE, Kind, Rows

_STREAM = ("process", "track", "device", "context", "stream")
_LIBRARY = re.compile(r"cuda|cu|hip|ur|pi|ze")
_SAME = ("start_ns", "end_ns", "correlation", "name", "kind", *_STREAM)


def repeated(gpu: Rows) -> Bools:
    """Return which events are equal to an earlier one in all but their place in the file."""
    order = np.lexsort([gpu["place"], *(gpu[name] for name in reversed(_SAME))])
    rows = gpu[order]
    found = np.zeros(len(gpu), bool)
    found[order[1:]] = np.all([rows[name][1:] == rows[name][:-1] for name in _SAME], axis=0)
    return found


def overlong(gpu: Rows, call_of: Ints) -> Bools:
    """Return which events end after an event of another call that began later on their stream."""
    found = np.zeros(len(gpu), bool)
    judged = np.flatnonzero((gpu["stream"] != NONE) & (gpu["kind"] != Kind.GRAPH))
    if not len(judged):
        return found
    rows = gpu[judged]
    processes = np.unique(rows["process"][rows["process"] != NONE])
    columns = [rows[name] for name in (_STREAM[1:] if len(processes) < 2 else _STREAM)]
    _, key = ranks(*columns)
    found[judged] = _outlasting(rows, key, call_of[judged])
    return found


def overlong_calls(calls: Rows, names: tuple[str, ...], is_launching: Bools) -> Bools:
    """Return which of the calls that `is_launching` selects end after a later such call of their thread.

    A call of the runtime may be within one of the driver, or the other way round: these are not compared.
    """
    found = np.zeros(len(calls), bool)
    judged = np.flatnonzero(is_launching)
    if not len(judged):
        return found
    libraries = [_LIBRARY.match(name) for name in names]
    numbers = {None: NONE, "cuda": 0, "cu": 1, "hip": 2, "ur": 3, "pi": 4, "ze": 5}
    library = np.array([numbers[match and match[0]] for match in libraries])
    rows = calls[judged]
    _, key = ranks(rows["process"], rows["thread"], library[rows["name"]])
    found[judged] = _outlasting(rows, key, np.arange(len(rows)))
    return found


def _outlasting(rows: Rows, key: Ints, owner: Ints) -> Bools:
    """Return which rows end after another row of their key, but not of their owner, that began later."""
    order = np.lexsort((rows["end_ns"], rows["start_ns"], key))
    start_ns, end_ns, key, owner = rows["start_ns"][order], rows["end_ns"][order], key[order], owner[order]
    is_new = np.concatenate([[True], (key[1:] != key[:-1]) | (owner[1:] != owner[:-1]) | (owner[1:] == NONE)])
    # A row of length 0 proves nothing about others: its own end may be the wrong one.
    proof = np.where(end_ns > start_ns, end_ns, LATEST_NS)
    times, rank = np.unique(np.concatenate([end_ns, proof]), return_inverse=True)
    # Key and time form one number that grows with the key first.
    own, other = (key * len(times) + part for part in np.split(rank, 2))
    earliest = np.minimum.reduceat(other, np.flatnonzero(is_new))
    later = np.concatenate([np.minimum.accumulate(earliest[::-1])[::-1][1:], [np.iinfo(np.int64).max]])
    found = np.zeros(len(rows), bool)
    found[order] = own > later[np.cumsum(is_new) - 1]
    return found
