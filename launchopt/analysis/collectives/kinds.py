"""The kind of collective that a kernel does, from the name that a profiler gives it.

Only kinds that end on no GPU before they have begun on all. A broadcast, a reduction to one GPU, an all-to-all, a send
and a receive may end earlier on some GPUs: they have no kind.
"""

from __future__ import annotations

import re
from enum import Enum

from launchopt.traces.events import Collective


class Kind(Enum):
    """A kind of collective, as it is shown."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"


# Names of kernels: NCCL's, NVSHMEM's (on a stream), those of engines and of Transformer Engine, and our own.
_KERNELS = {
    Kind.REDUCE_SCATTER: r"reduce_?scatter|userbuffers_\w+_rs(_|\b)",
    Kind.ALL_GATHER: r"all_?gather|fcollect_on_stream|userbuffers_\w+_ag(_|\b)",
    Kind.ALL_REDUCE: r"all_?reduce|cross_device_reduce|\bREDUCE_ADD|rdxn_on_stream|userbuffers_fp16_sum_inplace",
}
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _KERNELS.items()}
# What the profiler of PyTorch says, without all but letters. A barrier is an all-reduce.
_SAID = {
    "reducescatter": Kind.REDUCE_SCATTER,
    "allgather": Kind.ALL_GATHER,
    "allreduce": Kind.ALL_REDUCE,
    "barrier": Kind.ALL_REDUCE,
}
# Inductor names a kernel of the GPU alone after the operators beside it, collectives among them.
_FUSED = re.compile(r"triton_[a-z]+_fused")
_INNER = re.compile(r"<[^<>]*>|\(anonymous namespace\)::")


def kind_of(kernel: str, said: Collective | None = None) -> Kind | None:
    """Return the kind; None if it has none. said: what the profiler says beside the name of the kernel, if anything."""
    if said is not None and said.name:
        letters = re.sub("[^a-z]", "", said.name.lower())
        return next((kind for name, kind in _SAID.items() if name in letters), None)
    if _FUSED.match(kernel):
        return None
    # Types among the parameters of a kernel say nothing of what it does.
    while (shorter := _INNER.sub("", kernel)) != kernel:
        kernel = shorter
    own = re.split("[<(]", kernel, maxsplit=1)[0]
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(own)), None)
