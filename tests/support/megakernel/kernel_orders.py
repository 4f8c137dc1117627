"""Which barriers, fences and waits of kernels/megakernel.cu are necessary: leave out each in turn and run the kernel.

Input: the kernel's text, and instruction lists that use all of it. Output: one line per statement, with the list that
failed and how. Most fail as races (cuda_on_host/races.h). Each statement takes seconds to minutes:

    PYTHONPATH=.:tests python tests/support/megakernel/kernel_orders.py > orders.txt
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from launchopt.command import Dtype
from launchopt.kernels import source
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import Program, layer_program
from launchopt.streams.model import ModelShape
from support.cuda_on_host import built_of
from support.megakernel import kernel_runs
from support.megakernel.gated_runs import Gated
from support.megakernel.kernel_runs import (
    GREEDY,
    HEAD,
    ONE_TILE,
    PROGRAMS,
    SHORT,
    SHORT_IN_PIECES,
    TALL,
    TALL_OF_HALVES,
    TOKENS,
    TOP_K,
    TOP_P,
    WIDE,
    KernelRun,
    after_all_steps,
    attended,
)
from support.steps.program_interpreter import NONE
from support.steps.programs import requests_of

KERNEL = source("megakernel")
# One request has more KV heads than there are blocks.
HEADS = layer_program(ModelShape("heads", 128, 2, 8, 4, 16, 128), 2 * TOKENS)
GROUPED = layer_program(ModelShape("grouped", 128, 2, 8, 1, 16, 128), 2 * TOKENS)


def stepped(
    program: Program,
    requests: int,
    dtype: Dtype,
    sampling: Sampling = NONE,
    layers: int = 1,
    blocks: int = 3,
    made: type[KernelRun] = KernelRun,
    text: str = KERNEL,
) -> KernelRun:
    """Run two tokens of each request. Four blocks form pairs."""
    vocab = None if sampling is NONE else 60
    stream = ChainStream(program, layers, requests_of([(0, 2)] * requests), dtype, 1, ChainSettings(vocab))
    with watched(blocks):
        return after_all_steps(made(stream, sampling, text=text))


def with_attention(heads: tuple[int, int, int], sizes: list[tuple[int, int]], text: str = KERNEL) -> KernelRun:
    with watched(3):
        return attended(Dtype.bf16, heads, 16, sizes, text)


@contextmanager
def watched(blocks: int) -> Iterator[None]:
    """Build kernels so that they report races, and launch this number of blocks."""
    before = kernel_runs.built_of, kernel_runs.BLOCKS
    kernel_runs.built_of, kernel_runs.BLOCKS = partial(built_of, races=True), blocks
    try:
        yield
    finally:
        kernel_runs.built_of, kernel_runs.BLOCKS = before


LISTS: dict[str, Callable[..., KernelRun]] = {
    "layers": partial(stepped, PROGRAMS["layer"], 1, Dtype.bf16, layers=2),
    "layers, 4 requests": partial(stepped, PROGRAMS["layer"], 4, Dtype.fp32, layers=2),
    "layers, 5 requests of halves": partial(stepped, PROGRAMS["layer"], 5, Dtype.bf16, layers=2),
    "shared down": partial(stepped, TALL, 9, Dtype.fp32, layers=2, blocks=4),
    "greedy": partial(stepped, PROGRAMS["decode"], 5, Dtype.fp32, GREEDY),
    "top k": partial(stepped, PROGRAMS["decode"], 5, Dtype.bf16, TOP_K),
    "top p": partial(stepped, PROGRAMS["decode"], 1, Dtype.bf16, TOP_P),
    "ops alone": partial(stepped, PROGRAMS["odd"], 18, Dtype.fp32),
    "several passes": partial(stepped, PROGRAMS["deep"], 18, Dtype.bf16),
    "several rounds": partial(stepped, PROGRAMS["deep"], 9, Dtype.fp32),
    "a long context": partial(with_attention, (1, 2, 16), [(62, 3)]),
    "many heads": partial(stepped, HEADS, 1, Dtype.fp32),
    "a large group": partial(stepped, GROUPED, 2, Dtype.fp32),
    "a large group of halves": partial(stepped, GROUPED, 2, Dtype.bf16, layers=2),
    "shared hidden rows": partial(stepped, WIDE, 9, Dtype.fp32, blocks=4),
    "shared head": partial(stepped, HEAD, 16, Dtype.fp32, GREEDY, blocks=4),
    "one tile of a pair": partial(stepped, ONE_TILE, 16, Dtype.bf16, blocks=4),
    "norms": partial(stepped, PROGRAMS["norms"], 1, Dtype.bf16),
    "norms of halves": partial(stepped, PROGRAMS["norms"], 18, Dtype.bf16),
    "shared down of halves": partial(stepped, TALL_OF_HALVES, 9, Dtype.bf16, layers=2, blocks=4),
    "short ones": partial(stepped, SHORT, 1, Dtype.fp32, GREEDY, layers=2, blocks=16),
    "short ones of halves": partial(stepped, SHORT_IN_PIECES, 1, Dtype.bf16, layers=1, blocks=68),
    "short ones, made ahead": partial(stepped, SHORT, 1, Dtype.bf16, layers=2, blocks=16, made=Gated),
    "made ahead": partial(stepped, PROGRAMS["large"], 1, Dtype.bf16, made=Gated),
}

ADDRESS = r",? 0x\w+"
CALLS = "__syncthreads|__syncwarp|__barrier_sync_count|__threadfence|pair_together|barrier_wait"
CALLS += "|meet|wait_for_all|wait_for_copies|wait_empty|wait"
STATEMENT = re.compile(rf"\b(?:peer\.|ring\.)?(?:{CALLS})(?:<\w+>)?\((?:[^()]|\([^()]*\))*\);")


def statements(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each statement, except those of common/ptx.cuh, comments and macros."""
    ptx = source("common/ptx.cuh")
    first = text.index(ptx)
    return [
        (start, end)
        for start, end in (each.span() for each in STATEMENT.finditer(text))
        if not first <= start < first + len(ptx) and not text.startswith(("//", "#"), beginning(text, start))
    ]


def beginning(text: str, place: int) -> int:
    """Return the place of the first character after the indentation of a line."""
    line = text.rfind("\n", 0, place) + 1
    return line + len(text[line:]) - len(text[line:].lstrip())


def without(text: str, statement: tuple[int, int]) -> str:
    start, end = statement
    return f"{text[:start]};{text[end:]}"


def first_failure(text: str) -> str:
    """Return the first list that fails with this text, and how; empty if none fails."""
    for name, step in LISTS.items():
        try:
            run = step(text=text)
        except (RuntimeError, AssertionError) as error:
            return f"{name}: {re.sub(ADDRESS, '', str(error))}"
        if not run.verify().ok:
            return f"{name}: wrong outputs"
    return ""


def outcome_without(number: str) -> str:
    """Return the outcome without one statement. A separate process runs it, since the kernel may store anywhere."""
    done = subprocess.run([sys.executable, __file__, number], capture_output=True, text=True)
    return done.stdout or f"signal {-done.returncode}\n"


def main() -> None:
    found = statements(KERNEL)
    if sys.argv[1:]:
        print(first_failure(without(KERNEL, found[int(sys.argv[1])])) or "no list fails")
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (start, end), text in zip(found, pool.map(outcome_without, map(str, range(len(found)))), strict=True):
            line = KERNEL[beginning(KERNEL, start) : KERNEL.index("\n", end)]
            print(f"{line}\n    {text}", end="", flush=True)


if __name__ == "__main__":
    main()
