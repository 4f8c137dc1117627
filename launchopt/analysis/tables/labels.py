"""Places for the labels of dots in a picture, so that they overlap as little as possible.

In: dots and lines, in pixels of a panel from its lower left corner. Out: labels that have space, with their centres.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

FONT_SIZE = 9.0  # pixels
_HALF_CHARACTER = 0.29  # half the width of a digit, per pixel of the font
_HALF_LINE = 0.6  # half the height of a line, per pixel of the font
_DOT = 4.0  # half the size of a dot, pixels
_STEP = 5.0  # distance of the spots of a line that labels avoid, pixels
# Directions in which a label may go from its dot, the best first: to the right, and up.
_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))


class Spot(NamedTuple):
    """A point in a panel, in pixels."""

    x: float
    y: float


class Axis(NamedTuple):
    """An axis: the range of values that its `pixels` pixels show."""

    low: float
    high: float
    is_log: bool
    pixels: float

    def pixel(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        return self.pixels * (value - low) / (high - low)

    def value(self, pixel: float) -> float:
        """Return the value at a pixel."""
        share = pixel / self.pixels
        if self.is_log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def centre(self) -> Spot:
        """Middle of the box."""
        return Spot((self.left + self.right) / 2, (self.bottom + self.top) / 2)

    def overlaps(self, other: Box) -> bool:
        """Return whether both share some area."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def is_within(self, frame: Box) -> bool:
        """Return whether the box is in `frame`, or extends at most 2% beyond its right or upper edge."""
        is_past_start = self.left >= frame.left and self.bottom >= frame.bottom
        return is_past_start and self.right <= frame.right * 1.02 and self.top <= frame.top * 1.02


class Label(NamedTuple):
    """A text for the dot at `spot`. `gap`: pixels between the dot's centre and the text."""

    text: str
    spot: Spot
    gap: float
    is_needed: bool  # True: it is shown even if it overlaps others


def box_around(spot: Spot, half_width: float, half_height: float) -> Box:
    """Return the box of that size, in pixels, with its centre at `spot`."""
    return Box(spot.x - half_width, spot.y - half_height, spot.x + half_width, spot.y + half_height)


def place(
    labels: Sequence[Label],
    lines: Sequence[Sequence[Spot]],
    frame: Box,
    dots: Sequence[Spot] = (),
    font_size: float = FONT_SIZE,
) -> list[tuple[Label, Spot]]:
    """Return every label that has space, or is needed, with its centre.

    labels: one per dot within `frame`, the most important first. lines: corners of lines that labels avoid if they can.
    dots: dots without a label. font_size: pixels.
    """
    taken = [box_around(spot, _DOT, _DOT) for spot in (*(label.spot for label in labels), *dots)]
    avoided = [box_around(spot, 1, 1) for line in lines for spot in along(line)]
    placed = []
    for label in labels:
        boxes = [_box(label, right, up, font_size) for right, up in _DIRECTIONS]
        free = [box for box in boxes if box.is_within(frame) and not any(map(box.overlaps, taken))]
        if not free and not label.is_needed:
            continue
        clear = [box for box in free if not any(map(box.overlaps, avoided))]
        chosen = (clear or free or boxes)[0]
        taken.append(chosen)
        placed.append((label, chosen.centre))
    return placed


def along(line: Sequence[Spot]) -> list[Spot]:
    """Return spots along the line with these corners, at most `_STEP` pixels apart."""
    spots = []
    for one, other in pairwise(line):
        count = max(1, math.ceil(math.dist(one, other) / _STEP))
        shares = [step / count for step in range(count + 1)]
        spots += [Spot(one.x + (other.x - one.x) * share, one.y + (other.y - one.y) * share) for share in shares]
    return spots


def _box(label: Label, right: int, up: int, font_size: float) -> Box:
    """Return the box of a label in one direction from its dot."""
    half_width, half_height = _HALF_CHARACTER * font_size * len(label.text), _HALF_LINE * font_size
    gap = 0.5 * label.gap if right and up else label.gap
    centre = Spot(label.spot.x + right * (half_width + gap), label.spot.y + up * (half_height + gap))
    return box_around(centre, half_width, half_height)
