"""Descriptions of a list: names of fused instructions, and the weights that it reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import Op
from launchopt.devices.instructions.words import PART, WORDS, Instructions, Word, names_of, weight_bytes
from launchopt.kernels.shared_megakernel import JOIN


def listed(*rows: dict[str, Any]) -> Instructions:
    made = np.zeros((len(rows), WORDS), np.int64)
    for row, words in zip(made, rows, strict=True):
        row[Word.REQUESTS] = 1
        for name, value in words.items():
            row[Word[name]] = value
    return made


GEMM = {"OP": Op.GEMM, "M": 64, "K": 32, "A": 1 << 20}


def test_names_of_gemms_have_the_shape_of_their_weights() -> None:
    assert names_of(listed(GEMM, {"OP": Op.NORM, "M": 32}, GEMM | {"K": 48}, {"OP": JOIN})) == [
        "GEMM 64x32",
        "NORM",
        "GEMM 64x48",
        "JOIN",
    ]


def test_fused_instructions_have_one_name() -> None:
    norm = {"OP": Op.NORM, "M": 32, "FUSED": 2}
    parts = GEMM | {"FUSED": PART}, {"OP": Op.ADD, "M": 64, "FUSED": PART}
    assert names_of(listed(norm, *parts, GEMM)) == ["NORM + GEMM 64x32 + ADD", "GEMM 64x32"]


def test_a_weight_with_several_readers_counts_once() -> None:
    one = GEMM | {"REQUESTS": 16}
    assert weight_bytes(listed(one), 2) == 64 * 32 * 2
    assert weight_bytes(listed(one, one | {"FIRST_REQUEST": 16}), 2) == 64 * 32 * 2
    assert weight_bytes(listed(one, one | {"A": 2 << 20}, {"OP": Op.NORM, "M": 32, "A": 3 << 20}), 4) == 2 * 64 * 32 * 4
    assert weight_bytes(listed(one | {"STRIDE_A": 8192}), 4) == 16 * 64 * 32 * 4, "each request has its own"
    assert weight_bytes(listed({"OP": Op.NORM}), 2) == 0
