"""The collectives of the GPUs of a trace: kernels by GPU, and by the group of processes that do them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from launchopt.analysis.collectives.gpus import LABEL_CHARACTERS, UNNAMED, Calls, Group, TimedFile, TimedGpu
from launchopt.analysis.collectives.kinds import Kind as Collective
from launchopt.analysis.collectives.kinds import kind_of
from launchopt.analysis.profiles.gpu_event_owners import Bools, Ints, gpus, ranks
from launchopt.analysis.profiles.launch_pairs import Pairs
from launchopt.errors import one_line
from launchopt.traces.events import NONE, Kind, Rows, Trace

Kinds = Sequence[Collective | None]


def timed_file(name: str, source: Hashable, trace: Trace, pairs: Pairs) -> TimedFile:
    """Return the GPUs of a trace that have collectives. Events that `pairs` left out as repeated do not count.

    Those that it left out for their end keep their place among the others, without times.
    """
    gpu = np.concatenate([pairs.gpu, pairs.overlong_gpu])
    kernels = gpu["kind"] == Kind.KERNEL
    is_timed = np.arange(len(gpu)) < len(pairs.gpu)
    said, kinds = _kinds(gpu, kernels, trace)
    wanted = kernels & np.array([kind is not None for kind in kinds], bool)[said]
    having = [each for each in gpus(gpu) if (wanted & each.rows).any()]
    numbers = Counter(each.device for each in having)
    found = []
    for each in having:
        own = np.flatnonzero(wanted & each.rows)
        own = own[np.argsort(gpu["start_ns"][own], kind="stable")]
        is_one = numbers[each.device] == 1 or each.process == NONE
        groups = _groups(gpu[own], is_timed[own], [kinds[at] for at in said[own].tolist()], trace)
        of = "" if is_one else f", process {one_line(trace.names[each.process], LABEL_CHARACTERS)}"
        found.append(TimedGpu(f"GPU {each.device}{of}", groups))
    return TimedFile(name, source, trace.job, trace.base_ns, tuple(found))


def _kinds(gpu: Rows, kernels: Bools, trace: Trace) -> tuple[Ints, Kinds]:
    """Return a number for each event, and the kind of collective of each number."""
    count, key = ranks(gpu["name"], gpu["collective"], gpu["kind"])
    kinds: list[Collective | None] = [None] * count
    keys, first = np.unique(key, return_index=True)
    for at, event in zip(keys.tolist(), first.tolist(), strict=True):
        if kernels[event]:
            said = int(gpu["collective"][event])
            name = trace.names[gpu["name"][event]]
            kinds[at] = kind_of(name, None if said == NONE else trace.collectives[said])
    return key, kinds


def _groups(rows: Rows, is_timed: Bools, kinds: Kinds, trace: Trace) -> dict[Group, Calls]:
    """Return the collectives of one GPU by group. Rows are in order of their begin."""
    said = [UNNAMED, *(Group(each.group, each.ranks) for each in trace.collectives)]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(said))}
    number = np.array([numbers[each] for each in said])[rows["collective"] + 1]
    found = {}
    for group, at in numbers.items():
        own = np.flatnonzero(number == at)
        if len(own):
            starts, ends, streams = (rows[name][own].astype(np.int64) for name in ("start_ns", "end_ns", "stream"))
            of_each = tuple(kind for kind in (kinds[place] for place in own.tolist()) if kind is not None)
            found[group] = Calls(starts, ends, of_each, streams, is_timed[own])
    return found
