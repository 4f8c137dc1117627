"""A launch of whole steps through tables of pointers, on a driver made of NumPy: every operand is where it says."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from launching import recorded
from numpy.typing import NDArray
from program_interpreter import Interpreter, records_of, steps_of

from launchopt import recorder as rec
from launchopt.arrivals.requests import Requests
from launchopt.batcher import FlushReason
from launchopt.command import Dtype, Op, as_words
from launchopt.devices import lt_launch as lt
from launchopt.recorder import Recorder, Strategy
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.program import elementwise_program

pytest.importorskip("cupy")

FEATURES, WRONG_ARGUMENT = 24, 1
UPLOAD = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)


def words_at(address: int, count: int) -> NDArray[np.int64]:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,))


def row_at(address: int, column: int, pitch: int) -> NDArray[np.float32]:
    """fp32 features of a column."""
    there = ctypes.cast(address + 4 * pitch * column, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(there, (FEATURES,))


class Driver:
    """cuMemcpyHtoDAsync and cuLaunchKernelEx of steps of n columns, whose kernel does what the real ones do."""

    def __init__(self, layers: int, size: int, n: int, pitch: int, fails: bool = False) -> None:
        self._sizes, self._fails = (layers, size, n, pitch), fails
        self._functions = UPLOAD(self._upload), LAUNCH(self._launch)
        self.table = np.full(1000, -1, np.int64)  # on the "device"
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        self._config, self._values = np.zeros(7, np.int64), np.zeros(4, np.int64)
        self._parameters = self._values.ctypes.data + 8 * np.arange(4, dtype=np.int64)
        self.context = np.zeros(lt.CONTEXT_WORDS, np.int64)
        self.context[lt.LAUNCH_FUNCTION], self.context[lt.STREAM] = addresses[1] or 0, 77
        self.plan = np.zeros(lt.PLAN_COLUMNS, np.int64)
        self.plan[lt.KIND], self.plan[lt.CONFIG] = lt.KERNEL, self._config.ctypes.data
        self.plan[lt.PARAMETERS], self.plan[lt.OPERANDS] = self._parameters.ctypes.data, self._values.ctypes.data
        self.staged = np.full(1000, -1, np.int64)
        self.upload = np.array([addresses[0], self.table.ctypes.data, self.staged.ctypes.data], np.int64)
        self.uploaded_bytes = 0

    def _upload(self, to: int, source: int, size: int, stream: int) -> int:
        assert stream == 77
        ctypes.memmove(to, source, size)
        self.uploaded_bytes += size
        return WRONG_ARGUMENT if self._fails else 0

    def _launch(self, config: int, function: int, parameters: int, extra: int) -> int:
        layers, size, n, pitch = self._sizes
        a_at, b_at, c_at, _ = (int(words_at(int(each), 1)[0]) for each in words_at(parameters, 4))
        vectors = words_at(a_at, 2 * layers * size).reshape(layers, 2, size)
        outputs = words_at(c_at, 3 * layers * size).reshape(layers, 3, size)
        inputs = words_at(b_at, size)
        for member in range(size):
            for column in range(n):
                x = row_at(int(inputs[member]), column, pitch).copy()
                for layer in range(layers):
                    bias, scale = (row_at(int(address), 0, pitch) for address in vectors[layer, :, member])
                    for node in range(3):
                        x = (x + bias, np.maximum(x, 0), x * scale)[node]
                        row_at(int(outputs[layer, node, member]), column, pitch)[:] = x
        return 0


def stream_of(layers: int, prompt: int, requests: int) -> ChainStream:
    asked = Requests(np.zeros(requests, np.int64), np.full(requests, prompt), np.full(requests, 3))
    return ChainStream(elementwise_program(FEATURES), layers, asked, Dtype.fp32, 2)


def shapes_of(at: Interpreter, n: int) -> NDArray[np.int64]:
    """Rows of lt_launch's shapes for BIAS, RELU and SCALE of n columns."""
    rows = np.zeros((3, lt.SHAPE_COLUMNS), np.int64)
    for row, op in zip(rows, (Op.BIAS, Op.RELU, Op.SCALE), strict=True):
        shape = next(shape for shape in at.stream.shapes if (shape.op, shape.n) == (op, n))
        for i, operand in enumerate(at.stream.operands(shape)):
            row[lt.BASE_A + i] = at.arenas.arrays[operand.arena].ctypes.data
            row[lt.BYTES_A + i] = operand.slot_bytes
    return rows


def launch(driver: Driver, at: Interpreter, words: Any, size: int, n: int, recorder: Recorder) -> int:
    from launchopt.devices.step_pointers import launch_steps

    what = (recorder.next_batch(), -1, int(Strategy.fused), int(FlushReason.full), 5)
    columns = (recorder.launches, recorder.commands, recorder.cursor)
    common = (driver.plan, driver.context, columns, what, driver.staged, driver.upload)
    return int(launch_steps(words, size, shapes_of(at, n), *common))


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize(("prompt", "step"), [(0, 0), (0, 2), (4, 0), (4, 1)])
def test_every_output_is_what_one_command_after_another_leaves(
    layers: int, requests: int, prompt: int, step: int
) -> None:
    stream = stream_of(layers, prompt, requests)
    fused, straight, recorder = Interpreter(stream), Interpreter(stream), Recorder(stream.commands)
    for at in (fused, straight):  # what earlier steps would have left
        at.flat[np.isnan(at.flat)] = 0.25
    steps = [records_of(stream, request, step) for request in range(requests)]
    for records in steps:
        for record in records:
            straight.execute(record)
    n = steps_of(stream, 0)[step].n
    driver = Driver(layers, requests, n, stream.row_elements(FEATURES))
    words = as_words(np.ascontiguousarray(np.stack(steps, axis=1)).reshape(-1))
    assert launch(driver, fused, words, requests, n, recorder) == lt.OK
    assert (fused.flat == straight.flat).all()
    assert driver.uploaded_bytes == 8 * (5 * layers + 1) * requests
    found = recorded(recorder)
    assert found.launches[:, [rec.SHAPE, rec.SIZE, rec.STRATEGY]].tolist() == [[-1, len(words), Strategy.fused]]
    assert len(found.commands) == len(words)


def test_an_upload_that_fails_launches_nothing() -> None:
    stream = stream_of(1, 0, 1)
    at, recorder = Interpreter(stream), Recorder(stream.commands)
    driver = Driver(1, 1, 1, stream.row_elements(FEATURES), fails=True)
    words = as_words(records_of(stream, 0, 0))
    assert launch(driver, at, words, 1, 1, recorder) == lt.KERNEL_STATUS * WRONG_ARGUMENT
    assert recorder.launch_count == 0


def test_words_of_the_tables() -> None:
    from launchopt.devices.step_pointers import pointers_of_steps

    assert pointers_of_steps(8, 16) == 16 * 41
