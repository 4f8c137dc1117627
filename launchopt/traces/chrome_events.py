"""Events of the Chrome format, and their values.

An event with a duration is one record (`ph` X), or two: begin and end. `Spans` makes one event of the two. A value that
should be a number may be a text.

Times are in us, with decimals if the profiler has ns. `displayTimeUnit` only says how a viewer shows them. Some tools
write ns instead: times after the year 5138, if read as us, are taken as ns.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal

from launchopt.traces.events import LATEST_NS, NEAR_NS, NONE

Event = dict[str, Any]
TimeUnit = Literal["us", "ns"]
NS_BEYOND = 10**17  # us since 1970: the year 5138
_OPERATORS = frozenset({"cpu_op", "operator"})
_LAST_NUMBER = re.compile(r"(\d+)\D*$", re.ASCII)
_NAMED_NUMBER = re.compile(r"(?:stream|gpu|device|cuda|hip|xpu)[\s:#]*(\d+)", re.ASCII | re.IGNORECASE)
_HALVES = ("B", "E", "b", "e")
_OPEN_MAX = 1000  # number of the last open begins among which the begin of an end is searched


def number(value: object) -> int | Decimal | None:
    """Return a finite number that is given as a number or as a text; None for any other value."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except ArithmeticError:
            return None
    return value if isinstance(value, Decimal) and value.is_finite() else None


def whole(value: object, largest: int) -> int:
    """Return a number from 0 to `largest`, given as a number or as a text, as an int; NONE for any other value."""
    found = number(value)
    return int(found) if found is not None and 0 <= found <= largest else NONE


def numbered(value: object, largest: int) -> int:
    """Return `whole`, or the number in a text such as "stream 7 (priority 0)"; NONE for any other value."""
    found = whole(value, largest)
    if found == NONE and isinstance(value, str):
        digits = _NAMED_NUMBER.search(value[:100]) or _LAST_NUMBER.search(value[-100:])
        return whole(digits[1], largest) if digits else NONE
    return found


def category_of(event: Mapping[str, Any]) -> str:
    """Return the category in lower case, since the first versions of Kineto wrote Kernel, Runtime and Operator."""
    found = event.get("cat")
    return found.lower() if isinstance(found, str) else ""


def is_operator(category: str) -> bool:
    """Return whether a category is that of operators of a framework."""
    return category in _OPERATORS


class Clock:
    """Reader of the times of a file's events. unit: None: detected, by the first event that starts after 1 ms."""

    def __init__(self, unit: TimeUnit | None = None) -> None:
        self._ns_a_unit = {None: None, "us": 1000, "ns": 1}[unit]

    def times(self, event: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return start and end in ns; None if a time is missing, is not a number, or is out of bounds."""
        start, duration = number(event.get("ts")), number(event.get("dur"))
        if start is None or duration is None or duration < 0:
            return None
        # Checked before computing with the times, since a sum with 1e999999 fails.
        if not (-LATEST_NS < start < LATEST_NS and duration < LATEST_NS):
            return None
        ns_a_unit = self._ns_a_unit or (1 if start > NS_BEYOND else 1000)
        if start * 1000 > NEAR_NS:  # a profiler may write 0 for a time that it does not know, or less
            self._ns_a_unit = ns_a_unit
        # Start and duration are rounded. Rounding start and end could change the duration by 1 ns.
        start_ns = round(start * ns_a_unit)
        end_ns = start_ns + round(duration * ns_a_unit)
        return (start_ns, end_ns) if start_ns > -LATEST_NS and end_ns < LATEST_NS else None


class Spans:
    """Maker of complete events.

    An end belongs to the last open begin of its process and thread; an end with a name, to the last one of that name.
    Asynchronous events (`ph` b and e) are matched by category and id instead.

    A file may have begins and ends in any order. Few do: first matched in the order of the file, without being kept.
    If `is_unordered` says afterwards that times went back, read again with `sorts`, which keeps them until the end.
    """

    def __init__(self, *, sorts: bool = False) -> None:
        self.is_unordered = False
        self._sorts = sorts
        self._kept: list[Event] = []
        self._open: dict[Hashable, list[Event]] = {}
        self._latest: dict[Hashable, int | Decimal] = {}

    def complete(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield every event with a duration. A begin or an end without the other has no `dur`; it comes last."""
        for event in events:
            phase = event.get("ph")
            if phase == "X":
                yield event
            elif phase in _HALVES and self._sorts:
                self._kept.append(event)
            elif phase in _HALVES:
                yield from self._matched(event)
        for event in sorted(self._kept, key=lambda event: _time(event) or 0):
            yield from self._matched(event)
        for left in self._open.values():
            yield from left

    def _matched(self, event: Event) -> Iterator[Event]:
        lane, time = _lane(event), _time(event) or 0
        self.is_unordered |= time < self._latest.get(lane, time)
        self._latest[lane] = time
        if event["ph"] in ("B", "b"):
            self._open.setdefault(lane, []).append(event)
        else:
            yield self._ended(event)

    def _ended(self, end: Event) -> Event:
        waiting = self._open.get(_lane(end), [])
        name = end.get("name")
        deepest = max(0, len(waiting) - _OPEN_MAX)
        places = reversed(range(deepest, len(waiting)))
        at = next((at for at in places if name in (None, "", waiting[at].get("name"))), None)
        if at is None:
            return end
        begin = waiting.pop(at)
        start, stop = _time(begin), _time(end)
        joined = {**begin, "ph": "X", "args": {**_arguments(begin), **_arguments(end)}}
        return joined if start is None or stop is None else {**joined, "dur": stop - start}


def _time(event: Event) -> int | Decimal | None:
    found = number(event.get("ts"))
    return found if found is not None and -LATEST_NS < found < LATEST_NS else None


def _lane(event: Mapping[str, Any]) -> Hashable:
    if event["ph"] in ("b", "e"):
        return "asynchronous", *(str(event.get(key)) for key in ("cat", "id", "id2", "scope"))
    return str(event.get("pid")), str(event.get("tid"))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}
