"""mode=megakernel on a GPU: every row of every step right, one launch a step, the same bytes again, and the bytes that
NumPy makes of the same list.

What needs neither halves nor attention is asked of the stand-in on the host, too, in the same words.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fake_megakernel import fake_megakernel
from numpy.typing import NDArray
from placed import assert_same
from programs import requests_of
from step_runs import StepRun, asked_of_python, batches

from launchopt import recorder as rec
from launchopt.batcher import Batch, Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, Op
from launchopt.devices import lt_chain as lc
from launchopt.devices.instruction_interpreter import Memory
from launchopt.devices.instruction_interpreter import run as interpret
from launchopt.devices.instruction_words import Instructions, Word
from launchopt.modes.baseline import Baseline
from launchopt.modes.coalesced import Coalesced
from launchopt.modes.megakernel import MegakernelMode
from launchopt.recorder import Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.step_batcher import StepBatch
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.model import ModelShape
from launchopt.workloads.program import (
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    linear_program,
    qkv_program,
)

MODEL = ModelShape("small", 256, 2, 8, 2, 32, 384)
TOKENS, LAYERS, REPLICAS, COPY_CALLS = 5, 2, 2, 3
PROGRAMS: dict[str, Program] = {
    "decode": linear_program([(m, k) for _, m, k in MODEL.linears()]),
    # Several passes of a block, several pieces of k of which the last is not whole.
    "large": linear_program([(8456, 1024), (1024, 4352)]),
    # Of several requests cut in two along k; and an LM head of which one block of two stores nothing.
    "deep": linear_program([(640, 8192), (8192, 640)]),
    "layer": layer_program(MODEL, 2 * TOKENS),
    "paged": layer_program(MODEL, 2 * TOKENS, 4),
    "odd": layer_program(ModelShape("odd", 72, 2, 3, 1, 24, 100, gated=False), 2 * TOKENS, 3),
    "qkv": qkv_program(ModelShape("wide", 128, 2, 4, 2, 64, 128)),
    "linear_epilogue": linear_epilogue_program(72),
    "elementwise": elementwise_program(70),
}
ON_HOST = ("decode", "qkv", "linear_epilogue", "elementwise")
# Which programs, of how many requests.
EACH = [("decode", 1), ("decode", 3), ("decode", 16), ("layer", 1), ("layer", 4), ("paged", 1), ("paged", 4)]
EACH += [
    ("deep", 1),
    ("deep", 9),
    ("deep", 18),
    ("large", 1),
    ("large", 9),
    ("large", 18),
    ("odd", 3),
    ("qkv", 3),
    ("linear_epilogue", 3),
    ("elementwise", 3),
]
SOME = [
    ("decode", 1),
    ("decode", 3),
    ("decode", 16),
    ("large", 1),
    ("large", 9),
    ("deep", 2),
    ("deep", 16),
    ("layer", 4),
    ("paged", 1),
    ("odd", 3),
    ("elementwise", 3),
]
# Roundings to storage that memory may be off after a step; of fp32 the order of sums makes more of them.
UNITS = {Dtype.fp32: 512.0, Dtype.fp16: 16.0, Dtype.bf16: 16.0}
NONE, GREEDY = Sampling(SamplingKind.none), Sampling(SamplingKind.greedy)
TOP_K, TOP_P = Sampling(SamplingKind.top_k, 0.7, 50, seed=3), Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)


def cases(programs: Sequence[tuple[str, int]], dtypes: Sequence[Dtype] = tuple(Dtype)) -> Any:
    """Of each the device, the program, how many requests, and the dtype."""
    found = [pytest.param("cuda", *each, dtype, marks=pytest.mark.gpu) for each in programs for dtype in dtypes]
    found += [("host", name, requests, Dtype.fp32) for name, requests in programs if name in ON_HOST]
    return pytest.mark.parametrize(("device", "name", "requests", "dtype"), found, indirect=["device"], ids=str)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A GPU, or what stands in for one."""
    if request.param == "host":
        with fake_megakernel() as kernel:
            yield kernel.device
        return
    from launchopt.devices.cuda import CudaDevice

    yield CudaDevice(0)


def stream_of(
    name: str, sizes: list[tuple[int, int]], dtype: Dtype, layers: int = LAYERS, vocab: int | None = None
) -> ChainStream:
    return ChainStream(PROGRAMS[name], layers, requests_of(sizes), dtype, REPLICAS, vocab, seed=5)


def run_of(device: Any, stream: ChainStream, mode: Any = None, sampling: Sampling | None = None) -> StepRun:
    how = {} if sampling is None else {"sampling": sampling}
    return StepRun(mode or MegakernelMode(), stream, stream.requests, device, **how)


def close(run: StepRun) -> None:
    run.device.synchronize()
    run.close()


# -- Whole runs


@cases(EACH)
def test_requests_in_step_are_one_launch_a_step(device: Any, name: str, requests: int, dtype: Dtype) -> None:
    """But for the first, whose inputs lie elsewhere: that of one request, too, from its second time on."""
    stream = stream_of(name, [(0, TOKENS)] * requests, dtype)
    run, rows = run_of(device, stream), len(stream.rows_of(stream.decode_kind))
    for again in (False, True):
        run.run()
        run.check()
        strategies, sizes = run.launches(rec.STRATEGY), run.launches(rec.SIZE)
        alone = TOKENS if again and requests == 1 else TOKENS - 1
        first = len(strategies) - alone
        assert strategies[first:] == [Strategy.megakernel] * alone
        assert sizes[first:] == [requests * rows] * alone
        assert Strategy.megakernel not in strategies[:first]
        assert sum(sizes[:first]) == (TOKENS - alone) * requests * rows
        gathered = sum(copied > 0 for copied in run.launches(rec.PACKED_BYTES))
        in_vain: int = run.mode.ahead.called_off
        assert 0 < in_vain <= 2
        assert run.recorder.launch_calls == len(sizes) + COPY_CALLS * gathered + in_vain
    close(run)


@cases([("decode", 3), ("paged", 3)], [Dtype.fp32])
def test_what_is_not_one_launch_is_launched_as_in_coalesced(
    device: Any, name: str, requests: int, dtype: Dtype
) -> None:
    """A prompt a request, and first steps."""
    found = []
    for mode in (MegakernelMode(), Coalesced()):
        stream = stream_of(name, [(3, 3)] * requests, dtype)
        run = run_of(device, stream, mode)
        run.run()
        run.check()
        columns = (run.launches(column) for column in (rec.BATCH, rec.SHAPE, rec.SIZE, rec.STRATEGY))
        found.append(list(zip(*columns, strict=True)))
        close(run)
    ours, theirs = found
    launched = [row for row in ours if row[3] != Strategy.megakernel]
    steps = {row[0] for row in ours if row[3] == Strategy.megakernel}
    assert len(launched) > len(steps) == 2
    assert launched == [row for row in theirs if row[0] not in steps]


@cases([("decode", 4), ("layer", 4), ("paged", 4)])
def test_prompts_and_whoever_is_together(device: Any, name: str, requests: int, dtype: Dtype) -> None:
    """Of the second round on, batches come again."""
    stream = stream_of(name, [(3, 3), (0, 4), (0, 5), (5, 2)][:requests], dtype)
    run, found = run_of(device, stream), []
    for seed in (None, 1, 1, 1):
        run.run(seed)
        run.check()
        found.append(run.launches(rec.STRATEGY).count(Strategy.megakernel))
        assert sum(run.launches(rec.SIZE)) == stream.commands
    assert found[1] < found[2] == found[3]
    close(run)


class EachAlone(Baseline):
    """Baseline, which takes commands, given the commands of steps."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Each alone, in the order of the batch."""
        device: Any = self._device
        stream = device.work
        records: Any = batch.words.reshape(-1).view(COMMAND_DTYPE)
        shape_of = np.zeros(len(records), np.int32)
        Batcher(stream.shapes, [1] * len(stream.shapes), 0).classify(records, shape_of)
        self.submit_each(batch.words, shape_of, flush_ns)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [GREEDY, TOP_K], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("name", ["decode", "paged"])
def test_sampled_tokens_are_those_of_baseline(name: str, sampling: Sampling) -> None:
    from launchopt.devices.cuda import CudaDevice

    ids = []
    for mode in (MegakernelMode(), EachAlone()):
        stream = stream_of(name, [(2, 4), (0, TOKENS), (0, TOKENS)], Dtype.fp32, vocab=300)
        run = run_of(CudaDevice(0), stream, mode, sampling)
        run.run()
        run.check()
        if mode.name == "megakernel":
            assert Strategy.megakernel in run.launches(rec.STRATEGY)
        ids.append((run.flights.done[: stream.tokens] & lc.LOW).tolist())
        close(run)
    assert ids[0] == ids[1]
    assert len(set(ids[0])) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_P], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize(("name", "requests"), [("decode", 1), ("large", 16), ("deep", 16), ("paged", 1), ("layer", 4)])
def test_launches_made_ahead_give_what_others_give(name: str, requests: int, sampling: Sampling) -> None:
    """To the bit; one after the other, and where all that was launched is waited for between two."""
    from launchopt.devices.cuda import CudaDevice

    found = []
    for ahead in (False, True):
        vocab = None if sampling is NONE else 3000
        stream = stream_of(name, [(0, 2 * TOKENS)] * requests, Dtype.bf16, vocab=vocab)
        run = run_of(CudaDevice(0), stream, MegakernelMode(ahead=ahead), sampling)
        for _ in range(3):
            run.run()
            run.check()
        arrays = [array.get() for array in run.device.arenas.arrays.values()]
        found.append([*(array.tobytes() for array in arrays), run.flights.done[: stream.tokens].tobytes()])
        if ahead:
            assert run.mode.ahead.called_off == 1
            before_step(run, 2 * TOKENS - 2)
            assert run.mode.ahead.called_off == 1
            finish(run)
        else:
            close(run)
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_P], ids=lambda sampling: sampling.kind.name)
def test_launches_that_the_compiled_loop_admits(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first of each copy of the weights; Python admits none."""
    from launchopt.devices.cuda import CudaDevice

    asked = asked_of_python(monkeypatch)
    vocab = None if sampling is NONE else 3000
    stream = stream_of("decode", [(0, 3 * TOKENS)], Dtype.bf16, vocab=vocab)
    run = run_of(CudaDevice(0), stream, sampling=sampling)
    for _ in range(2):
        asked.clear()
        run.run_pumped()
        run.check()
        assert asked[0] is False
        assert not any(asked)
        assert len(asked) < run.launches(rec.STRATEGY).count(Strategy.megakernel)
        assert run.mode.ahead.called_off == 1
    close(run)


@pytest.mark.gpu
def test_a_launch_that_waits_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the host takes it that it may have; its step is launched once more."""
    from launchopt.devices import launch_ahead
    from launchopt.devices.cuda import CudaDevice

    monkeypatch.setattr(launch_ahead, "PATIENCE_NS", 20_000_000)
    monkeypatch.setattr(launch_ahead, "STALE_NS", 10_000_000)
    run = run_of(CudaDevice(0), stream_of("decode", [(0, 2 * TOKENS)], Dtype.fp16))
    submit = run.mode.submit

    def slowly(batch: StepBatch, flush_ns: int) -> None:
        submit(batch, flush_ns)
        time.sleep(0.06)

    run.run()
    monkeypatch.setattr(run.mode, "submit", slowly)
    run.run()
    run.check()
    assert run.mode.ahead.called_off > TOKENS
    close(run)


class Counted:
    """Launches of the kernel that feeds back, which otherwise do what they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from launchopt.devices.gpu_feedback import GpuFeedback

        self.count, launch = 0, GpuFeedback.launch

        def counted(feedback: GpuFeedback, rows: int) -> None:
            self.count += rows > 0
            launch(feedback, rows)

        monkeypatch.setattr(GpuFeedback, "launch", counted)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [NONE, GREEDY, TOP_K, TOP_P], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("name", "requests"), [("decode", 1), ("decode", 2), ("decode", 16), ("deep", 16), ("paged", 4)]
)
def test_a_launch_feeds_back_what_it_has_computed(
    name: str, requests: int, dtype: Dtype, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other kernel does, but after steps that are launched otherwise."""
    from launchopt.devices.cuda import CudaDevice

    stream = stream_of(name, [(0, TOKENS)] * requests, dtype, vocab=None if sampling is NONE else 3000)
    device: Any = CudaDevice(0)
    run, launches = run_of(device, stream, sampling=sampling), Counted(monkeypatch)
    for _ in range(2):
        launches.count = 0
        run.run()
        run.check()
        fused = run.launches(rec.STRATEGY).count(Strategy.megakernel)
        assert fused >= TOKENS - 1
        assert launches.count == TOKENS - fused
        assert (device.sampling_ns() > 0) == (sampling is not NONE)
    close(run)


@pytest.mark.gpu
def test_the_host_samples_if_it_is_told_to() -> None:
    from launchopt.devices.cuda import CudaDevice

    ids = []
    for on_host in (False, True):
        stream = stream_of("decode", [(0, TOKENS)] * 3, Dtype.bf16, vocab=300)
        run = StepRun(MegakernelMode(), stream, 3, CudaDevice(0), TOP_K, on_host)
        run.run()
        run.check()
        assert Strategy.megakernel in run.launches(rec.STRATEGY)
        ids.append((run.flights.done[: stream.tokens] & lc.LOW).tolist())
        close(run)
    assert ids[0] == ids[1]


# -- One step


def before_step(run: StepRun, number: int) -> StepBatch:
    """Everything up to a step has run; that step."""
    device = run.device
    run.recorder.reset()
    run.flights.reset()
    device.arenas.poison()
    device.synchronize()
    device.use_mode(run.mode.name)
    device.start(0, run.mode)
    run.mode.start()
    device.begin()
    for at, batch in enumerate(batches(run.stream, run.most)):
        if at == number:
            break
        run.mode.submit(batch, 0)
        device.feed_back(run.flights, run.flights.collect(batch.words[-batch.size :]))
    device.synchronize()
    return batch


def arrays_of(device: Any) -> list[Any]:
    """Operands, and the state of sequences."""
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
    """Memory after the step."""
    before = run.recorder.launch_count
    run.mode.submit(batch, 0)
    run.device.synchronize()
    assert run.recorder.launch_count == before + 1
    return [on_host(array) for array in arrays_of(run.device)]


def finish(run: StepRun) -> None:
    """As at the end of a run."""
    run.device.finish()
    close(run)


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def forget_norms(
    instructions: Instructions, itemsize: int, start: int, expected: NDArray[np.uint8], kept: NDArray[np.uint8]
) -> None:
    """What norms that are one with a GEMM give is as it was before, of an array from address `start` on."""
    for row in instructions[(instructions[:, Word.OP] == Op.NORM) & (instructions[:, Word.FUSED] > 0)]:
        for request in range(int(row[Word.REQUESTS])):
            at = int(row[Word.C] + request * row[Word.STRIDE_C]) - start
            if 0 <= at < len(kept):
                own = slice(at, at + int(row[Word.M]) * itemsize)
                expected[own] = kept[own]


@cases(SOME)
def test_memory_is_what_numpy_makes_of_the_same_list(
    device: Any, name: str, requests: int, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is to be written: NaN is there. One layer, for what is off adds up. Then the same again.

    Of a launch that feeds back nothing.
    """
    run = run_of(device, stream_of(name, [(0, TOKENS)] * requests, dtype, layers=1))
    batch = before_step(run, 2)
    monkeypatch.setattr(device, "stage_feedback", lambda batch: 0)
    mode: Any = run.mode
    instructions = mode._steps._compiler.compile(batch)
    arrays = arrays_of(device)
    kept, expected = ([on_host(array) for array in arrays] for _ in range(2))
    memory = {address_of(array): copy for array, copy in zip(arrays, expected, strict=True)}
    interpret(instructions, Memory(memory), dtype)
    if hasattr(arrays[0], "get"):  # by the kernel itself, not by what stands in for it
        for array, copy, own in zip(arrays, expected, kept, strict=True):
            forget_norms(instructions, dtype.itemsize, address_of(array), bytes_of(copy), bytes_of(own))
    assert any(now.tobytes() != old.tobytes() for now, old in zip(expected, kept, strict=True)), "nothing was done"
    found = one_launch(run, batch)
    for now, then in zip(found, expected, strict=True):
        assert_same(now.reshape(-1), then.reshape(-1), dtype, UNITS[dtype])
    for _ in range(5):
        put_back(arrays, kept)
        device.synchronize()
        again = one_launch(run, batch)
        assert [now.tobytes() for now in again] == [each.tobytes() for each in found]
    finish(run)
