"""One rank of a model that several GPUs of a host split: its memory, which the others read, and theirs.

Activations, flags and lines are one allocation. Its handle (CUDA IPC) goes through the shared memory of the team, and
each rank maps the allocations of all others. Kernels then read and write them through the GPUs' links.
"""

from __future__ import annotations

import contextlib

import cupy
import numpy as np

from launchopt.devices.arenas import STORAGE, Arenas
from launchopt.devices.peers.launches import peers_struct, signals_bytes
from launchopt.devices.peers.nccl_library import Communicator
from launchopt.devices.peers.segment import Collectives, PeerSegment, PeerWord, Phase, Team, meet
from launchopt.devices.shares import WeightShares, sources_of
from launchopt.errors import ConfigError, Interrupted, RunError
from launchopt.kernels.shared_peers import ALL_REDUCE_BLOCKS, AllReduceAccount
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.operands import aligned_bytes
from launchopt.types import Array

HANDLE_WORDS = slice(PeerWord.HANDLE, PeerWord.HANDLE + 8)  # an IPC handle has 64 bytes


class CudaPeers:
    """Memory of a rank that all ranks read, of `size` bytes, and that of the others.

    index: number of the GPU, as CUDA counts them. `address` is that of struct Peers, for launches of all-reduces.
    """

    def __init__(self, team: Team, index: int, size: int) -> None:
        self._team, self._segment = team, PeerSegment.attach(team.segment, team.size, 0)
        self._index, self._size, self._mapped = index, size, list[int]()
        self._signals_at, signals = aligned_bytes(size), signals_bytes(team.size)
        # cudaMalloc itself: a handle names a whole allocation, and CuPy's pool would give a part of one.
        self._memory = cupy.cuda.Memory(self._signals_at + signals)
        self._at(int(self._memory.ptr), self._signals_at + signals).fill(0)
        self._generations = cupy.zeros(ALL_REDUCE_BLOCKS, np.uint64)
        self._account = cupy.zeros(len(AllReduceAccount), np.uint64)
        cupy.cuda.runtime.deviceSynchronize()  # all is 0 before another rank may write flags and lines
        self._bases = self._map_all()
        places = [base + self._signals_at for base in self._bases]
        own = int(self._generations.data.ptr), int(self._account.data.ptr)
        self._struct = cupy.asarray(peers_struct(team.rank, self._bases, places, own).view(np.int64))
        self.address = int(self._struct.data.ptr)
        cupy.cuda.runtime.deviceSynchronize()  # streams of launches do not wait for the struct to be copied

    def memory(self, rank: int) -> Array:
        """Return the memory of a rank, uint8 [size], as this GPU sees it."""
        return self._at(self._bases[rank], self._size)

    def _at(self, address: int, size: int) -> Array:
        memory = cupy.cuda.UnownedMemory(address, size, self._memory, self._index)
        return cupy.ndarray((size,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def _map_all(self) -> list[int]:
        """Return the address of the allocation of every rank, as this GPU sees it."""
        runtime, team, row = cupy.cuda.runtime, self._team, self._segment.words[self._team.rank + 1]
        row[HANDLE_WORDS] = np.frombuffer(runtime.ipcGetMemHandle(int(self._memory.ptr)), np.uint64)
        row[PeerWord.DEVICE] = self._index
        meet(self._segment, team, Phase.ALLOCATED)
        found = []
        for rank in range(team.size):
            other = self._segment.words[rank + 1]
            if rank == team.rank:
                found.append(int(self._memory.ptr))
                continue
            index = int(other[PeerWord.DEVICE])
            if not runtime.deviceCanAccessPeer(self._index, index):
                why = f"GPU {self._index} cannot read the memory of GPU {index}: name GPUs with peer access (NVLink)"
                raise ConfigError("device.gpus", f"{self._index},{index}", why)
            found.append(int(runtime.ipcOpenMemHandle(other[HANDLE_WORDS].tobytes())))
            self._mapped.append(found[-1])
        return found

    def communicator(self) -> Communicator:
        """Return a new communicator of NCCL of all ranks."""
        return Communicator(self._team, self._segment)

    def reset(self) -> None:
        """Begin a run: set the account to 0."""
        self._account.fill(0)
        cupy.cuda.runtime.deviceSynchronize()

    def collectives(self) -> Collectives:
        """Return the all-reduces of this run; RunError if one of them gave up waiting."""
        words = self._account.get().tolist()
        if words[AllReduceAccount.GAVE_UP]:
            raise RunError("an all-reduce waited too long for another GPU")
        return Collectives(*words[: AllReduceAccount.GAVE_UP])

    def close(self) -> None:
        """Unmap the memory of the other ranks, and free this rank's when they have unmapped it."""
        with contextlib.suppress(Interrupted, cupy.cuda.runtime.CUDARuntimeError):  # a lost GPU refuses every call
            for address in self._mapped:
                cupy.cuda.runtime.ipcCloseMemHandle(address)
            meet(self._segment, self._team, Phase.UNMAPPED)
        self._segment.release()


class CudaSplit:
    """Allocates the arenas of a rank, and copies its weights. index: as in `CudaPeers`."""

    def __init__(self, stream: ChainStream, seed: int, team: Team, index: int) -> None:
        arena, storage = stream.activations, STORAGE[stream.dtype]
        self._peers = CudaPeers(team, index, stream.arenas[arena] * arena.slot_bytes)
        own, *others = (
            self._peers.memory(rank).view(storage)
            for rank in (team.rank, *(each for each in range(team.size) if each != team.rank))
        )
        self.arenas = Arenas(cupy, stream.arenas, stream.fills, sources_of(stream, own))
        self.arenas.peers, self.arenas.rank = others, team.rank
        self.shares = WeightShares(stream, cupy, team.rank, seed)
        self.shares.copy_to(self.arenas)
        self.nccl = self._peers.communicator() if team.nccl else None
        if self.nccl:
            self.nccl.load(int(own.data.ptr), stream.dtype, own.size, cupy.cuda.runtime.deviceSynchronize)

    def versions(self) -> dict[str, str]:
        """Return the version of NCCL, if it adds the parts."""
        return {"nccl": self.nccl.version} if self.nccl else {}

    @property
    def updates_graphs(self) -> bool:
        """Whether graphs of its launches may be updated: not those of NCCL (`Graphs`)."""
        return self.nccl is None

    @property
    def address(self) -> int:
        """The address of struct Peers, for launches of all-reduces."""
        return self._peers.address

    def reset(self) -> None:
        """Begin a run: set the counts of all-reduces to 0."""
        self._peers.reset()

    def collectives(self) -> Collectives | None:
        """Return the all-reduces of this run; None if NCCL made them, which counts none."""
        found = self._peers.collectives()
        return None if self.nccl else found

    def close(self) -> None:
        """Detach from the memory of the other ranks."""
        self.arenas.peers = ()
        if self.nccl:
            self.nccl.close()
        self._peers.close()
