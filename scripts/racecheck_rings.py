"""What NVIDIA's racecheck takes for an order: it is asked about rings of bulk copies that have one, or have none.

    python scripts/racecheck_rings.py

A warp fills a ring's slots by bulk copies, another one reads them (launchopt/kernels/rings.cu), as in mode=megakernel.
Whether the rings are right is known: tests run the same text under a search for races that knows PTX's memory model.

In: SANITIZER, where compute-sanitizer is, if not on the PATH. Out: a line a ring: who sees that a slot is full, who
says that it has been read, whether that makes an order, what racecheck says. Needs a GPU of compute capability 9.0.

Exit code 0: racecheck reported all rings that are wrong. 1: not all; then it says nothing of others either. 2: it could
not be asked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.kernels import source

SEEN = ("each lane", "one lane, before a __syncwarp")
LEFT = ("each lane", "one lane, behind a __syncwarp", "each lane, before it reads")
WRONG = 2  # of LEFT
BLOCKS, FILLS, WARP, THREADS = 4, 64, 32, 64
INSTALLED = "/usr/local/cuda/bin/compute-sanitizer"
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
LIMIT_S = 120  # of a ring


@dataclass(frozen=True, slots=True)
class Ring:
    """Indices of SEEN and LEFT."""

    seen: int
    left: int

    @property
    def is_right(self) -> bool:
        """Whether no slot is filled again before it has been read."""
        return self.left != WRONG

    def line(self, hazards: int) -> str:
        """Of the output."""
        kind = "right" if self.is_right else "wrong"
        return f"seen by {SEEN[self.seen]}; left by {LEFT[self.left]}: {kind}; hazards by racecheck: {hazards}"


RINGS = [Ring(*of) for of in product(range(len(SEEN)), range(len(LEFT)))]


def words() -> NDArray[np.uint32]:
    """What is copied: [blocks, fills, lanes, 4]."""
    return np.random.default_rng(1).integers(0, 1 << 20, (BLOCKS, FILLS, WARP, 4), dtype=np.uint32)


def sums_of(copied: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """[blocks, lanes]: a lane reads what its neighbour's place holds."""
    return copied.sum((1, 3), dtype=np.uint32)[:, np.arange(WARP) ^ 1]


def launch(ring: Ring) -> None:
    """In a process that racecheck watches."""
    import cupy

    options = ("-std=c++17", "-DDTYPE=0", f"-DSEEN={ring.seen}", f"-DLEFT={ring.left}")
    kernel = cupy.RawModule(code=source("rings"), options=options).get_function("rings")
    copied, sums = words(), cupy.zeros((BLOCKS, WARP), np.uint32)
    kernel((BLOCKS,), (THREADS,), (cupy.asarray(copied), sums, np.uint64(FILLS)))
    found = sums.get()  # which waits: else this process ends, and racecheck with it, before the kernel has
    if ring.is_right and not np.array_equal(found, sums_of(copied)):
        raise SystemExit("a ring that is right gave other sums")


def hazards_of(sanitizer: str, ring: Ring) -> int:
    """As racecheck counts them; SystemExit where it says nothing."""
    own = [sys.executable, __file__, "--launch", str(ring.seen), str(ring.left)]
    command = [sanitizer, "--tool", "racecheck", "--kernel-name", "kns=rings", *own]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(cannot_ask(f"a ring took more than {LIMIT_S} s")) from None
    found = SUMMARY.search(done.stdout)
    if done.returncode or not found:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise SystemExit(cannot_ask(f"exit code {done.returncode}: {' '.join(last)}"))
    return int(found[1])


def cannot_ask(why: str) -> int:
    """The exit code, with a line that says why."""
    print(f"scripts/racecheck_rings.py: {why}", file=sys.stderr)
    return 2


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launch", nargs=2, type=int, metavar=("SEEN", "LEFT"), help="one ring, not watched")
    asked = parser.parse_args(words).launch
    if asked:
        launch(Ring(*asked))
        return 0
    sanitizer = os.environ.get("SANITIZER") or shutil.which("compute-sanitizer") or INSTALLED
    if not os.access(sanitizer, os.X_OK):
        return cannot_ask("no compute-sanitizer: it comes with the CUDA toolkit; name it with SANITIZER=...")
    missed = 0
    for ring in RINGS:
        hazards = hazards_of(sanitizer, ring)
        print(ring.line(hazards), flush=True)
        missed += not ring.is_right and not hazards
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
