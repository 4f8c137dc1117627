"""Measures all-reduces between ranks: all visible GPUs, at most 8, or two processes of the cpu device.

On GPUs: our own kernel beside NCCL and PyTorch's symmetric memory, captured in a graph and eager. On the cpu device:
the all-reduce in shared memory. Sizes are those of a token of a small and of a large model, and of 16 and of 64 tokens
of Llama 3 8B. Cases with more than two GPUs say how many; the goals are for two.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator

from launchopt.command import Dtype, Op
from launchopt.devices import find_device
from launchopt.devices.peers.segment import PeerSegment, Team
from launchopt.errors import DeviceError
from launchopt.kernels.shared_peers import MOST_RANKS
from runner.bench.figures import Figure
from runner.bench.peers import with_peer, with_peers

SIZES = (4 << 10, 16 << 10, 128 << 10, 512 << 10)  # bytes of bf16
GOALS_US = {4 << 10: 3.0, 16 << 10: 3.2, 512 << 10: 7.0}  # of our own kernel, captured, between two GPUs
RANKS, CALLS = 2, 200  # ranks of the cpu device, and fewest GPUs
OWN = "one-shot, captured"
SPIN_US, SLEEP_US = 200.0, 50.0
Times = dict[str, list[float]]  # us by case


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield the time of an all-reduce of each size. On GPUs, needs two of them."""
    times = _on_gpus(repeats) if device == "cuda" else _on_cpu(repeats)
    goals = {_case(size, OWN, RANKS): goal for size, goal in GOALS_US.items()}
    for case, samples in times.items():
        yield Figure("collectives", case, "us", samples, goals.get(case))


def _case(size: int, how: str, ranks: int) -> str:
    return f"{size >> 10} KB{f' on {ranks} GPUs' if ranks > RANKS else ''}, {how}"


def _members(segment: PeerSegment, ranks: int) -> list[Team]:
    return [Team(segment.name, rank, ranks, SPIN_US, SLEEP_US) for rank in range(ranks)]


def _on_cpu(repeats: int) -> Times:
    with PeerSegment.create(RANKS, 2 * max(SIZES)) as segment:
        members = _members(segment, RANKS)
        return with_peer(host_rank, (members[1], repeats), lambda: host_times(members[0], repeats))


def host_rank(team: Team, repeats: int) -> None:
    """Be the other rank on the cpu device."""
    host_times(team, repeats)


def gpu_rank(team: Team, nccl: tuple[int, ...] | None, port: int, repeats: int) -> None:
    """Be another rank, on its GPU."""
    gpu_times(team, nccl, port, repeats)


def host_times(team: Team, repeats: int) -> Times:
    """Return the times of a rank on the cpu device."""
    from launchopt.devices.peers.host import HostPeers

    peers, found = HostPeers(team, Dtype.bf16, max(SIZES)), defaultdict[str, list[float]](list)
    for size in SIZES:
        elements = size // Dtype.bf16.itemsize
        operands = [(peers.own[None, None, :elements], peers.own[None, None, elements : 2 * elements])]
        for _ in range(repeats):
            peers.exchange(Op.ALL_REDUCE, operands)  # so that both ranks start together
            start_ns = time.monotonic_ns()
            for _ in range(CALLS):
                peers.exchange(Op.ALL_REDUCE, operands)
            found[_case(size, "shared memory", team.size)].append((time.monotonic_ns() - start_ns) / 1e3 / CALLS)
    del operands
    peers.close()
    return found


def visible_ranks() -> int:
    """Return the number of GPUs that CUDA sees, at most as many as can split a model."""
    for rank in range(1, MOST_RANKS):
        try:
            find_device("cuda", rank)
        except DeviceError:
            return rank
    return MOST_RANKS


def _on_gpus(repeats: int) -> Times:
    if (ranks := visible_ranks()) < RANKS:
        return {}
    from launchopt.devices.peers.rivals import unique_id

    with PeerSegment.create(ranks, 0) as segment, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        free.close()
        first, *others = _members(segment, ranks)
        nccl = unique_id()
        given = [(member, nccl, port, repeats) for member in others]
        return with_peers(gpu_rank, given, lambda: gpu_times(first, nccl, port, repeats))


def gpu_times(team: Team, nccl: tuple[int, ...] | None, port: int, repeats: int) -> Times:
    """Return the times of a rank, which has the GPU of its number."""
    from launchopt.devices.peers.rivals import Rivals

    rivals, found = Rivals(team, team.rank, max(SIZES), nccl, port), defaultdict[str, list[float]](list)
    for size in SIZES:
        for _ in range(repeats):
            for how, us in rivals.times_us(size):
                found[_case(size, how, team.size)].append(us)
    rivals.close()
    return found
