"""Stand-ins for Triton's compiler and its GEMM of experts, for a fake of CUDA. fp32 only, as all stand-ins."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.devices.cublaslt.kernel_plans import Launch
from support.cuda.fake_expert_kernels import of_struct
from support.cuda.fake_kernels import rows_at

PACKAGE = "launchopt.devices.triton"


class _Variant(NamedTuple):
    function: Callable[..., None]
    constants: Mapping[str, Any]
    warps: int
    stages: int = 1


class FakeTriton:
    """What a test reads and sets. ns: the time of a launch, of its constants; compiled: constants of all kernels."""

    def __init__(self) -> None:
        self.ns: Callable[[str], float] = lambda what: float(len(what))
        self.compiled: list[Mapping[str, Any]] = []

    def load(self, kernels: Any, variants: Sequence[_Variant]) -> list[Any]:
        """Do as `load_variants`."""
        self.compiled += [each.constants for each in variants]
        return [self._loaded(kernels, each) for each in variants]

    @staticmethod
    def _loaded(kernels: Any, variant: _Variant) -> Any:
        read = of_struct(bool(variant.constants["INDIRECT"]), 0, partial(variant.function, **variant.constants))
        launch = lambda grid: Launch(grid, (32 * variant.warps, 1, 1), 0, np.zeros(2, np.int64))  # noqa: E731
        return SimpleNamespace(function=kernels.raw(read), launch=launch)

    def ns_a_launch(self, stream: Any, launch: Callable[[int], None], turns: int, what: object) -> float:
        """Launch each turn, and return a time that the test has set."""
        for turn in range(turns):
            launch(turn)
        return self.ns(str(what))


def expert_gemm(operands: list[int], **constants: Any) -> None:
    """Do as the kernel of devices/triton/expert_kernels.py."""
    of = SimpleNamespace(**constants)
    a, b, c, at = operands
    head_words = of.BLOCK_WORDS + of.BLOCK_M
    count = int(rows_at(at, 1, 1, 0).view(np.int32)[0, 0])
    for block in range(count):
        words = rows_at(at + 4 * (of.BLOCK_WORDS + block * head_words), 1, head_words, 0).view(np.int32)[0]
        expert, row, rows = words[:3].tolist()
        for i in range(rows):
            given = words[of.BLOCK_WORDS + i] // of.TOP_K if of.TOP_K else row + i
            x = rows_at(b + 4 * int(given) * of.LEADING[0], 1, of.K, of.K)[0]
            with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads any values
                product = rows_at(a + 4 * expert * of.WEIGHT, of.M, of.K, of.K) @ x
            rows_at(c + 4 * (row + i) * of.LEADING[1], 1, of.M, of.M)[0] = product


@contextmanager
def fake_triton(device: Any) -> Iterator[FakeTriton]:
    """Inside, modes of Triton compile and time kernels by stand-ins. device: of `fake_cuda`."""
    made, plans, kernels = FakeTriton(), ModuleType("plans"), ModuleType("expert_kernels")
    vars(plans).update(TYPES={each: each for each in Dtype}, Variant=_Variant, Loaded=object, load_variants=None)
    vars(kernels).update(expert_gemm=expert_gemm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, f"{PACKAGE}.plans", plans)
        patch.setitem(sys.modules, f"{PACKAGE}.expert_kernels", kernels)
        gemms = importlib.import_module(f"{PACKAGE}.expert_gemms")
        patch.setattr(gemms, "load_variants", partial(made.load, device.cupy.kernels))
        patch.setattr(gemms, "ns_a_launch", made.ns_a_launch)
        yield made
