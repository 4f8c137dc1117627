"""Measures bulk copies of weights to shared memory: their rate, and the delay of other loads meanwhile.

The megakernel fetches weights by bulk copies. Its blocks exchange outputs through the L2 cache. The number of copies
under way determines the latency of those loads; the offset in shared memory determines the rate of the copies. The
case that copies from the L2 cache shows the gain if weights were there already.
"""

from __future__ import annotations

from collections.abc import Iterator

from launchopt.devices.cuda.floors.bulk_copies import BulkCopies
from launchopt.kernels.shared import COPY_ROW_BYTES
from launchopt.kernels.shared_megakernel import ROW_GAP_BYTES
from runner.bench.figures import Figure

PITCH = COPY_ROW_BYTES + ROW_GAP_BYTES  # bytes from row to row in shared memory, as in the megakernel
UNDER_WAY = (0, 1, 2, 3, 4, 11)
OFFSETS = (16, 32, 48, 64, 96)  # bytes in shared memory beyond a multiple of 128, besides 0


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield rate and latencies of each case. Needs a GPU."""
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
