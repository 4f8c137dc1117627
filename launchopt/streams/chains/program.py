"""Programs: the ops of a step in order, and the output that each one reads.

In: sizes of a model, or a number of features. Out: a `Program`: nodes that run once per step (`prologue`) and nodes
that run once per layer. `chain.ChainStream` turns them into commands. B of a node is the output of an earlier node of
its layer, or "x", the layer's input. A follows from the op (a weight, or the cache); only ADD and KV_WRITE name it.
Outputs of merged GEMMs are side by side: a node that names the first of them can read them all as one.

    linear_program           GEMMs, each on the first k features of the previous one's output
    layer_program            a transformer's layer: 14 launches, and one per step that maps the cache; q, k and v, and
                             gate and up, are one GEMM each, or GEMMs of their own (17 launches)
    qkv_program              the GEMMs of `linear_program` for a model, with q, k and v as separate GEMMs
    linear_epilogue_program  GEMM, bias, ReLU
    elementwise_program      bias, ReLU, scale

A program whose sizes or order do not fit together raises a ConfigError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launchopt.command import Op
from launchopt.errors import ConfigError
from launchopt.streams.chains.attention import AttentionShape
from launchopt.streams.model import NORM_EPSILON, ModelShape
from launchopt.weights.packing import PLAIN, Packing

INPUT = "x"
SLOTS = "slots"
HEAD = "head"  # the LM head, which a stream with sampling adds
GATHERED = "head_gather"  # the logits of all GPUs, side by side, if each has a part of the LM head
VECTOR_OPS = (Op.BIAS, Op.SCALE, Op.NORM)  # A is a vector of m features; of ROPE, it may be the gains of q and k
SAME_WIDTH_OPS = (Op.BIAS, Op.RELU, Op.SCALE, Op.NORM, Op.ROPE, Op.SOFTMAX, Op.ADD, Op.ALL_REDUCE)  # ops with m = k


@dataclass(frozen=True, slots=True)
class Node:
    """One op with m output and k input features.

    b: the node whose output is B. a: the node whose output is A, for ADD and KV_WRITE. parts: the features of each of
    the vectors that a GEMM computes side by side, such as q, k and v; empty: one.
    """

    name: str
    op: Op
    m: int
    k: int
    b: str
    a: str | None = None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """The ops of a step. Raises ConfigError if they do not fit together.

    merged: names of successive GEMMs whose weights, and whose outputs, are stored side by side like those of one GEMM.
    A node whose B is the first of them reads either its output or the joined output of all. norm_epsilon: of all norms,
    also of those of heads.
    """

    layer: tuple[Node, ...]
    hidden: int
    prologue: tuple[Node, ...] = ()
    attention: AttentionShape | None = None
    merged: tuple[tuple[str, ...], ...] = ()
    norm_epsilon: float = NORM_EPSILON

    def __post_init__(self) -> None:
        widths = {INPUT: self.hidden}
        for node in self.prologue:
            if (node.op, node.name, self.attention is None) != (Op.SLOT_MAP, SLOTS, False):
                raise _misfit(node, "once a step there is only the slot map of an attention's cache, named slots")
        ops = {INPUT: Op.GEMM}
        for node in self.layer:
            if node.name in widths or node.name in (SLOTS, HEAD, GATHERED):
                raise _misfit(node, "its name is taken")
            self._check(node, widths, ops)
            widths[node.name], ops[node.name] = node.m, node.op
        if not self.layer or self.layer[-1].m != self.hidden or self.layer[-1].op is Op.KV_WRITE:
            raise ConfigError("program", self.hidden, f"the last node must give hidden={self.hidden} features")
        self._check_merged()

    def _check(self, node: Node, widths: dict[str, int], ops: dict[str, Op]) -> None:
        if not isinstance(node.op, Op):  # a package's program need not have been type-checked
            raise ConfigError(f"program.{node.name}", node.op, f"no op; allowed: {', '.join(each.name for each in Op)}")
        if node.b not in widths or ops[node.b] is Op.KV_WRITE:
            raise _misfit(node, f"no node before it gives {node.b}")
        given = [widths[node.b], self._joined(node.b, widths)]
        if node.k > max(given) or (node.k not in given and node.op is not Op.GEMM):
            raise _misfit(node, f"it takes {node.k} features and {node.b} gives {max(given)}")
        if min(node.m, node.k) < 1 or (node.op in SAME_WIDTH_OPS and node.m != node.k):
            raise _misfit(node, f"it cannot give {node.m} features from {node.k}")
        if node.op is Op.SILU_MUL and node.k != 2 * node.m:
            raise _misfit(node, f"it gives half of {node.k} features")
        if node.op is Op.ADD and widths.get(node.a or "", 0) != node.m:
            raise _misfit(node, f"what it adds, {node.a}, must have {node.m} features")
        if node.op is Op.KV_WRITE and (node.a != SLOTS or not self.prologue):
            raise _misfit(node, "it writes at the slots that a slot map gives")
        if node.op not in (Op.ADD, Op.KV_WRITE) and node.a is not None:
            raise _misfit(node, "its A follows from its op")
        self._check_attention(node, ops)

    def _joined(self, name: str, widths: dict[str, int]) -> int:
        """Return the features of the joined output that begins with a node's, of the nodes that `widths` has."""
        names = next((names for names in self.merged if names[0] == name), (name,))
        return sum(widths[each] for each in names) if set(names) <= set(widths) else widths[name]

    def _check_attention(self, node: Node, ops: dict[str, Op]) -> None:
        """Check the sizes of an op of attention, and that it reads the output of the right op."""
        if node.op not in ATTENTION:
            return
        if self.attention is None:
            raise _misfit(node, "it needs heads, and the program has none")
        shape, reads = self.attention, ATTENTION[node.op]
        sizes = {
            Op.ROPE: (shape.qkv_width, shape.qkv_width),
            Op.KV_WRITE: (2 * shape.kv_width, shape.qkv_width),
            Op.QK: (shape.scores_width, shape.qkv_width),
            Op.SOFTMAX: (shape.scores_width, shape.scores_width),
            Op.AV: (shape.q_width, shape.scores_width),
        }[node.op]
        if (node.m, node.k) != sizes:
            raise _misfit(node, f"{node.m} features from {node.k}: its heads ask for {sizes[0]} from {sizes[1]}")
        if reads is not None and ops[node.b] is not reads:
            raise _misfit(node, f"it must read what {reads.name} gives")
        if node.op is Op.QK and Op.KV_WRITE not in ops.values():
            raise _misfit(node, "it reads a cache that nothing in its layer writes")

    def _check_merged(self) -> None:
        order = [node.name for node in self.layer]
        for names in self.merged:
            if len(names) < 2 or not set(names) <= set(order):
                raise ConfigError("program", names, "merged are two nodes or more of the layer")
            at = order.index(names[0])
            nodes = self.layer[at : at + len(names)]
            alike = {(node.op, node.b, node.k) for node in nodes}
            if tuple(order[at : at + len(names)]) != names or len(alike) > 1 or nodes[0].op is not Op.GEMM:
                raise ConfigError("program", names, "merged are GEMMs in a row that read the same features")
            if names[-1] == order[-1]:
                raise ConfigError("program", names, "a layer's output cannot be merged with another")

    def sources(self, node: Node) -> tuple[str, ...]:
        """Return the names of the nodes whose outputs, side by side, are B of a node; or (INPUT,)."""
        names = next((names for names in self.merged if names[0] == node.b), (node.b,))
        return names if names[0] != INPUT and node.k > self.node(node.b).m else (node.b,)

    def weight_bytes(self, itemsize: int, packing: Packing = PLAIN) -> int:
        """Return the bytes of all weights of a layer. packing: of those of GEMMs. itemsize: of other elements."""
        gemms = sum(packing.bytes(node.m, node.k, itemsize) for node in self.layer if node.op is Op.GEMM)
        return gemms + sum(self.vector_width(node) for node in self.layer) * itemsize

    def vector_width(self, node: Node) -> int:
        """Return the elements of a node's weight, if that is a vector; else 0."""
        if node.op is Op.ROPE and self.attention is not None:
            return self.attention.gains_width
        return node.m if node.op in VECTOR_OPS else 0

    def node(self, name: str) -> Node:
        """Return the node called `name`."""
        return next(node for node in (*self.prologue, *self.layer) if node.name == name)


ATTENTION: dict[Op, Op | None] = {  # for each op of attention, the op whose output its B must be
    Op.ROPE: None,
    Op.KV_WRITE: Op.ROPE,
    Op.QK: Op.ROPE,
    Op.SOFTMAX: Op.QK,
    Op.AV: Op.SOFTMAX,
}


def _misfit(node: Node, why: str) -> ConfigError:
    return ConfigError(f"program.{node.name}", node.op.name, why)


def linear_program(linears: Sequence[tuple[int, int]], parts: Sequence[tuple[int, ...]] = ()) -> Program:
    """Return GEMMs of (m, k), each on the first k features of the previous one's output. parts: `Node.parts`."""
    widths, hidden = [m for m, _ in linears], linears[0][1]
    for (_, k), before in zip(linears, [widths[-1], *widths], strict=False):
        if k > before:
            raise ConfigError("model", f"{before} -> {k}", "a layer needs more features than the one before gives")
    if widths[-1] != hidden:
        raise ConfigError("model", widths[-1], f"the last layer must give hidden={hidden} features")
    names = [INPUT, *(f"linear{i}" for i in range(len(linears)))]
    nodes = zip(names[1:], names, linears, parts or [()] * len(linears), strict=False)
    return Program(tuple(Node(name, Op.GEMM, m, k, before, parts=own) for name, before, (m, k), own in nodes), hidden)


def layer_program(model: ModelShape, ctx: int, page: int | None = None, merged: bool = True) -> Program:
    """Return a transformer's layer.

    ctx: maximum tokens of a request. page: tokens of a page of the cache; None: a contiguous cache. merged: q, k and v
    are one GEMM, and so are gate and up; if not, each is a GEMM of its own, with the same memory. The activation of the
    MLP is SiLU(gate) * up, or ReLU in a model without a gate.
    """
    heads = AttentionShape(
        model.q_heads, model.kv_heads, model.head_dim, ctx, page, model.rope_theta, qk_norm=model.qk_norm
    )
    hidden, qkv, scores, inner = model.hidden, heads.qkv_width, heads.scores_width, model.intermediate
    projections = {"q": heads.q_width, "k": heads.kv_width, "v": heads.kv_width}
    ups = {"gate": inner, "up": inner} if model.gated else {"up": inner}
    parts = {"qkv": tuple(projections.values()), "gate_up": tuple(ups.values())}
    if merged:
        projections, ups = {"qkv": qkv}, {"gate_up": 2 * inner} if model.gated else ups
    (projected, *_), (up, *_) = projections, ups
    if model.gated:
        activated = Node("silu_mul", Op.SILU_MUL, inner, 2 * inner, up)
    else:
        activated = Node("relu", Op.RELU, inner, inner, up)
    layer = (
        Node("norm1", Op.NORM, hidden, hidden, INPUT),
        *(
            Node(name, Op.GEMM, width, hidden, "norm1", parts=parts.get(name, ()))
            for name, width in projections.items()
        ),
        Node("rope", Op.ROPE, qkv, qkv, projected),
        Node("kv_write", Op.KV_WRITE, 2 * heads.kv_width, qkv, "rope", SLOTS),
        Node("qk", Op.QK, scores, qkv, "rope"),
        Node("softmax", Op.SOFTMAX, scores, scores, "qk"),
        Node("av", Op.AV, heads.q_width, scores, "softmax"),
        Node("o", Op.GEMM, hidden, heads.q_width, "av"),
        Node("add1", Op.ADD, hidden, hidden, "o", INPUT),
        Node("norm2", Op.NORM, hidden, hidden, "add1"),
        *(Node(name, Op.GEMM, width, hidden, "norm2", parts=parts.get(name, ())) for name, width in ups.items()),
        activated,
        Node("down", Op.GEMM, hidden, inner, activated.name),
        Node("add2", Op.ADD, hidden, hidden, "down", "add1"),
    )
    prologue = (Node(SLOTS, Op.SLOT_MAP, 1, 1, INPUT),)
    apart = tuple(tuple(names) for names in (projections, ups) if len(names) > 1)
    return Program(layer, hidden, prologue, heads, apart, model.norm_epsilon)


def qkv_program(model: ModelShape) -> Program:
    """Return a model's linear layers, with q, k and v as separate GEMMs whose outputs are side by side in memory."""
    q, kv = model.q_heads * model.head_dim, model.kv_heads * model.head_dim
    _, _, up, down = model.linears()
    layer = (
        Node("q", Op.GEMM, q, model.hidden, INPUT),
        Node("k", Op.GEMM, kv, model.hidden, INPUT),
        Node("v", Op.GEMM, kv, model.hidden, INPUT),
        Node("o", Op.GEMM, model.hidden, q, "q"),
        Node(up[0], Op.GEMM, *up[1:], "o", parts=model.linear_parts()[2]),
        Node(down[0], Op.GEMM, *down[1:], up[0]),
    )
    return Program(layer, model.hidden, merged=(("q", "k", "v"),))


def linear_epilogue_program(hidden: int) -> Program:
    """Return a linear layer, its bias and its ReLU."""
    layer = (
        Node("gemm", Op.GEMM, hidden, hidden, INPUT),
        Node("bias", Op.BIAS, hidden, hidden, "gemm"),
        Node("relu", Op.RELU, hidden, hidden, "bias"),
    )
    return Program(layer, hidden)


def elementwise_program(hidden: int) -> Program:
    """Return three elementwise ops: bias, ReLU and scale."""
    layer = (
        Node("bias", Op.BIAS, hidden, hidden, INPUT),
        Node("relu", Op.RELU, hidden, hidden, "bias"),
        Node("scale", Op.SCALE, hidden, hidden, "relu"),
    )
    return Program(layer, hidden)
