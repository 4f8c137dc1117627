"""The memory of a GPU for one workload stream: operands, cuBLASLt's workspace, and the state of sequences."""

from __future__ import annotations

from typing import NamedTuple

import cupy
import numpy as np

from launchopt.devices.arenas import Arenas, SeqState, Sources
from launchopt.devices.base import DeviceInfo
from launchopt.devices.cublaslt.plans import WORKSPACE_LIMIT_BYTES
from launchopt.devices.cuda.errors import no_memory
from launchopt.devices.peers.cuda import CudaSplit
from launchopt.devices.peers.segment import Team
from launchopt.streams.chains.chain import Stream, chain_of
from launchopt.types import Array


class StreamMemory(NamedTuple):
    """The memory that a device allocates when it opens a workload stream."""

    split: CudaSplit | None  # the device's part of a model that several devices split; None: it has a whole model
    arenas: Arenas
    workspace: Array  # for cuBLASLt, uint8 [WORKSPACE_LIMIT_BYTES]
    sequences: SeqState | None  # positions and KV pages; None without attention


def open_memory(stream: Stream, seed: int, team: Team | None, info: DeviceInfo) -> StreamMemory:
    """Allocate the memory of a stream and fill the arenas; ArenaMemoryError if the GPU has too little free memory."""
    sequences: SeqState | None = None
    try:
        split = None if team is None else CudaSplit(chain_of(stream), seed, team, info.index)
        arenas = split.arenas if split else Arenas(cupy, stream.arenas, stream.fills, Sources(fixed=stream.fixed))
        workspace = cupy.empty(WORKSPACE_LIMIT_BYTES, np.uint8)
        arenas.fill(seed)
        if stream.attention is not None:
            chain = chain_of(stream)
            sequences = SeqState(cupy, stream.attention, stream.requests, chain.seed, chain.prefixes)
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise no_memory(error, f"while operands were put into {info.memory_name}") from None
    return StreamMemory(split, arenas, workspace, sequences)
