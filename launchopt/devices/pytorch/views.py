"""PyTorch tensors over a device's operands, without a copy, and the settings with which PyTorch computes.

NumPy arrays become tensors by `from_numpy`, CuPy arrays by DLPack. bf16, which is stored as uint16, is viewed as
bfloat16. PyTorch computes like the other modes: on the device's main CUDA stream, in fp32 without TF32, and with
partial sums that are never in half precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor as Tensor
from torch.utils import dlpack

from launchopt.command import Dtype
from launchopt.devices.arenas import SeqState
from launchopt.devices.base import Device, is_gpu, is_host
from launchopt.streams.operands import ArenaKey, Operand

PRECISION = ("no TF32", "no reduced-precision reduction")  # see `TorchArenas.use`
DTYPES = {Dtype.fp32: torch.float32, Dtype.fp16: torch.float16, Dtype.bf16: torch.bfloat16}


def as_tensor(array: Any) -> Tensor:
    """Return a NumPy or CuPy array as a tensor over the same memory; uint16 becomes int16."""
    if array.dtype == np.uint16:
        array = array.view(np.int16)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def apart(tensor: Tensor) -> Tensor:
    """Return a tensor over the same memory whose storage object is its own.

    A compiler takes every write to a tensor as a write to all tensors that share its storage object.
    """
    return dlpack.from_dlpack(dlpack.to_dlpack(tensor))


def library_of(settings: Sequence[str]) -> str:
    """Return the versions of PyTorch and Triton, and the settings of a mode, as in the column `library`."""
    found = [f"torch {torch.__version__}"]
    if find_spec("triton") is not None:
        found.append(f"triton {version('triton')}")
    return f"{', '.join(found)}: {', '.join([*settings, *PRECISION])}"


class TorchArenas:
    """The operands of the workload stream that a device has open, as tensors."""

    def __init__(self, device: Device) -> None:
        self._gpu = device if is_gpu(device) else None
        self._host = device if is_host(device) else None
        self.is_cuda = self._gpu is not None
        self.work = device.work
        self.device = torch.device("cuda", device.info.index) if self.is_cuda else torch.device("cpu")
        self.dtype = DTYPES[self.work.dtype]
        self.use()
        self._flat = {
            arena: as_tensor(array).view(-1).view(self.dtype) for arena, array in device.arenas.arrays.items()
        }

    def use(self) -> None:
        """Let this thread's operators run on the device's main CUDA stream, without gradients."""
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("highest")
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False
        if self._gpu:
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(torch.cuda.ExternalStream(self._gpu.stream.ptr, self.device))
        elif self._host and torch.get_num_threads() != self._host.threads:
            torch.set_num_threads(self._host.threads)

    @property
    def state(self) -> SeqState | None:
        """Positions and pages of the requests; None without attention."""
        if self._gpu:
            return self._gpu.state_of_sequences
        return self._host.compute.state if self._host else None

    def strided(self, arena: ArenaKey, sizes: Sequence[int], strides: Sequence[int], first: int) -> Tensor:
        """Return a view of an arena from element `first` on. strides: in elements."""
        return self._flat[arena].as_strided(sizes, strides, first)

    def words(self, arena: ArenaKey, sizes: Sequence[int], strides: Sequence[int], first: int) -> Tensor:
        """Return an int32 view of an arena from word `first` on. strides: in words."""
        return self._flat[arena].view(torch.int32).as_strided(sizes, strides, first)

    def slots(self, operand: Operand, rows: int, cols: int) -> Tensor:
        """Return a view of every slot of an operand, [slots, rows, cols]; slots may overlap."""
        flat, pitch = self._flat[operand.arena], operand.slot_bytes // self.work.dtype.itemsize
        last = (rows - 1) * operand.row_elements + cols  # elements of a slot up to the end of its last row
        count = 1 + (flat.numel() - last) // pitch
        return flat.as_strided((count, rows, cols), (pitch, operand.row_elements, 1))

    def zero(self, arena: ArenaKey) -> None:
        """Fill an arena with zeros."""
        self._flat[arena].zero_()

    def synchronize(self) -> None:
        """Wait for this thread's operators."""
        if self.is_cuda:
            torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        """Release the operands and PyTorch's memory on the device, and leave the device's CUDA stream."""
        self._flat.clear()
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.set_stream(torch.cuda.default_stream(self.device))
