"""Steps of bias, ReLU and scale in one Triton launch: rounded as three launches round, on a GPU to the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from program_interpreter import Interpreter, records_of, steps_of

from launchopt.arrivals.requests import Requests
from launchopt.batcher import FlushReason
from launchopt.command import Dtype, as_words
from launchopt.recorder import Recorder, Strategy
from launchopt.step_batcher import StepBatch
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.program import elementwise_program

HOPPER = 90
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module", autouse=True)
def triton() -> Any:
    """Triton, where it and CuPy are installed; kernels compile without a GPU."""
    pytest.importorskip("cupy")
    return pytest.importorskip("triton")


@in_each_dtype
def test_a_product_and_a_sum_are_rounded_apart(dtype: Dtype) -> None:
    """The scale of one layer and the bias of the next would make a fused multiply-add, which rounds once."""
    from launchopt.devices.triton_elementwise import step_variant
    from launchopt.devices.triton_plans import compile_variant

    ptx = compile_variant(step_variant(4096, (4096, 4096, 4096), dtype, 9), HOPPER).asm["ptx"]
    assert "fma" not in ptx
    assert "mul" in ptx


def test_a_grid_has_blocks_for_every_column() -> None:
    from launchopt.devices.triton_elementwise import step_grid

    assert step_grid(512, 1, 3) == (1, 3, 1)
    assert step_grid(513, 4, 1) == (8, 1, 1)


@pytest.mark.gpu
@in_each_dtype
@pytest.mark.parametrize(("features", "layers"), [(24, 1), (4096, 8), (1000, 19)])
@pytest.mark.parametrize("prompt", [0, 5])
def test_outputs_are_those_of_one_command_after_another(dtype: Dtype, features: int, layers: int, prompt: int) -> None:
    from launchopt.devices.cuda import CudaDevice
    from launchopt.modes.fused_triton import FusedTriton

    requests = 3
    asked = Requests(np.zeros(requests, np.int64), np.full(requests, prompt), np.full(requests, 2))
    stream = ChainStream(elementwise_program(features), layers, asked, dtype, 2)
    device, recorder, mode = CudaDevice(), Recorder(stream.commands), FusedTriton()
    device.open(stream, recorder, seed=1)
    mode.prepare(device, dict.fromkeys(stream.shapes, requests))
    device.warm_up()
    device.arenas.poison()
    straight = Interpreter(stream)
    for arena, array in straight.arenas.arrays.items():
        array[:] = device.arenas.arrays[arena].get()
    device.use_mode("")
    device.start(1, mode)
    mode.start()
    device.begin()
    steps = [records_of(stream, request, 0) for request in range(requests)]
    words = as_words(np.ascontiguousarray(np.stack(steps, axis=1)).reshape(-1))
    assert steps_of(stream, 0)[0].n == max(1, prompt)
    mode.submit(StepBatch(words, FlushReason.full, requests, 3 * layers), 0)
    device.finish()
    for records in steps:
        for record in records:
            straight.execute(record)
    for arena, array in straight.arenas.arrays.items():
        found = device.arenas.arrays[arena].get()
        differ = found.view(np.uint8) != array.view(np.uint8)
        assert not differ.any(), f"{arena}: {differ.sum()} bytes differ, the first at {np.argmax(differ)}"
    ((_, rows),) = recorder.launch_chunks()
    assert rows[:, 3].tolist() == [Strategy.fused]
    assert recorder.launch_calls == 2  # with the upload
    device.close()
