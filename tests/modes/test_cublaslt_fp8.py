"""mode=cublaslt_fp8 on the CPU, on a fake of CUDA and on a GPU: outputs are those of quantised inputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cuda import device_of, fake_cuda
from support.modes.batch_runs import Run
from support.paths import ROOT
from support.quantised import quantised_gemv, quantised_steps
from support.steps.launching import recorded
from support.steps.straight import records_of

from launchopt.command import Dtype, as_words
from launchopt.devices.arenas import to_host
from launchopt.errors import RunError
from launchopt.modes import mode_class
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream
from launchopt.streams.operands import arenas_of
from launchopt.verify.commands import CheckSettings, verify
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat
from launchopt.weights.quantiser import rounded
from launchopt.workloads.gemv import gemv

NAME = "cublaslt_fp8"
CHANNEL, TENSOR, BLOCK = (Packing(WeightFormat.fp8, scales) for scales in (Scales.channel, Scales.tensor, Scales.block))
each_packing = pytest.mark.parametrize("packing", [CHANNEL, TENSOR], ids=str)
each_half = pytest.mark.parametrize("dtype", [Dtype.fp16, Dtype.bf16], ids=lambda dtype: dtype.name)
on_each = pytest.mark.parametrize("kind", ["cpu", "fake cuda", pytest.param("cuda", marks=pytest.mark.gpu)])


def fp8_gemv(
    packing: Packing = CHANNEL, dtype: Dtype = Dtype.bf16, n: int = 1, shuffle: bool = True, k: int = 256, m: int = 144
) -> GemmStream:
    return gemv(m, n, k, 24, dtype, 5, CommandOrder(shuffle, 3, packing=packing))


def submitted(stream: GemmStream, device: Any = None) -> Run:
    """Launch all commands at once, as a consumer does that has popped them."""
    run = Run(NAME, stream, device=device)
    run.prepared.submit_each(as_words(records_of(stream)), np.zeros(stream.commands, np.int32), flush_ns=0)
    run.device.finish()
    return run


def on_gpu() -> Any:
    from launchopt.devices.cuda.device import CudaDevice

    return CudaDevice()


def closed(run: Run) -> None:
    run.prepared.close()
    run.device.close()


@each_half
@each_packing
@pytest.mark.parametrize("n", [1, 3])
def test_outputs_on_the_cpu_are_those_of_quantised_inputs(n: int, packing: Packing, dtype: Dtype) -> None:
    run = submitted(fp8_gemv(packing, dtype, n))
    run.finish()


@each_half
@each_packing
@pytest.mark.parametrize("n", [1, 3])
def test_each_command_gets_both_launches_and_the_scales_of_its_own_weight(
    n: int, packing: Packing, dtype: Dtype
) -> None:
    with fake_cuda() as device:
        run = submitted(fp8_gemv(packing, dtype, n), device)
        rows = recorded(run.recorder).launches
        assert rows[:, LaunchColumn.STRATEGY].tolist() == [Strategy.single] * run.stream.commands
        assert run.recorder.launch_calls == 2 * run.stream.commands
        run.finish()


def test_batches_of_commands_are_launched_one_by_one() -> None:
    for kind in ("cpu", "fake cuda"):
        with device_of("cpu" if kind == "cpu" else "cuda") as device:
            run = Run(NAME, fp8_gemv(), device=device)
            run.submit_all(5)
            run.finish()


def test_outputs_of_inputs_that_are_not_quantised_are_wrong_and_the_reverse() -> None:
    stream = fp8_gemv()
    for mode, right in (("batched", False), (NAME, True)):
        run = Run(mode, stream)
        run.submit_all(5)
        for quantised_inputs in (False, True):
            found = verify(stream, run.device.arenas, CheckSettings(64), quantised_inputs=quantised_inputs)
            assert found.ok is (quantised_inputs is right)
        closed(run)


def change_one_code(run: Run) -> None:
    """Change the sign of a code of the first command's weight: that with the largest product."""
    stream, arenas = run.stream, run.device.arenas
    (shape,), record = stream.shapes, records_of(stream)[0]
    of_a, of_b, _ = arenas_of(shape)
    weight = to_host(arenas.matrices(of_a, [int(record["slot_a"])]))[0]
    inputs = rounded(np, to_host(arenas.matrices(of_b, [int(record["slot_b"])])), shape.packing)[0]
    at = int(np.abs(weight * inputs[:1]).argmax())
    arenas.arrays[of_a][int(record["slot_a"]), at] ^= np.uint8(0x80)


@on_each
@each_half
@each_packing
@pytest.mark.parametrize(("n", "k"), [(1, 512), (4, 2048), (16, 8192)])
def test_runs_use_a_part_of_the_bound_and_outputs_of_another_code_are_wrong(
    n: int, k: int, packing: Packing, dtype: Dtype, kind: str
) -> None:
    with device_of("cuda" if kind == "fake cuda" else "cpu") as fake:
        run = submitted(fp8_gemv(packing, dtype, n, k=k), on_gpu() if kind == "cuda" else fake)
        stream, arenas = run.stream, run.device.arenas
        found = verify(stream, arenas, CheckSettings(64), quantised_inputs=True)
        assert found.ok, found.first_wrong
        share = found.max_rel_error / found.tolerance
        print(f"{kind} {packing} {dtype.name} n={n} k={k}: {share:.1%} of the bound {found.tolerance:.2g}")
        change_one_code(run)
        assert verify(stream, arenas, CheckSettings(64), quantised_inputs=True).wrong > 0
        closed(run)


@pytest.mark.gpu
@each_packing
@pytest.mark.parametrize("n", [1, 5, 16])
def test_inputs_are_quantised_on_a_gpu_as_by_the_quantiser(n: int, packing: Packing) -> None:
    """The codes in memory are those of the last command's inputs, bit for bit."""
    from launchopt.weights.quantiser import quantised

    for dtype in (Dtype.fp16, Dtype.bf16):
        for k in (128, 4096, 40_976):
            run = submitted(fp8_gemv(packing, dtype, n, k=k), on_gpu())
            (shape,), record = run.stream.shapes, records_of(run.stream)[-1]
            inputs = to_host(run.device.arenas.matrices(arenas_of(shape)[1], [int(record["slot_b"])]))
            codes = to_host(run.prepared._launch.__self__.codes)
            expected, size = quantised(np, inputs, packing)[0], packing.codes_bytes(n, k)
            np.testing.assert_array_equal(codes[:size], expected[:size])
            start = packing.scales_at(n, k)
            np.testing.assert_array_equal(codes[start : packing.end(n, k)], expected[start:])
            closed(run)


@pytest.mark.gpu
@each_packing
@pytest.mark.parametrize(("m", "n", "k"), [(64, 1, 8192), (6144, 1, 4096), (4096, 16, 4096), (1008, 3, 1040)])
def test_a_run_on_a_gpu_is_verified(m: int, n: int, k: int, packing: Packing, tmp_path: Path) -> None:
    """A run ends with 0 only if each output agrees with float64."""
    work = f"workload=gemv_256 workload.m={m} workload.n={n} workload.k={k} workload.commands=400 workload.dtype=bf16"
    stored = f"workload.weights=fp8 workload.scales={packing.scales}"
    modes = f"mode={NAME} against=[{'kernel' if n <= 8 else ''}] repeats=2 device=cuda"
    call = f"{work} {stored} {modes} hydra.run.dir={tmp_path / 'run'}"
    done = subprocess.run([sys.executable, "-m", "runner", *call.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_it_cannot_multiply_is_refused_in_one_line(kind: str) -> None:
    independent = (
        "multiplies independent commands with fp8 weights:"
        " use workload=gemv_micro or gemv_256, workload.weights=fp8 and workload.dtype=bf16"
    )
    for stream, why in (
        (quantised_steps(CHANNEL, dtype=Dtype.bf16), independent),
        (fp8_gemv(PLAIN), independent),
        (fp8_gemv(Packing(WeightFormat.int8)), independent),
        (fp8_gemv(dtype=Dtype.fp32), "multiplies fp8 to fp16 and bf16: use workload.dtype=bf16"),
        (fp8_gemv(BLOCK), "has no scales per block: use workload.scales=channel or tensor"),
        (
            fp8_gemv(TENSOR, n=17),
            "quantises up to 16 columns with one scale, and this workload has 17: use workload.scales=channel",
        ),
        (
            quantised_gemv(CHANNEL, Dtype.bf16),
            "multiplies fp8 if m and k are multiples of 16, and this workload has 130x1x256",
        ),
        (fp8_gemv(n=17), None),
    ):
        assert mode_class(NAME).refusal(kind, stream) == why


@pytest.mark.parametrize(
    ("capability", "scales", "why"),
    [
        (80, Scales.tensor, "needs compute capability 8.9 or newer for fp8, and this GPU has 8.0: use mode=kernel"),
        (89, Scales.channel, "on compute capability 9.0, and this GPU has 8.9: use workload.scales=tensor"),
        (120, Scales.channel, "on compute capability 9.0, and this GPU has 12.0: use workload.scales=tensor"),
    ],
)
def test_a_gpu_that_cannot_multiply_such_weights_is_refused_in_one_line(
    capability: int, scales: Scales, why: str
) -> None:
    found = mode_class(NAME).capability_refusal(fp8_gemv(Packing(WeightFormat.fp8, scales)), capability)
    assert found is not None
    assert why in found
    assert "\n" not in found
    for able in (89, 90, 100):
        assert mode_class(NAME).capability_refusal(fp8_gemv(Packing(WeightFormat.fp8, Scales.tensor)), able) is None


def test_a_version_of_cublaslt_without_such_scales_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda() as device:
        from launchopt.devices.cublaslt.plans import cublasLt

        real = cublasLt.matmul_desc_set_attribute

        def propose(*arguments: Any) -> None:
            raise cublasLt.cuBLASLtError("NOT_SUPPORTED (15)")

        def set_attribute(handle: int, attribute: int, *value: int) -> None:
            real(handle, attribute, *value)
            if attribute == cublasLt.MatmulDescAttribute.A_SCALE_MODE:
                monkeypatch.setattr(cublasLt, "matmul_algo_get_heuristic", propose)

        monkeypatch.setattr(cublasLt, "matmul_desc_set_attribute", set_attribute)
        with pytest.raises(
            RunError, match=r"^cuBLASLt has no algorithm for 1 x 144x1x256 bf16, fp8 per channel by fp8 "
        ):
            Run(NAME, fp8_gemv(), device=device)
        device.close()
