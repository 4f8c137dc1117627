"""Stacks: the independent choices that a mode is made of, and the label that says how a stack differs from another.

`launchopt.modes.stack` has the stack of every mode (PRESETS), and the choices that cannot be combined (RULES).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass


class Fusion(enum.StrEnum):
    """Rows of a step that become one launch."""

    qkv = "qkv"  # the GEMMs of q, k and v; a workload that stores them merged has one GEMM already
    gate_up = "gate_up"  # the GEMMs of gate and up; likewise
    norm = "norm"  # a norm with the add before it; kernels=own: within the GEMM that reads it
    rope_kv = "rope_kv"  # rotary embedding and KV write
    attention = "attention"  # QK, softmax and AV; with rope_kv: these two as well
    silu = "silu"  # SiLU(gate) * up within the GEMM before it
    reduce = "reduce"  # an all-reduce with the residual add behind it; with norm: and the norm
    epilogue = "epilogue"  # bias, ReLU and scale; kernels=own: the residual add within the GEMM before it
    route = "route"  # of a layer with experts: router, top-k and map; the permutation within the GEMMs of gate and up
    activate = "activate"  # of a layer with experts: SiLU(gate) * up within the GEMMs before it
    combine = "combine"  # of a layer with experts: the weighted sum within the GEMMs before it


EXPERT_FUSIONS = (Fusion.route, Fusion.activate, Fusion.combine)  # by our own kernels of a layer with experts


class Submit(enum.StrEnum):
    """The way in which launches reach the GPU."""

    stream = "stream"
    graph = "graph"
    graph_loop = "graph_loop"  # a graph whose conditional node repeats a step
    graph_device = "graph_device"  # a graph that launches itself again after each step
    persistent = "persistent"
    megakernel = "megakernel"


class Kernels(enum.StrEnum):
    """Whose kernels compute."""

    cublaslt = "cublaslt"  # cuBLASLt's GEMMs, our own kernels for everything else
    own = "own"
    triton = "triton"
    torch = "torch"


LOOPS = frozenset({Submit.graph_loop, Submit.graph_device})  # one launch generates several tokens of each request
COALESCE, PDL = "coalesce", "pdl"  # names of the choices that are on or off


@dataclass(frozen=True, slots=True)
class Stack:
    """A mode's choices. coalesce: requests that share a weight become columns. pdl: dependent launches overlap."""

    coalesce: bool = False
    fuse: frozenset[Fusion] = frozenset()
    submit: Submit = Submit.stream
    pdl: bool = False
    kernels: Kernels = Kernels.cublaslt

    @property
    def choices(self) -> frozenset[str]:
        """Names of all choices: those that are on, the fusions, and the values of `submit` and `kernels`."""
        switched = {name for name, is_on in ((COALESCE, self.coalesce), (PDL, self.pdl)) if is_on}
        return frozenset({*switched, *map(str, self.fuse), str(self.submit), str(self.kernels)})

    def __str__(self) -> str:
        """Return the choices as options: `coalesce fuse=qkv,norm submit=graph pdl kernels=own`."""
        fuse = ",".join(each for each in Fusion if each in self.fuse)
        parts = [COALESCE if self.coalesce else "", f"fuse={fuse}" if fuse else "", f"submit={self.submit}"]
        return " ".join(filter(None, [*parts, PDL if self.pdl else "", f"kernels={self.kernels}"]))

    def replaced(self, options: Mapping[str, object]) -> Stack:
        """Return the stack with the choices that `options` has by name; other names are ignored."""
        fuse = options.get("fuse", self.fuse)
        assert isinstance(fuse, list | tuple | frozenset)
        return Stack(
            bool(options.get(COALESCE, self.coalesce)),
            frozenset(Fusion(str(each)) for each in fuse),
            Submit(str(options.get("submit", self.submit))),
            bool(options.get(PDL, self.pdl)),
            Kernels(str(options.get("kernels", self.kernels))),
        )

    def over(self, base: Stack) -> str:
        """Return how the stack differs from `base`: `+norm+pdl` for added choices, `-norm` for absent ones."""
        order = [*Fusion, COALESCE, *Submit, *Kernels, PDL]
        added, absent = self.choices - base.choices, base.choices - self.choices
        plus = [f"+{each}" for each in map(str, order) if each in added]
        # A value of `submit` or `kernels` takes the place of the other one, which needs no mention.
        named = {*map(str, Fusion), COALESCE, PDL}
        return "".join([*plus, *(f"-{each}" for each in map(str, order) if each in absent & named)])


def preset_of(label: str) -> str:
    """Return the name of the mode in the label of an arm: `graph` of `graph+norm-coalesce`."""
    return label.partition("+")[0].partition("-")[0]


def parts_of(label: str) -> tuple[str, frozenset[str]]:
    """Return the name of the mode in a label, and its choices with their signs, in whatever order they are."""
    name = preset_of(label)
    return name, frozenset(re.findall(r"[+-][^+-]*", label.removeprefix(name)))
