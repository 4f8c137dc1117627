"""Weights on their way to shared memory: how fast bulk copies are, and what else waits for them.

A megakernel's weights come by bulk copies, and what its blocks have from one another through the L2 cache. How many
copies are under way says how long the latter takes, and where in shared memory they go how fast they are. The same
from the L2 cache says what it would bring to have weights there before.
"""

from __future__ import annotations

from collections.abc import Iterator

from launchopt.devices.cuda.bulk_copies import BulkCopies
from launchopt.kernels.shared import COPY_ROW_BYTES, ROW_GAP_BYTES
from runner.bench.figures import Figure

PITCH = COPY_ROW_BYTES + ROW_GAP_BYTES  # as in the megakernel
UNDER_WAY = (0, 1, 2, 3, 4, 11)
OFFSETS = (16, 32, 48, 64, 96)  # beside 0; of shared memory, which begins at a multiple of 128


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Rate and waits of each case; needs a GPU."""
    if device != "cuda":
        return
    copies = BulkCopies()
    most = max(UNDER_WAY)
    far = (*((slots, 0, False) for slots in UNDER_WAY), *((most, offset, False) for offset in OFFSETS))
    for slots, offset, near in (*far, (most, 0, True)):
        found = [copies.measure(slots, offset, PITCH, near) for _ in range(repeats)]
        case = f"{slots} slot{'s' * (slots > 1)} of 16 KB under way" if slots else "nothing under way"
        if offset:
            case += f", {offset} bytes beyond a multiple of 128"
        if near:
            case += ", from the L2 cache"
        if slots:
            yield Figure("copies", f"{case}: rate", "GB/s", [each.gb_per_s for each in found], higher_is_better=True)
        yield Figure("copies", f"{case}: a hit in the L2 cache", "cycles", [each.mean_cycles for each in found])
        slowest = [each.slowest_cycles for each in found]
        yield Figure("copies", f"{case}: the slowest multiprocessor's", "cycles", slowest)
