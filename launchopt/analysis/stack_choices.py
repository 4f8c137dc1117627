"""Choices of a mode, from the column `stack` of its rows: how its launches reach the GPU, and whose kernels compute.

In: a row of a summary, or a line of a table. Out: names of choices. Pure.

    choices_of({"stack": "coalesce fuse=qkv,norm submit=graph pdl kernels=own", ...})
    # ['coalesce', 'qkv', 'norm', 'graph', 'pdl', 'own']

The name of a mode says whose kernels its own stack launches: `cublaslt_fp8` also quantises inputs, and a mode of a
package has launches of its own. A changed stack, such as `engine+graph`, says it itself. Files of older versions have
no stacks, so a label's first name stands for its stack there.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from launchopt.stack import Kernels, Submit, preset_of

_CHOICE = re.compile(r"\w+(?=[ ,]|$)")
_OWN_KERNELS = frozenset({"kernel", "pdl", "triton_batched", "fused_elementwise", "fused_triton"})
_CUBLASLT = frozenset({"baseline", "batched", "coalesced", "fused_epilogue", "fused_qkv", "multistream"}) | {
    *("grouped", "pointer_array", "engine"),
}


class HasColumns(Protocol):
    """A row, or a line, whose columns have names."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of a column."""


def choices_of(row: HasColumns) -> list[str]:
    """Return the choices of a stack in their order; none if its file has no stack."""
    return _CHOICE.findall(str(row["stack"] or ""))


def launches_own_kernels(row: HasColumns) -> bool:
    """Return whether every launch is that of a kernel of our own, or of Triton, on a stream."""
    if (stack := _changed(row)) is None:
        return preset_of(row["mode"]) in _OWN_KERNELS
    return Submit.stream in stack and bool({Kernels.own, Kernels.triton} & stack)


def launches_cublaslt(row: HasColumns) -> bool:
    """Return whether every launch is a call of cuBLASLt on a stream."""
    if (stack := _changed(row)) is None:
        return preset_of(row["mode"]) in _CUBLASLT
    return {Submit.stream, Kernels.cublaslt} <= stack


def _changed(row: HasColumns) -> frozenset[str] | None:
    """Return the choices of a stack that is not its mode's own; None for that one, and if they are unknown."""
    found = frozenset(choices_of(row))
    return found if found and row["mode"] != preset_of(row["mode"]) else None
