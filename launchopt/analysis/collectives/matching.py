"""Match the collectives of one group on several GPUs: which one of a GPU is which one of the others.

The k-th collective of a stream of one GPU is the k-th of that stream on every other one. Work on two streams may begin
in another order on another GPU. Streams are those with one number, or else with the same kinds in the same order.
Otherwise the k-th collective of a GPU is the k-th of every other one. Collectives of different kinds never match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.analysis.collectives.gpus import Calls
from launchopt.analysis.collectives.kinds import Kind

Order = NDArray[np.int64]  # positions of collectives of a GPU
_Streams = Mapping[int, tuple[tuple[Kind, ...], Order]]


def matchings(of_each: Sequence[Calls]) -> Iterator[list[Order]]:
    """Yield the orders of each GPU in which equal positions are one collective, the most certain ones first."""
    streams = [_streams(calls) for calls in of_each]
    if max(len(each) for each in streams) > 1:
        if all(_kinds(each) == _kinds(streams[0]) for each in streams):
            yield [np.concatenate([each[number][1] for number in sorted(each)]) for each in streams]
        by_kinds = [dict(each.values()) for each in streams]
        if all(len(each) == len(own) for each, own in zip(by_kinds, streams, strict=True)) and all(
            each.keys() == by_kinds[0].keys() for each in by_kinds
        ):
            yield [np.concatenate([each[kinds] for kinds in by_kinds[0]]) for each in by_kinds]
    if all(calls.kinds == of_each[0].kinds for calls in of_each):
        yield [np.arange(len(calls.kinds)) for calls in of_each]


def difference(names: Sequence[str], of_each: Sequence[Calls]) -> str:
    """Return why GPUs with these names have no matching."""
    counts = [len(calls.kinds) for calls in of_each]
    fewest, most = int(np.argmin(counts)), int(np.argmax(counts))
    if counts[fewest] < counts[most]:
        return f"{counts[most]:,} on {names[most]}, {counts[fewest]:,} on {names[fewest]}"
    for number, kinds in enumerate(zip(*(calls.kinds for calls in of_each), strict=True), 1):
        other = next((at for at, kind in enumerate(kinds) if kind is not kinds[0]), None)
        if other is not None:
            return f"number {number:,} is {_one(kinds[0])} on {names[0]}, {_one(kinds[other])} on {names[other]}"
    return "some end on one GPU before they begin on another, whatever the clocks"


def _streams(calls: Calls) -> _Streams:
    """Return the kinds of the collectives of each stream, and their positions."""
    found = {}
    for number in np.unique(calls.streams).tolist():
        own = np.flatnonzero(calls.streams == number)
        found[number] = tuple(calls.kinds[at] for at in own.tolist()), own
    return found


def _kinds(streams: _Streams) -> dict[int, tuple[Kind, ...]]:
    return {number: kinds for number, (kinds, _) in streams.items()}


def _one(kind: Kind) -> str:
    return f"{'a' if kind is Kind.REDUCE_SCATTER else 'an'} {kind.value}"
