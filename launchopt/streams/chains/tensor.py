"""Tensor parallelism: the share of a program that each of several GPUs executes, and of its weights.

In: the program of a whole model, and that of `ModelShape.share`. Out: a `Split`, with the program of one GPU, and the
part of a whole weight that each GPU holds (`Cut`).

Weights are cut as engines cut them (Shoeybi et al. 2019, Megatron-LM). GEMMs of q, k, v, gate and up keep a range of
their rows, that is of heads and of inner features. GEMMs of o and down keep a range of their columns, so that each GPU
has a part of every sum. An all-reduce behind them adds these parts. The LM head keeps a range of its rows, that is of
the vocabulary, and a gather behind it puts the logits of all GPUs side by side. Norms and embeddings are on all GPUs,
and so is an LM head whose rows cannot be divided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from launchopt.command import Op
from launchopt.streams.chains.program import Node, Program


class Cut(NamedTuple):
    """The part of a whole weight that a GPU holds: ranges of rows, one after the other, and a range of columns."""

    rows: tuple[range, ...]
    columns: range


def sum_of(name: str) -> str:
    """Return the name of the all-reduce behind a node."""
    return f"{name}_sum"


def head_share(vocab: int, tensor: int) -> int:
    """Return the features of the LM head that each of `tensor` GPUs computes: all, if they cannot be divided."""
    return vocab if vocab % tensor else vocab // tensor


@dataclass(frozen=True, slots=True)
class Split:
    """The program of a whole model, and that of its share (`ModelShape.share`) on each of `tensor` GPUs.

    rounds_sums: an all-reduce rounds each partial sum to the dtype, as NCCL does; False: only the whole sum.
    """

    whole: Program
    share: Program
    tensor: int
    rounds_sums: bool = False

    @property
    def program(self) -> Program:
        """The program of one GPU: the share, with an all-reduce behind each GEMM that is partial.

        A part may be written again only behind a later all-reduce, at which the others have read it. All layers of a
        prompt write to the same places, so a layer must have two all-reduces.
        """
        sums: dict[str, str] = {}
        layer = list[Node]()
        for node in self.share.layer:
            a = node.a if node.a is None else sums.get(node.a, node.a)
            layer.append(replace(node, b=sums.get(node.b, node.b), a=a))
            if self.is_partial(node.name):
                sums[node.name] = name = sum_of(node.name)
                layer.append(Node(name, Op.ALL_REDUCE, node.m, node.m, node.name))
        assert len(sums) != 1
        return replace(self.share, layer=tuple(layer))

    def is_partial(self, name: str) -> bool:
        """Return whether a GPU has only a part of the inputs of a node's sums: the node's weight is cut by columns."""
        share, whole = self.share.node(name), self.whole.node(name)
        return share.op is Op.GEMM and share.k < whole.k

    def cut(self, name: str, rank: int) -> Cut:
        """Return the part of a GEMM's whole weight that the GPU with number `rank` holds."""
        node = self.whole.node(name)
        if self.is_partial(name):
            return Cut((range(node.m),), self._own(0, node.k, rank))
        rows, at = list[range](), 0
        for width in node.parts or (node.m,):
            rows.append(self._own(at, width, rank))
            at += width
        return Cut(tuple(rows), range(node.k))

    def head_cut(self, vocab: int, rank: int) -> Cut:
        """Return the part of the whole LM head that the GPU with number `rank` holds."""
        is_cut = head_share(vocab, self.tensor) < vocab
        return Cut((self._own(0, vocab, rank) if is_cut else range(vocab),), range(self.whole.hidden))

    def _own(self, start: int, width: int, rank: int) -> range:
        size = width // self.tensor
        return range(start + rank * size, start + (rank + 1) * size)
