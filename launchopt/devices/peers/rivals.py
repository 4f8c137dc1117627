"""Times of an all-reduce between GPUs: our own kernel, NCCL, and PyTorch's symmetric memory, captured and eager.

Every rank is a process, and calls the same methods in the same order. A captured time is that of a graph of LAUNCHES
all-reduces between two events, divided by their number; an untimed all-reduce before it lets all ranks start together.
An eager time is that of the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy
import numpy as np

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cublaslt.kernel_plans import KernelLaunch, KernelPlans
from launchopt.devices.peers.cuda import CudaPeers
from launchopt.devices.peers.launches import all_reduce_launch
from launchopt.devices.peers.segment import Team
from launchopt.types import Table

LAUNCHES, WARM_UPS = 100, 5
NCCL_BFLOAT16, NCCL_SUM = 9, 0  # ncclDataType_t, ncclRedOp_t
UniqueId = tuple[int, ...]  # of a group of NCCL
Launch = Callable[[], object]


def unique_id() -> UniqueId | None:
    """Return what all ranks of a group of NCCL need; None if CuPy has no NCCL."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        return None
    found: UniqueId | None = nccl.get_unique_id() if getattr(nccl, "available", True) else None
    return found


class Rivals:
    """The all-reduces of one rank, of up to `most_bytes` of bf16.

    nccl: what `unique_id` returned to one rank. port: a free port of this host.
    """

    def __init__(self, team: Team, index: int, most_bytes: int, nccl: UniqueId | None, port: int) -> None:
        cupy.cuda.Device(index).use()
        self._team, self._index, self._most, self._port = team, index, most_bytes, port
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._peers = CudaPeers(team, index, 2 * most_bytes)
        self._kernels = KernelPlans(Dtype.bf16)
        self._peers.memory(team.rank).fill(0)
        self._nccl = None
        if nccl is not None:
            from cupy.cuda import nccl as library

            self._nccl = library.NcclCommunicator(team.size, nccl, team.rank)

    def times_us(self, size: int) -> Iterator[tuple[str, float]]:
        """Yield the name and the time of each way to add `size` bytes."""
        own = self._own(size)
        yield "one-shot, captured", self._captured_us(own)
        yield "one-shot, eager", self._eager_us(own)
        if self._nccl is not None:
            nccl = self._of_nccl(size)
            yield "NCCL, captured", self._captured_us(nccl)
            yield "NCCL, eager", self._eager_us(nccl)
        yield from self._symmetric_us(size)

    def _own(self, size: int) -> Launch:
        elements = size // Dtype.bf16.itemsize
        at = int(self._peers.memory(self._team.rank).data.ptr)
        shape = ShapeKey(elements, 1, elements, Dtype.bf16, Op.ALL_REDUCE)
        made = all_reduce_launch(shape, 1, (0, elements, elements), (0, 0, 0), self._peers.address)
        parameters: list[np.generic | Table] = [*map(np.int64, (at, at, at + self._most, 0)), made.words]
        function = self._kernels.function("all_reduce", "ALL_REDUCE")
        launch = KernelLaunch(function, made.block[0], parameters, self._stream)
        return lambda: launch(made.grid[0], at)

    def _of_nccl(self, size: int) -> Launch:
        at, communicator = int(self._peers.memory(self._team.rank).data.ptr), self._nccl
        assert communicator is not None
        arguments = at, at + self._most, size // 2, NCCL_BFLOAT16, NCCL_SUM, self._stream.ptr
        return lambda: communicator.allReduce(*arguments)

    def _warm(self, launch: Launch) -> None:
        for _ in range(WARM_UPS):
            launch()
        self._stream.synchronize()

    def _captured_us(self, launch: Launch) -> float:
        self._warm(launch)
        with self._stream:
            self._stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            for _ in range(LAUNCHES):
                launch()
            graph = self._stream.end_capture()
            graph.launch(self._stream)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        launch()
        start.record(self._stream)
        graph.launch(self._stream)
        end.record(self._stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3 / LAUNCHES

    def _eager_us(self, launch: Launch) -> float:
        self._warm(launch)
        start_ns = time.monotonic_ns()
        for _ in range(LAUNCHES):
            launch()
        self._stream.synchronize()
        return (time.monotonic_ns() - start_ns) / 1e3 / LAUNCHES

    def _symmetric_us(self, size: int) -> Iterator[tuple[str, float]]:
        """Yield the times of PyTorch's symmetric memory; nothing without PyTorch."""
        try:
            import torch
            import torch.distributed as dist
            import torch.distributed._symmetric_memory as memory
        except ImportError:
            return
        torch.cuda.set_device(self._index)
        if not dist.is_initialized():
            address = f"tcp://127.0.0.1:{self._port}"
            dist.init_process_group("nccl", init_method=address, rank=self._team.rank, world_size=self._team.size)
        group = dist.group.WORLD.group_name
        values: Any = memory.empty(size // 2, device="cuda", dtype=torch.bfloat16).fill_(0)
        memory.rendezvous(values, group)
        added = torch.ops.symm_mem
        for name, add in (("one-shot", added.one_shot_all_reduce), ("two-shot", added.two_shot_all_reduce_)):
            for how, us in _torch_us(partial(add, values, "sum", group)):
                yield f"symmetric memory {name}, {how}", us

    def close(self) -> None:
        """Detach from the other ranks."""
        self._peers.close()


def _torch_us(launch: Launch) -> Iterator[tuple[str, float]]:
    """Yield the times of a launch on PyTorch's current stream."""
    import torch

    for _ in range(WARM_UPS):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    launch()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    yield "captured", start.elapsed_time(end) * 1e3 / LAUNCHES
    start_ns = time.monotonic_ns()
    for _ in range(LAUNCHES):
        launch()
    torch.cuda.synchronize()
    yield "eager", (time.monotonic_ns() - start_ns) / 1e3 / LAUNCHES
