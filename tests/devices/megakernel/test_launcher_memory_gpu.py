"""mode=megakernel on a GPU: after a step, memory equals NumPy's interpretation of the list, and is reproducible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.megakernel.instruction_interpreter import Memory
from support.megakernel.instruction_interpreter import run as interpret
from support.megakernel.megakernel_runs import (
    SOME,
    TOKENS,
    UNITS,
    before_step,
    cases,
    finish,
    opened,
    run_of,
    stream_of,
)
from support.steps.placed import assert_same
from support.steps.step_runs import StepRun

from launchopt.batching.batch import StepBatch
from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import Instructions, Word


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened(request.param) as made:
        yield made


def arrays_of(device: Any) -> list[Any]:
    """Return the arrays of operands and of the sequences' state."""
    state = device.state_of_sequences
    return [*device.arenas.arrays.values(), *([] if state is None else [state.positions, state.table])]


def on_host(array: Any) -> NDArray[Any]:
    copy: NDArray[Any] = array.get() if hasattr(array, "get") else array.copy()
    return copy


def address_of(array: Any) -> int:
    return int(array.data.ptr if hasattr(array, "get") else array.ctypes.data)


def put_back(arrays: list[Any], kept: list[NDArray[Any]]) -> None:
    for array, own in zip(arrays, kept, strict=True):
        if hasattr(array, "set"):
            array.set(own)
        else:
            array[...] = own


def one_launch(run: StepRun, batch: StepBatch) -> list[NDArray[Any]]:
    """Run the step as one launch; return memory after it."""
    before = run.recorder.launch_count
    run.prepared.submit_steps(batch, 0)
    run.device.synchronize()
    assert run.recorder.launch_count == before + 1
    return [on_host(array) for array in arrays_of(run.device)]


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def forget_norms(
    instructions: Instructions, itemsize: int, start: int, expected: NDArray[np.uint8], kept: NDArray[np.uint8]
) -> None:
    """Set the outputs of fused norms, which the kernel does not store, back to their old bytes.

    start: the address of the array.
    """
    for row in instructions[(instructions[:, Word.OP] == Op.NORM) & (instructions[:, Word.FUSED] > 0)]:
        for request in range(int(row[Word.REQUESTS])):
            at = int(row[Word.C] + request * row[Word.STRIDE_C]) - start
            if 0 <= at < len(kept):
                own = slice(at, at + int(row[Word.M]) * itemsize)
                expected[own] = kept[own]


@cases(SOME)
def test_memory_equals_that_of_the_interpreter(
    device: Any, name: str, requests: int, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has one layer, since differences add up. The same step again gives equal bytes.

    Memory that the list does not write must stay NaN. The launch feeds back nothing.
    """
    run = run_of(device, stream_of(name, [(0, TOKENS)] * requests, dtype, layers=1))
    batch = before_step(run, 2)
    monkeypatch.setattr(device, "stage_feedback", lambda batch: 0)
    prepared: Any = run.prepared
    instructions = prepared.steps._compiler.compile(batch)
    arrays = arrays_of(device)
    kept, expected = ([on_host(array) for array in arrays] for _ in range(2))
    memory = {address_of(array): copy for array, copy in zip(arrays, expected, strict=True)}
    interpret(instructions, Memory(memory, device.work.norm_epsilon), dtype)
    if hasattr(arrays[0], "get"):  # a GPU's arrays: only the real kernel omits the outputs of fused norms
        for array, copy, own in zip(arrays, expected, kept, strict=True):
            forget_norms(instructions, dtype.itemsize, address_of(array), bytes_of(copy), bytes_of(own))
    assert any(now.tobytes() != old.tobytes() for now, old in zip(expected, kept, strict=True)), (
        "the step changes memory"
    )
    found = one_launch(run, batch)
    for now, then in zip(found, expected, strict=True):
        assert_same(now.reshape(-1), then.reshape(-1), dtype, UNITS[dtype])
    for _ in range(5):
        put_back(arrays, kept)
        device.synchronize()
        again = one_launch(run, batch)
        assert [now.tobytes() for now in again] == [each.tobytes() for each in found]
    finish(run)
