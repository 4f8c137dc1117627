"""NCCL's library: where it is, and a communicator of the GPUs that split a model. This module compiles nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from launchopt.command import Dtype
from launchopt.devices.peers.segment import PeerSegment, PeerWord, Phase, Team, meet
from launchopt.errors import ConfigError, RunError

SUM = 0  # ncclRedOp_t
TYPES = {Dtype.fp16: 6, Dtype.fp32: 7, Dtype.bf16: 9}  # ncclDataType_t
ID_BYTES = 128  # of an ncclUniqueId
ID_WORDS = slice(PeerWord.UNIQUE_ID, PeerWord.UNIQUE_ID + ID_BYTES // 8)
PACKAGE = "pip install nvidia-nccl-cu13 (CUDA 12: nvidia-nccl-cu12)"


class UniqueId(ctypes.Structure):
    """ncclUniqueId of nccl.h, which is passed by value."""

    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


def library_path() -> str | None:
    """Return the path or the name of NCCL's library: that of its package, else that of the system; None without one."""
    try:
        found = find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        found = None
    folders = list(found.submodule_search_locations or ()) if found else []
    paths = [path for folder in folders for path in sorted(Path(folder, "lib").glob("libnccl.so.*"))]
    return str(paths[0]) if paths else find_library("nccl")


def require() -> str:
    """Return the same; raise ConfigError without NCCL."""
    path = library_path()
    if path is None:
        raise ConfigError("parallel.all_reduce", "nccl", f"needs NCCL, which is not installed: {PACKAGE}")
    return path


class Communicator:
    """The communicator of one rank. segment: memory through which the ranks find each other."""

    def __init__(self, team: Team, segment: PeerSegment) -> None:
        self._library = ctypes.CDLL(require())
        unique, handle = UniqueId(), ctypes.c_void_p()
        if team.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(unique))
            segment.words[1, ID_WORDS] = np.frombuffer(bytes(unique), np.uint64)
        meet(segment, team, Phase.NAMED)
        unique = UniqueId.from_buffer_copy(segment.words[1, ID_WORDS].tobytes())
        self._call("ncclCommInitRank", ctypes.byref(handle), team.size, unique, team.rank)
        self.handle = int(handle.value or 0)

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function; raise RunError if it fails."""
        if status := getattr(self._library, name)(*arguments):
            raise RunError(f"{name} failed with ncclResult_t {status}")

    def address(self, name: str) -> int:
        """Return the address of a function of the library."""
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address

    @property
    def version(self) -> str:
        """The version of the library, such as 2.27.5."""
        code = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(code))
        return f"{code.value // 10_000}.{code.value // 100 % 100}.{code.value % 100}"

    def load(self, address: int, dtype: Dtype, most_elements: int, synchronize: Callable[[], object]) -> None:
        """Add in place with powers of two of elements, so that no run or capture connects the GPUs or loads a kernel.

        address: memory of the GPU for `most_elements`. Every rank calls this.
        """
        place, handle, count = ctypes.c_void_p(address), ctypes.c_void_p(self.handle), 1
        while count <= most_elements:
            self._call("ncclAllReduce", place, place, ctypes.c_size_t(count), TYPES[dtype], SUM, handle, None)
            synchronize()
            count *= 2

    def close(self) -> None:
        """Leave the group. Graphs with its launches must be destroyed before."""
        self._call("ncclCommDestroy", ctypes.c_void_p(self.handle))
