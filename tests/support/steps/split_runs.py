"""Runs of a model that several ranks split: a thread each, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype, Op
from launchopt.devices.cpu.split import CpuSplit
from launchopt.devices.peers.segment import PeerSegment, Team
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import INPUT, Node, Program, layer_program, linear_program
from launchopt.streams.chains.tensor import Split
from launchopt.streams.model import ModelShape
from support.steps.program_interpreter import NONE, SEED, Change, Run, unchanged

Result = TypeVar("Result")
MODEL = ModelShape("split", 128, 2, q_heads=8, kv_heads=4, head_dim=16, intermediate=128, qk_norm=True)
WIDE = replace(MODEL, kv_heads=8)
PATIENCE_S = 60
SPIN_US, SLEEP_US = 20.0, 50.0


def split_of(name: str, tensor: int, ctx: int = 16, rounds_sums: bool = False) -> Split:
    """Return a split of MODEL (of WIDE over eight ranks): `layer`, `linear` layers, or MLPs with `residual` adds."""
    of = WIDE if tensor > MODEL.kv_heads else MODEL

    def program(model: ModelShape) -> object:
        if name == "residual":
            return residual_program(model)
        if name == "linear":
            return linear_program(model.linear_sizes(), model.linear_parts())
        return layer_program(model, ctx, merged=True)

    whole, share = program(of), program(of.share(tensor))
    return Split(whole, share, tensor, rounds_sums)  # type: ignore[arg-type]


def streams_of(
    name: str, tensor: int, dtype: Dtype = Dtype.fp32, vocab: int | None = None, rounds_sums: bool = False
) -> tuple[ChainStream, ChainStream]:
    """Return the stream of a rank, and that of the whole model on one device."""
    split = split_of(name, tensor, rounds_sums=rounds_sums)
    requests = Requests(np.zeros(3, np.int64), np.array([0, 3, 1]), np.array([3, 2, 4]))
    part = ChainStream(split.program, 2, requests, dtype, 2, ChainSettings(vocab, 2, split=split))
    return part, ChainStream(split.whole, 2, requests, dtype, 2, ChainSettings(vocab, 2))


def residual_program(model: ModelShape) -> Program:
    """Return two GEMMs and the residual add behind them, twice."""
    hidden, inner, nodes, given = model.hidden, model.intermediate, list[Node](), INPUT
    for i in "12":
        up, down = Node(f"up{i}", Op.GEMM, inner, hidden, given), Node(f"down{i}", Op.GEMM, hidden, inner, f"up{i}")
        nodes += [up, down, Node(f"add{i}", Op.ADD, hidden, hidden, down.name, given)]
        given = f"add{i}"
    return Program(tuple(nodes), hidden)


@contextmanager
def team_of(size: int, memory_bytes: int) -> Iterator[tuple[PeerSegment, list[Team]]]:
    """Yield the memory of a team, and what each member needs; all waits end with the block."""
    with PeerSegment.create(size, memory_bytes) as segment:
        try:
            yield segment, [Team(segment.name, rank, size, SPIN_US, SLEEP_US) for rank in range(size)]
        finally:
            segment.stop()


def in_ranks(size: int, work: Callable[[int], Result]) -> list[Result]:
    """Return what `work` returns for each rank; the ranks run at the same time."""
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, rank) for rank in range(size)]
        return [future.result(PATIENCE_S) for future in futures]


@contextmanager
def split_runs(
    stream: ChainStream, sampling: Sampling = NONE, changes: dict[int, Change] | None = None
) -> Iterator[list[Run]]:
    """Execute a stream on all ranks; yield their runs. changes: of some ranks."""
    arena = stream.activations
    with team_of(stream.tensor, stream.arenas[arena] * arena.slot_bytes) as (_, members):
        splits = in_ranks(stream.tensor, lambda rank: CpuSplit(stream, SEED, members[rank]))

        def run(rank: int) -> Run:
            change = (changes or {}).get(rank, unchanged)
            return Run(stream, sampling, change, split=splits[rank])

        try:
            yield in_ranks(stream.tensor, run)
        finally:
            for split in splits:
                split.close()
