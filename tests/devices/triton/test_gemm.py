"""The Triton GEMMs: results in Triton's interpreter, compilation for Hopper, and results on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.paths import TESTS
from support.quantised import PACKINGS

from launchopt.batching.batch import Batch, FlushReason
from launchopt.command import Dtype, Op, ShapeKey, as_words
from launchopt.devices.arenas import to_float32
from launchopt.devices.triton.tuning import Config, configs
from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify
from launchopt.weights.packing import Packing, WeightFormat
from launchopt.workloads.gemv import gemv

HOPPER = 90
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module")
def triton() -> Any:
    """Triton, where it and CuPy are installed; kernels compile without a GPU."""
    pytest.importorskip("cupy")
    return pytest.importorskip("triton")


def test_kernels_compute_what_they_should(triton: Any) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(TESTS.parent), *sys.path])}
    command = [sys.executable, str(TESTS / "support/cuda/interpreted_kernels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@in_each_dtype
@pytest.mark.parametrize(("m", "n", "k"), [(64, 1, 8192), (100, 1, 33), (256, 16, 256), (24, 3, 100)])
def test_each_configuration_compiles_and_needs_no_scratch(triton: Any, dtype: Dtype, m: int, n: int, k: int) -> None:
    from launchopt.devices.triton.gemm import variant
    from launchopt.devices.triton.plans import OPERANDS, SCRATCH_POINTERS, compile_variant

    shape = ShapeKey(m, n, k, dtype)
    tried = configs(shape)
    for config in (tried[0], tried[-1]):
        made = compile_variant(variant(shape, (k, k, m), config, False), HOPPER)
        ptx = made.asm["ptx"]
        assert made.metadata.num_warps == config.warps
        assert ptx.count(".param .u64") == OPERANDS + SCRATCH_POINTERS
        assert "tf32" not in ptx
    assert "evict_first" not in compile_variant(variant(shape, (k, k, m), tried[0], True), HOPPER).asm["ptx"]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize(("dtype", "n"), [(Dtype.fp32, 3), (Dtype.fp16, 1), (Dtype.bf16, 16)])
def test_kernels_of_quantised_weights_compile(triton: Any, packing: Packing, dtype: Dtype, n: int) -> None:
    from launchopt.devices.triton.gemm import variant
    from launchopt.devices.triton.plans import OPERANDS, SCRATCH_POINTERS, compile_variant

    shape = ShapeKey(300, n, 512, dtype, packing=packing)
    tried = configs(shape)
    for config in (tried[0], tried[-1]):
        ptx = compile_variant(variant(shape, (512, 512, 300), config, False, capability=HOPPER), HOPPER).asm["ptx"]
        assert ptx.count(".param .u64") == OPERANDS + SCRATCH_POINTERS
        assert ("mma" in ptx) == config.dot
        assert ("sub.rn" in ptx) == (packing.format is WeightFormat.int4 and dtype is not Dtype.fp32)


@pytest.fixture
def device() -> Any:
    from launchopt.devices.cuda.device import CudaDevice

    device = CudaDevice()
    yield device
    device.close()


def opened(device: Any, stream: GemmStream) -> Recorder:
    recorder = Recorder(stream.commands)
    device.open(stream, recorder, seed=1)
    return recorder


@pytest.mark.gpu
@in_each_dtype
@pytest.mark.parametrize(("m", "n", "k"), [(64, 1, 8192), (257, 1, 255), (96, 16, 512), (1000, 5, 1001), (3, 2, 5)])
def test_products_of_every_configuration(triton: Any, device: Any, dtype: Dtype, m: int, n: int, k: int) -> None:
    check_products(device, GemmStream([(m, k)], 1, [Segment(n, 5)], dtype, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "n", "k"), [(Dtype.bf16, 1, 512), (Dtype.fp16, 16, 384), (Dtype.fp32, 3, 512)], ids=str
)
def test_products_of_quantised_weights(
    triton: Any, device: Any, packing: Packing, dtype: Dtype, n: int, k: int
) -> None:
    check_products(device, gemv(300, n, k, 5, dtype, 5, CommandOrder(packing=packing)))


def check_products(device: Any, stream: GemmStream) -> None:
    """Launch every configuration; check each command's output. An output that was not written is NaN."""
    commands = stream.commands
    import cupy

    from launchopt.devices.cublaslt import launch as lt
    from launchopt.devices.cublaslt.launch_tables import BASES, BYTES
    from launchopt.devices.triton.gemm import plan_row, variant
    from launchopt.devices.triton.plans import load_variants

    opened(device, stream)
    (shape,), rows = stream.shapes, device.base.shapes[0]
    n, m, dtype = shape.n, shape.m, shape.dtype
    a, b = (device.arenas.matrices(operand.arena, np.arange(commands)) for operand in stream.operands(shape)[:2])
    exact = (b.astype(cupy.float64) @ a.astype(cupy.float64).transpose(0, 2, 1)).get()
    largest = (abs(b) @ abs(a).transpose(0, 2, 1)).get()
    bound = dtype.unit_roundoff * np.abs(exact) + 64 * Dtype.fp32.unit_roundoff * largest + 1e-7
    places = rows[BYTES, None] * np.arange(commands) + rows[BASES, None]
    table = cupy.asarray(places)
    tried = configs(shape)
    lead = device.row_elements(shape)
    for direct in (False, True):
        some = tried[:: len(tried) - 1] if direct and shape.packing else tried  # to compile all again takes long
        kernels = load_variants([variant(shape, lead, config, False, direct, HOPPER) for config in some])
        for config, kernel in zip(some, kernels, strict=True):
            if kernel is None:
                continue
            device.arenas.poison()
            device.synchronize()
            for addresses in places.T.tolist() if direct else [[int(row.data.ptr) for row in table]]:
                plan = np.array(plan_row(device, shape, 1 if direct else commands, config, kernel), np.int64)
                device.check(lt.launch(device.base.contexts[0], plan, *addresses, 0))
            device.synchronize()
            got = to_float32(device.arenas.arrays[stream.operands(shape)[2].arena].get(), dtype)
            wrong = np.abs(got[:, : n * m].reshape(commands, n, m).astype(np.float64) - exact) > bound
            assert not wrong.any(), f"{config} direct={direct}: {wrong.sum()} of {wrong.size} wrong"


def run_through(device: Any, stream: GemmStream, limit: int, shuffled: bool) -> tuple[Recorder, Any]:
    """Launch all commands by the mode, in batches of up to `limit`."""
    from launchopt.modes.triton_batched import TritonBatched

    recorder, mode = opened(device, stream), TritonBatched()
    prepared = mode.prepare(device, {shape: min(limit, stream.counts[shape]) for shape in stream.shapes})
    device.warm_up()
    device.arenas.poison()
    device.synchronize()  # launches do not wait for the stream that poisons
    device.use_mode("")
    device.start(1, prepared.path)
    prepared.start()
    device.begin()
    records = np.concatenate([block.records for block in stream.blocks()])
    if shuffled:
        np.random.default_rng(0).shuffle(records)
    for index, shape in enumerate(stream.shapes):
        own = records[(records["m"] == shape.m) & (records["k"] == shape.k) & (records["n"] == shape.n)]
        for first in range(0, len(own), limit):
            prepared.submit(Batch(index, as_words(own[first : first + limit].copy()), FlushReason.full), 0)
            recorder.spool()
    device.finish()
    return recorder, prepared


@pytest.mark.gpu
@in_each_dtype
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_through_the_mode(triton: Any, device: Any, dtype: Dtype, shuffled: bool) -> None:
    segments = [Segment(1, 37), Segment(4, 20)]
    stream = GemmStream([(256, 192), (192, 256)], 2, segments, dtype, 7)
    recorder, prepared = run_through(device, stream, 16, shuffled)
    assert list(recorder.faults()) == []
    found = verify(stream, device.arenas, CheckSettings(64))
    assert found.ok, found.first_wrong
    assert {(shape, count) for shape in stream.shapes for count in (1, 16)} == set(prepared.gemms.chosen)
    strategies = {int(row[3]) for _, rows in recorder.launch_chunks() for row in rows}
    assert strategies == {Strategy.triton}


@pytest.mark.gpu
def test_single_commands_upload_nothing(triton: Any, device: Any) -> None:
    stream = GemmStream([(64, 64)], 1, [Segment(1, 9)], Dtype.fp32, 3)
    recorder, _ = run_through(device, stream, 1, False)
    assert recorder.launch_calls == stream.commands
    assert verify(stream, device.arenas, CheckSettings(64)).ok


@pytest.mark.gpu
def test_tuning_leaves_the_operands_alone(triton: Any, device: Any) -> None:
    from launchopt.devices.triton.gemm import TritonGemms

    stream = GemmStream([(128, 64)], 1, [Segment(2, 40)], Dtype.fp16, 5)
    opened(device, stream)
    device.arenas.poison()
    before = {arena: array.get() for arena, array in device.arenas.arrays.items()}
    gemms = TritonGemms(device)
    gemms.tune(0, 16)
    for arena, array in device.arenas.arrays.items():
        assert (array.get().view(np.uint8) == before[arena].view(np.uint8)).all(), arena
    for config, gb_per_s in gemms.chosen.values():
        assert isinstance(config, Config)
        assert gb_per_s > 0
    assert all(shape.op is Op.GEMM for shape in stream.shapes)
