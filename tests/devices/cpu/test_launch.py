"""Programs on the CPU device: each step, alone and in batches, gives the outputs of the interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.steps.no_driver import NO_DRIVER
from support.steps.program_interpreter import NONE, SEED, Interpreter
from support.steps.stream_steps import records_of, steps_of

from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import Batch, FlushReason
from launchopt.command import Dtype, Op, Records, as_words
from launchopt.devices.arenas import to_float32
from launchopt.devices.cpu.device import CpuDevice
from launchopt.devices.cpu.launch import gather
from launchopt.recording.recorder import Recorder
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import (
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    qkv_program,
)
from launchopt.streams.model import ModelShape

MODEL = ModelShape("tiny", 64, 2, 4, 2, 16, 96)
PROGRAMS = {
    "layer": layer_program(MODEL, 16),
    "paged": layer_program(MODEL, 19, 4),
    "qkv": qkv_program(ModelShape("tiny", 128, 2, 4, 2, 64, 128)),
    "epilogue": linear_epilogue_program(70),
    "elementwise": elementwise_program(33),
}
NEVER_TOO_MANY = 1 << 40


def stream_of(program: Program, dtype: Dtype, seed: int = 5) -> ChainStream:
    prompts, outputs = np.array([7, 7, 7, 0, 3]), np.array([2, 2, 2, 3, 1])
    requests = Requests(np.arange(5), prompts, outputs)
    return ChainStream(program, 2, requests, dtype, 1, ChainSettings(chunk_tokens=4, seed=seed))


def steps(stream: ChainStream) -> Iterator[list[Records]]:
    """Yield groups of steps of one kind that may run at the same time, in the order of requests."""
    for step in range(max(len(steps_of(stream, request)) for request in range(stream.requests))):
        kinds: dict[object, list[Records]] = {}
        for request in range(stream.requests):
            own = steps_of(stream, request)
            if step < len(own):
                kinds.setdefault(own[step], []).append(records_of(stream, request, step))
        yield from kinds.values()


def opened(stream: ChainStream) -> CpuDevice:
    device = CpuDevice(threads=1)
    device.open(stream, Recorder(4 * stream.commands), SEED)
    device.open_steps(stream, NONE, on_host=True, back=NO_DRIVER)
    device.use_mode("")
    device.warm_up()
    device.arenas.poison()
    device.start(0)
    return device


def index_of(stream: ChainStream, records: Records) -> list[int]:
    by_key = {shape.packed: index for index, shape in enumerate(stream.shapes)}
    words = as_words(records)
    return [by_key[int(mn), int(key) & (1 << 48) - 1] for mn, key in words[:, 2:4]]


def run(stream: ChainStream, how: str) -> CpuDevice:
    device = opened(stream)
    for together in steps(stream):
        if how == "each":
            for records in together:
                device.submit_each(as_words(records), np.array(index_of(stream, records), np.int32), 0)
        elif how == "execute":
            for records in together:
                device.execute(as_words(records), np.array(index_of(stream, records), np.int32))
        else:
            for row in range(len(together[0])):
                records = np.concatenate([own[row : row + 1] for own in together])
                batch = Batch(index_of(stream, records)[0], as_words(records), FlushReason.full)
                assert device.submit_strided(batch, 0, NEVER_TOO_MANY)
    return device


def expected(stream: ChainStream) -> Interpreter:
    interpreter = Interpreter(stream, SEED)
    for together in steps(stream):
        for records in together:
            for record in records:
                interpreter.execute(record)
    return interpreter


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_of_a_program(name: str, dtype: Dtype) -> None:
    stream = stream_of(PROGRAMS[name], dtype)
    wanted = expected(stream).arenas
    for how in ("each", "execute", "strided"):
        device = run(stream, how)
        for arena, array in wanted.arrays.items():
            found = device.arenas.arrays[arena]
            assert found.shape == array.shape
            got, want = to_float32(found, dtype), to_float32(array, dtype)
            if arena.role == "x":  # int32 slots in an arena of floats: compare bits
                same = (found.view(np.uint8) == array.view(np.uint8)).reshape(*found.shape, -1).all(-1)
                got, want = np.where(same, 0, got), np.where(same, 0, want)
            np.testing.assert_allclose(got, want, rtol=0, atol=200 * dtype.unit_roundoff, err_msg=f"{arena} {how}")
        device.close()


def test_batches_launch_less_often_and_strides_follow_the_lanes() -> None:
    stream = stream_of(PROGRAMS["layer"], Dtype.fp32)
    one_by_one, batched = run(stream, "each"), run(stream, "strided")
    launches = [device._recorder.launch_count for device in (one_by_one, batched)]
    assert launches[0] == sum(len(records) for together in steps(stream) for records in together)
    assert launches[1] < 0.8 * launches[0]
    for key, array in one_by_one.arenas.arrays.items():
        if key.role == "kv":
            np.testing.assert_allclose(array, batched.arenas.arrays[key], rtol=0, atol=1e-4)


def test_a_new_run_starts_every_request_anew() -> None:
    stream = stream_of(PROGRAMS["paged"], Dtype.fp32)
    device = run(stream, "each")
    state = device.compute.state
    assert state is not None
    assert state.positions[1].all()
    device.start(0)
    assert not state.positions.any()
    assert (state.table == stream.page_table).all()


def test_without_attention_there_is_no_state() -> None:
    assert opened(stream_of(PROGRAMS["qkv"], Dtype.fp32)).compute.state is None
    assert {shape.op for shape in stream_of(PROGRAMS["layer"], Dtype.fp32).shapes} >= {Op.SLOT_MAP, Op.AV, Op.SILU_MUL}


@pytest.mark.parametrize("overlap", [False, True])
def test_gathering_touches_no_other_slots(overlap: bool) -> None:
    memory = np.arange(64, dtype=np.float32)
    every = np.lib.stride_tricks.as_strided(memory, (1 << 44, 2, 4), (0, 16, 4))  # a copy of all would be 512 TiB
    view = every if overlap else memory.reshape(8, 2, 4)
    out = np.empty((3, 2, 4), np.float32)
    gather(view, np.array([3, 0, 3], np.uint32), out)
    assert np.array_equal(out, [view[3], view[0], view[3]])
