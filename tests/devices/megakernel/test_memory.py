"""Shared memory of kernels/megakernel.cu: its declarations fit beside the dynamic part, whatever is compiled in."""

from __future__ import annotations

import re
import subprocess

import pytest
from support.cuda_on_host import built_of, can_build
from support.megakernel.kernel_runs import CALL, GREEDY

from launchopt.command import Dtype, Op
from launchopt.devices.feedback.in_launch import head_of
from launchopt.devices.megakernel.memory import LEAST_SLOTS, SLOT_BYTES, fixed_bytes, slots_of
from launchopt.kernels import source
from launchopt.kernels.shared import MOST_COLUMNS

MOST_BYTES = 227 << 10  # shared memory of a block on compute capability 9.0
AROUND = (Op.NORM, Op.ADD, Op.SILU_MUL)


def bits(*ops: Op) -> int:
    return sum(1 << int(op) for op in ops)


@pytest.mark.skipif(not can_build(), reason="needs g++")
@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16])
@pytest.mark.parametrize("columns", [1, MOST_COLUMNS])
def test_declarations_fit_in_shared_memory(columns: int, dtype: Dtype) -> None:
    """The kernel has all ops, unfused attention and greedy sampling.

    g++ also keeps declarations that a list does not use, so only a list of all ops can be checked.
    """
    ops, fused = bits(*Op), bits(*AROUND)
    slots = slots_of(columns, dtype.itemsize, ops, MOST_BYTES)
    macros = {"DTYPE": int(dtype), "COLUMNS": columns, "SLOTS": slots, "OPS": ops, "FUSED": fused}
    macros |= {"GROUPS": 1, "COUNTS": 1, "ONE_STEP": 0, "PAIRS": int(columns > 1), "LOGITS": 1}
    library = built_of(head_of(GREEDY.kind) + source("megakernel"), CALL, **macros)
    sections = subprocess.run(["readelf", "-SW", library._name], check=True, capture_output=True, text=True).stdout
    found = re.search(r"shared_memory\s+\w+\s+\w+\s+\w+\s+(\w+)", sections)
    assert found
    declared_bytes = int(found[1], 16)
    assert declared_bytes > 4096
    assert declared_bytes + fixed_bytes(columns, dtype.itemsize) + slots * SLOT_BYTES <= MOST_BYTES
    assert slots >= LEAST_SLOTS
