"""A device's operands as PyTorch tensors, without a copy, and PyTorch on the device's own stream.

In: a device with a stream of commands open. Out: `TorchArenas`, which knows its arenas (NumPy's by `from_numpy`, CuPy's
by DLPack; bf16, stored as uint16, is looked at as bfloat16), gives views of them, and makes PyTorch compute where and
how this project does: on the device's stream, in full fp32, with partial sums never in half precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import dlpack

from launchopt.command import Dtype
from launchopt.devices.arenas import SeqState
from launchopt.devices.base import Device, is_gpu, is_host
from launchopt.workloads.stream import ArenaKey, Operand

Tensor = Any  # torch.Tensor; a default install has no PyTorch, and its types
DTYPES = {Dtype.fp32: torch.float32, Dtype.fp16: torch.float16, Dtype.bf16: torch.bfloat16}


def as_tensor(array: Any) -> Tensor:
    """An array of NumPy's or CuPy's, the same memory; one of uint16 as int16."""
    if array.dtype == np.uint16:
        array = array.view(np.int16)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def apart(tensor: Tensor) -> Tensor:
    """The same elements, as a tensor that shares no storage with another.

    A compiler that saw tensors share one would take every write to one as a write to all.
    """
    return dlpack.from_dlpack(dlpack.to_dlpack(tensor))


class TorchArenas:
    """The operands of the stream that a device has open."""

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
        """From now on this thread's operators run on the device's stream, and record nothing for gradients."""
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
        """Where requests stand, if that matters to any command."""
        if self._gpu:
            return self._gpu.state_of_sequences
        return self._host.compute.state if self._host else None

    def strided(self, arena: ArenaKey, sizes: Sequence[int], strides: Sequence[int], first: int) -> Tensor:
        """Elements of an arena from `first` on."""
        return self._flat[arena].as_strided(sizes, strides, first)

    def words(self, arena: ArenaKey, sizes: Sequence[int], strides: Sequence[int], first: int) -> Tensor:
        """The same of the arena as int32."""
        return self._flat[arena].view(torch.int32).as_strided(sizes, strides, first)

    def slots(self, operand: Operand, rows: int, cols: int) -> Tensor:
        """Every slot of an operand, [slots, rows, cols]; slots may overlap."""
        flat, pitch = self._flat[operand.arena], operand.slot_bytes // self.work.dtype.itemsize
        last = (rows - 1) * operand.row_elements + cols  # elements of one, without what follows its last row
        count = 1 + (flat.numel() - last) // pitch
        return flat.as_strided((count, rows, cols), (pitch, operand.row_elements, 1))

    def zero(self, arena: ArenaKey) -> None:
        """Write zeros to all of an arena."""
        self._flat[arena].zero_()

    def synchronize(self) -> None:
        """Wait for this thread's operators."""
        if self.is_cuda:
            torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        """Let go of the operands, and give PyTorch's memory back to the device."""
        self._flat.clear()
        if self.is_cuda:
            torch.cuda.empty_cache()
