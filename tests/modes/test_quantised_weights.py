"""Modes of the CPU compute with quantised weights, and the check in float64 finds what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.modes.batch_runs import ALWAYS_PACK, NEVER_PACK, Run
from support.paths import ROOT
from support.quantised import PACKINGS, quantised_gemv, quantised_steps
from support.steps.step_runs import StepRun

from launchopt.command import Dtype
from launchopt.modes import MODES, mode_class
from launchopt.streams.gemm_stream import GemmStream
from launchopt.verify.commands import CheckSettings, verify
from launchopt.weights.packing import Packing, Scales, WeightFormat

FP8 = Packing(WeightFormat.fp8, Scales.channel)


def submitted(mode: str, stream: GemmStream, pack_bytes: int = NEVER_PACK) -> Run:
    run = Run(mode, stream, 8, pack_bytes)
    run.submit_all(5)
    return run


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_independent_commands_are_right_with_every_packing(packing: Packing, dtype: Dtype) -> None:
    submitted("batched", quantised_gemv(packing, dtype)).finish()


@pytest.mark.parametrize("pack_bytes", [NEVER_PACK, ALWAYS_PACK])
@pytest.mark.parametrize("mode", ["baseline", "batched", "grouped", "pointer_array", "graph"])
def test_every_way_to_batch_takes_quantised_weights(mode: str, pack_bytes: int) -> None:
    submitted(mode, quantised_gemv(FP8, n=3, shuffle=True), pack_bytes).finish()


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_steps_are_right_with_every_packing(packing: Packing) -> None:
    run = StepRun("engine", quantised_steps(packing, dtype=Dtype.bf16), 3)
    run.run()
    run.check()
    run.close()


@pytest.mark.parametrize("name", ["layer", "linear"])
@pytest.mark.parametrize("mode", ["coalesced", "engine", "graph", "graph_loop"])
def test_every_way_to_launch_steps_takes_quantised_weights(mode: str, name: str) -> None:
    run = StepRun(mode, quantised_steps(Packing(WeightFormat.int4, Scales.block), name), 3)
    run.run(seed=1)
    run.check()
    run.close()


def wrong_after(packing: Packing, at: int, bits: int) -> int:
    """Return the number of wrong commands after a byte of the second weight changed behind the run's back."""
    run = submitted("batched", quantised_gemv(packing))
    weights = next(array for arena, array in run.device.arenas.arrays.items() if arena.packing)
    weights[1, at] ^= bits
    found = verify(run.stream, run.device.arenas, CheckSettings(64))
    run.prepared.close()
    run.device.close()
    return found.wrong


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_outputs_of_another_code_are_wrong(packing: Packing) -> None:
    assert wrong_after(packing, 1000, 0x11) == 5  # of 24 commands over 5 weights


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_outputs_of_another_scale_are_wrong(packing: Packing) -> None:
    at = packing.scales_at(130, 256) + packing.scale_bytes - 1
    assert wrong_after(packing, at, 0x04) == 5


def test_a_sum_in_half_precision_is_wrong() -> None:
    run = submitted("batched", quantised_gemv(FP8))
    (_, _, outputs) = run.device.compute.views[0]
    outputs[...] = outputs.astype(np.float16).astype(np.float32)
    assert not verify(run.stream, run.device.arenas, CheckSettings(64)).ok
    run.prepared.close()
    run.device.close()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "rows", "columns"),
    [
        *(("bf16", 1000, 2), ("bf16", 4240, 1), ("bf16", 2200, 4), ("fp16", 2200, 8), ("fp32", 1000, 2)),
        *(("bf16", 4096, 1), ("fp16", 2200, 2)),  # single commands with codes of 8 bits: blocks of 16 warps
    ],
)
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_our_kernels_compute_with_quantised_weights_on_a_gpu(
    packing: Packing, dtype: str, rows: int, columns: int, tmp_path: Path
) -> None:
    """A run ends with 0 only if each output agrees with float64. 2,176 inputs end within a round of int4."""
    stored = f"workload.weights={packing.format} workload.scales={packing.scales} workload.dtype={dtype}"
    work = f"workload=gemv_256 workload.m={rows} workload.k=2176 workload.n={columns} workload.commands=200"
    modes = "mode=kernel against=[pdl,baseline,batched,multistream] repeats=1 device=cuda"
    call = f"{work} {stored} {modes} hydra.run.dir={tmp_path / 'run'}"
    done = subprocess.run([sys.executable, "-m", "runner", *call.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["fp8", "int4"])
def test_our_kernels_run_steps_with_quantised_weights_on_a_gpu(weights: str, tmp_path: Path) -> None:
    work = "workload=layer model=tiny model.hidden=128 model.head_dim=64 workload.tokens=4 sampling=greedy"
    stored = f"workload.weights={weights} workload.dtype=bf16 workload.cache=hot"
    call = f"{work} {stored} mode=kernel against=[pdl] repeats=1 device=cuda hydra.run.dir={tmp_path / 'run'}"
    done = subprocess.run([sys.executable, "-m", "runner", *call.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_our_gemm_of_decode_steps_takes_quantised_weights_on_a_gpu(packing: Packing, tmp_path: Path) -> None:
    work = "workload=layer model=tiny model.hidden=128 model.head_dim=64 workload.tokens=4 workload.requests=3"
    stored = f"workload.weights={packing.format} workload.scales={packing.scales} workload.dtype=bf16"
    stack = "mode=engine mode.submit=graph mode.kernels=own mode.pdl=true against=[coalesced+own] sampling=greedy"
    call = f"{work} {stored} {stack} workload.cache=hot repeats=1 device=cuda hydra.run.dir={tmp_path / 'run'}"
    done = subprocess.run([sys.executable, "-m", "runner", *call.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_modes_without_kernels_refuse_quantised_weights_in_one_line(kind: str) -> None:
    stream = quantised_steps(FP8)
    for name in MODES:
        mode = mode_class(name)
        why = mode.refusal(kind, stream)
        if kind not in mode.quantised:
            assert why is not None, name
            assert "\n" not in why
    for name in ("torch_eager", "engine"):
        why = mode_class(name).refusal("cuda", stream)
        assert why is not None
        assert why.startswith("has no kernels for fp8 weights on the cuda device: use mode=baseline, batched, ")
        assert why.endswith("mode=graph or expert_kernel, or workload.weights=none")
        assert "mode.kernels=own" in why
