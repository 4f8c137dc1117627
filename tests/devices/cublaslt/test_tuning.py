"""Algorithms are timed on operands of the run, and on no other memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda.fake_cuda import fake_cuda
from support.steps.step_runs import SEED

from launchopt.command import Dtype
from launchopt.devices.cublaslt.launch_tables import BASES
from launchopt.recording.recorder import Recorder
from launchopt.workloads.gemv import gemv


def pointers_at(address: int, count: int) -> NDArray[np.int64]:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)).copy()


@pytest.mark.parametrize("replicas", [1, 3, 20])
def test_a_batch_of_more_commands_than_there_are_weights_takes_them_again(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, stream = 8, gemv(4, 1, 8, 40, Dtype.fp32, replicas)
    with fake_cuda() as device:
        from launchopt.devices.cublaslt import tuning as lt_tuning

        tried: list[NDArray[np.int64]] = []

        def timed(device: Any, gemm: Any, operands: list[Any]) -> int:
            tried.extend(pointers_at(address, size) for address in operands[0])
            return 0

        monkeypatch.setattr(lt_tuning, "_timed", timed)
        device.open(stream, Recorder(stream.commands), seed=SEED)
        (shape,) = stream.shapes
        lt_tuning.by_pointers(device, 0, size, size)
        for operand, base, addresses in zip(stream.operands(shape), device.base.shapes[0, BASES], tried, strict=True):
            slots, rest = np.divmod(addresses - base, operand.slot_bytes)
            assert not rest.any()
            assert slots.min() >= 0
            assert slots.max() < stream.arenas[operand.arena]
            assert len(set(slots.tolist())) == min(size, stream.arenas[operand.arena])
        device.close()


@pytest.mark.parametrize("replicas", [1, 3, 20])
def test_each_operand_of_a_timed_batch_lies_within_one_allocation(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in place reads the arenas; a packed one may be longer than these, and reads the scratch memory."""
    size, stream = 8, gemv(4, 1, 8, 40, Dtype.fp32, replicas)
    with fake_cuda() as device:
        from launchopt.devices.cublaslt import tuning as lt_tuning

        tried: list[tuple[Any, list[Any]]] = []

        def timed(device: Any, gemm: Any, operands: list[Any]) -> int:
            tried.append((gemm, operands))
            return 0

        monkeypatch.setattr(lt_tuning, "_timed", timed)
        device.open(stream, Recorder(stream.commands), seed=SEED)
        (shape,) = stream.shapes
        device.planner.plan(shape, range(1, size + 1), scratch=True)
        memory = [*device.arenas.arrays.values(), *device._packing._scratch]
        ends = [(int(array.data.ptr), int(array.data.ptr) + array.nbytes) for array in memory]
        operands = stream.operands(shape)
        for gemm, sets in tried:
            for addresses in sets:
                for address, stride, operand in zip(addresses, gemm.stride_bytes, operands, strict=True):
                    last = address + (gemm.batch - 1) * stride + operand.slot_bytes
                    assert any(start <= address and last <= end for start, end in ends)
        assert {gemm.batch for gemm, _ in tried} >= {1, size}, "the packed batch of most commands was timed"
        device.close()
