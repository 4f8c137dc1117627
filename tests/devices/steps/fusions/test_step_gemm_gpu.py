"""Our own GEMM of a decode step on a GPU: outputs against float64, and a chain of launches that begin early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.quantised import PACKINGS
from support.steps.programs import NORM_EPSILON
from support.steps.step_gemms import GemmCase

from launchopt.command import Dtype
from launchopt.devices.steps.fusions.gemm_plan import StepGemm, divided
from launchopt.weights.packing import Packing

pytestmark = pytest.mark.gpu

HALVES = (Dtype.bf16, Dtype.fp16)


class Launcher:
    """Launches the kernel on a stream of its own."""

    def __init__(self, dtype: Dtype) -> None:
        import cupy

        from launchopt.devices.cublaslt.kernel_plans import KernelPlans

        self.stream, self._plans = cupy.cuda.Stream(non_blocking=True), KernelPlans(dtype, NORM_EPSILON)
        self._multiprocessors = int(cupy.cuda.Device().attributes["MultiProcessorCount"])

    def made(self, gemm: StepGemm, requests: int, early: bool) -> Any:
        """Return a function that launches the kernel with the addresses of A, B, C and R."""
        from launchopt.devices.cublaslt.kernel_plans import KernelLaunch

        assert gemm.refusal is None
        found = divided(gemm, requests, self._multiprocessors, early)
        function = self._plans.function("step_gemm", "step_gemm", **found.defines)
        function.max_dynamic_shared_size_bytes = found.shared_bytes
        nothing = [np.int64(0)] * 4
        launch = KernelLaunch(function, found.threads, [*nothing, found.words], self.stream, found.shared_bytes)

        def submit(*addresses: int) -> None:
            launch.with_words(found.blocks, np.concatenate([np.array(addresses, np.int64), found.words]), early)

        return submit


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("requests", [1, 2, 5, 16])
def test_outputs(dtype: Dtype, early: bool, requests: int) -> None:
    import cupy

    launcher = Launcher(dtype)
    for rows, k, fused in ((1000, 2048, ""), (3072, 1056, "norm"), (8, 8192, "add"), (1204, 576, "norm silu")):
        case = GemmCase(dtype, rows, k, requests, fused)
        operands = [cupy.asarray(each) for each in (case.a, case.b, case.c, case.r, case.gain)]
        addresses = [int(each.data.ptr) for each in operands]
        cupy.cuda.Device().synchronize()
        launcher.made(case.gemm(addresses[4]), requests, early)(*addresses[:4])
        launcher.stream.synchronize()
        case.check(operands[2].get())


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("requests", [1, 5, 16])
def test_outputs_of_quantised_weights(dtype: Dtype, packing: Packing, requests: int) -> None:
    import cupy

    launcher = Launcher(dtype)
    for rows, k, fused in ((1000, 2048, ""), (3072, 1152, "norm"), (8, 8192, "add"), (1204, 640, "norm silu")):
        case = GemmCase(dtype, rows, k, requests, fused, packing=packing)
        operands = [cupy.asarray(each) for each in (case.a, case.b, case.c, case.r, case.gain)]
        addresses = [int(each.data.ptr) for each in operands]
        cupy.cuda.Device().synchronize()
        launcher.made(case.gemm(addresses[4]), requests, True)(*addresses[:4])
        launcher.stream.synchronize()
        case.check(operands[2].get())


@pytest.mark.parametrize("requests", [1, 16])
def test_a_chain_that_starts_early_computes_the_same(requests: int) -> None:
    """Each launch reads the outputs of the previous one, and overwrites the inputs of the previous one."""
    import cupy

    size, length, copies = 2048, 300, 8
    weights = cupy.random.default_rng(1).random((copies, size, size), dtype=np.float32) - np.float32(0.5)
    weights = (weights * np.float32(np.sqrt(12 / size))).astype(np.float16)
    start = cupy.random.default_rng(2).random((requests, size), dtype=np.float32).astype(np.float16)
    launcher, found = Launcher(Dtype.fp16), list[Any]()
    gemm = StepGemm(Dtype.fp16, size, size, (2 * size, 2 * size, 2 * size, 0))
    for early in (False, True, True):
        submit, x = launcher.made(gemm, requests, early), [start.copy(), cupy.zeros_like(start)]
        cupy.cuda.Device().synchronize()
        for i in range(length):
            submit(weights[i % copies].data.ptr, x[i % 2].data.ptr, x[1 - i % 2].data.ptr, 0)
        launcher.stream.synchronize()
        found.append(x[length % 2].get())
    assert np.abs(found[0]).max() > 0.01
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
