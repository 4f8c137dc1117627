"""What a list of instructions is about: what is done as one, by name, and what weights it has to read.

In: a list (`instruction_words`). Out: a name for each instruction, or for those that are done as one; and bytes.
"""

from __future__ import annotations

from launchopt.command import Op
from launchopt.devices.instructions.words import JOIN, Instructions, Word, groups_of


def names_of(instructions: Instructions) -> list[str]:
    """Its op, of a GEMM with m and k; of those that are done as one all of them: `NORM + GEMM 4096x1024`."""
    each = [_name(*row) for row in instructions[:, [Word.OP, Word.M, Word.K]].tolist()]
    return [" + ".join(each[i] for i in group) for group in groups_of(instructions)]


def _name(op: int, m: int, k: int) -> str:
    if op == JOIN:
        return "JOIN"
    return f"GEMM {m}x{k}" if op == Op.GEMM else Op(op).name


def weight_bytes(instructions: Instructions, itemsize: int) -> int:
    """Of the distinct weights of the list's GEMMs, m x k elements each: what has to come from memory at the least."""
    gemms = instructions[instructions[:, Word.OP] == Op.GEMM]
    found = {
        a + request * stride: m * k
        for a, stride, requests, m, k in gemms[:, [Word.A, Word.STRIDE_A, Word.REQUESTS, Word.M, Word.K]].tolist()
        for request in range(requests if stride else 1)
    }
    return int(sum(found.values())) * itemsize
