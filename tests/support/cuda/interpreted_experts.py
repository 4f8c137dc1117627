"""Runs the Triton GEMM of experts in Triton's interpreter, on NumPy's memory: `python interpreted_experts.py`.

A program of its own: the interpreter is chosen when Triton is imported (TRITON_INTERPRET=1). Prints what it did.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.triton.expert_gemms import shape_of, variant
from launchopt.devices.triton.expert_tuning import ExpertConfig, blocks_bytes, most_blocks
from launchopt.kernels.shared import BLOCK_WORDS
from launchopt.streams.experts.layout import ExpertLayer, ExpertLayout

DTYPE = Dtype.fp16  # the interpreter's tl.dot takes bf16 for integers
LAYERS = [ExpertLayer(64, 32, 5, 2, 9), ExpertLayer(40, 24, 3, 3, 7), ExpertLayer(32, 48, 40, 4, 1)]
CONFIGS = [
    ExpertConfig(16, 16, 16, 4, 2),
    ExpertConfig(16, 32, 64, 4, 3),
    ExpertConfig(32, 64, 32, 4, 2, group=16),
    ExpertConfig(16, 16, 32, 4, 2, group=2),
]


def random(*shape: int) -> Any:
    values = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
    return from_float32(values, DTYPE)


def blocks_of(layer: ExpertLayer, chosen: Any, rows: int) -> tuple[Any, Any, Any]:
    """Return the blocks of up to `rows` rows, the entry of each row, and the first row of each expert, and the end."""
    order = np.argsort(chosen.reshape(-1), kind="stable")
    firsts = np.append(0, np.cumsum(np.bincount(chosen.reshape(-1), minlength=layer.experts)))
    blocks = np.full(blocks_bytes(layer, rows) // 4, -1, np.int32)
    heads, count = blocks[BLOCK_WORDS:].reshape(-1, BLOCK_WORDS + rows), 0
    for expert, (first, end) in enumerate(pairwise(firsts)):
        for row in range(first, end, rows):
            own = order[row : min(row + rows, end)]
            heads[count, :3] = expert, row, len(own)
            heads[count, BLOCK_WORDS : BLOCK_WORDS + len(own)] = own
            count += 1
    blocks[0] = count
    return blocks, order, firsts


def check(layer: ExpertLayer, name: str, config: ExpertConfig, indirect: bool) -> None:
    layout = ExpertLayout(layer, DTYPE)
    shape = shape_of(layout, name)
    generator = np.random.default_rng(layer.columns)
    chosen = np.array([np.sort(generator.permutation(layer.experts)[: layer.top_k]) for _ in range(layer.columns)])
    blocks, order, firsts = blocks_of(layer, chosen, config.rows)
    made = variant(layout, name, config, indirect, early=False)
    weight, (given, out) = int(made.constants["WEIGHT"]), made.constants["LEADING"]  # type: ignore[call-overload,misc]
    a, b = random(layer.experts, weight), random(layer.columns if made.constants["TOP_K"] else layer.rows, given)
    c = from_float32(np.full((layer.rows + 1, out), np.nan, np.float32), DTYPE)
    addresses = np.array([each.ctypes.data for each in (a, b, c, blocks)], np.int64)
    arguments = [addresses.ctypes.data, 0, 0, 0] if indirect else addresses.tolist()
    grid = (most_blocks(layer, config.rows) * -(-shape.m // config.features), 1, 1)
    made.function[grid](*arguments, **made.constants)
    rows = b[order // layer.top_k] if made.constants["TOP_K"] else b
    got, wide = to_float32(c, DTYPE), to_float32(rows, DTYPE)[:, : shape.k]
    for expert, (first, end) in enumerate(pairwise(firsts)):
        own = to_float32(a[expert, : shape.m * shape.k], DTYPE).reshape(shape.m, shape.k)
        exact = wide[first:end].astype(np.float64) @ own.T.astype(np.float64)
        error = np.abs(got[first:end, : shape.m] - exact)
        assert (error <= 2 * DTYPE.unit_roundoff * np.abs(exact) + 1e-4).all(), f"{layer} {name} {config} {expert}"
    assert np.isnan(got[:, shape.m :]).all(), "written beside C"
    assert np.isnan(got[-1]).all(), "written behind C"


def main() -> None:
    """Check both GEMMs of each layer with each configuration."""
    for layer in LAYERS:
        for name in ("gate_up", "down"):
            for config in CONFIGS:
                for indirect in (False, True):
                    check(layer, name, config, indirect)
                print(f"{layer} {name} {config}")


if __name__ == "__main__":
    main()
