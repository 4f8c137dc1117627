"""Programs: their nodes, and refusals of nodes that do not fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.steps.programs import GATED, PLAIN, PROGRAMS, WIDE

from launchopt.command import Op
from launchopt.errors import ConfigError
from launchopt.streams.chains.attention import AttentionShape
from launchopt.streams.chains.program import (
    INPUT,
    SLOTS,
    Node,
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    linear_program,
    qkv_program,
)

LAYER = layer_program(GATED, 10)
GEMM = Node("gemm", Op.GEMM, 8, 8, INPUT)
HEADS = AttentionShape(4, 2, 16, 10)
MAP = Node(SLOTS, Op.SLOT_MAP, 1, 1, INPUT)


def test_a_layer_is_fourteen_launches_and_one_a_step() -> None:
    names = "norm1 qkv rope kv_write qk softmax av o add1 norm2 gate_up silu_mul down add2"
    assert [node.name for node in LAYER.layer] == names.split()
    assert [node.op for node in LAYER.prologue] == [Op.SLOT_MAP]
    sizes = {node.name: (node.m, node.k) for node in LAYER.layer}
    assert (sizes["qkv"], sizes["kv_write"], sizes["qk"]) == ((128, 64), (64, 128), (40, 128))
    assert (sizes["softmax"], sizes["av"], sizes["o"]) == ((40, 40), (64, 40), (64, 64))
    assert (sizes["gate_up"], sizes["silu_mul"], sizes["down"]) == ((192, 64), (96, 192), (64, 96))
    read = {node.name: (node.b, node.a) for node in LAYER.layer}
    assert (read["add1"], read["add2"]) == (("o", INPUT), ("down", "add1"))
    assert read["kv_write"] == ("rope", SLOTS)
    assert {name: b for name, (b, a) in read.items() if a is None and name != "norm1"} == {
        **{"qkv": "norm1", "rope": "qkv", "qk": "rope", "softmax": "qk", "av": "softmax", "o": "av"},
        **{"norm2": "add1", "gate_up": "norm2", "silu_mul": "gate_up", "down": "silu_mul"},
    }


def test_a_layer_apart_has_a_gemm_for_each_stored_weight() -> None:
    apart, together = layer_program(GATED, 10, merged=False), layer_program(GATED, 10)
    names = "norm1 q k v rope kv_write qk softmax av o add1 norm2 gate up silu_mul down add2"
    assert [node.name for node in apart.layer] == names.split()
    assert apart.merged == (("q", "k", "v"), ("gate", "up"))
    assert apart.weight_bytes(1) == together.weight_bytes(1)
    assert [(each, apart.node(each).m, apart.node(each).b) for each in ("q", "k", "v", "gate", "up")] == [
        *(("q", 64, "norm1"), ("k", 32, "norm1"), ("v", 32, "norm1")),
        *(("gate", 96, "norm2"), ("up", 96, "norm2")),
    ]
    shared = {node.name for node in apart.layer} & {node.name for node in together.layer} - {"rope", "silu_mul"}
    assert all(apart.node(name) == together.node(name) for name in shared)
    assert [apart.sources(apart.node(name)) for name in ("rope", "silu_mul", "q", "norm1")] == [
        *(("q", "k", "v"), ("gate", "up"), ("norm1",), (INPUT,)),
    ]
    program = qkv_program(WIDE)
    assert program.sources(program.node("o")) == ("q",), "it reads q alone"
    assert layer_program(PLAIN, 10, merged=False).merged == (("q", "k", "v"),), "without a gate there is only up"


def test_a_model_without_a_gate_has_a_relu() -> None:
    program = layer_program(PLAIN, 10)
    assert [(node.name, node.op, node.m, node.k) for node in program.layer[10:13]] == [
        ("up", Op.GEMM, 80, 48),
        ("relu", Op.RELU, 80, 80),
        ("down", Op.GEMM, 48, 80),
    ]
    assert len(program.layer) == 14


def test_qkv_apart_has_the_weights_of_qkv_together() -> None:
    program = qkv_program(WIDE)
    assert [(node.name, node.m, node.k, node.b) for node in program.layer] == [
        ("q", 256, 128, INPUT),
        ("k", 128, 128, INPUT),
        ("v", 128, 128, INPUT),
        ("o", 128, 256, "q"),
        ("gate_up", 320, 128, "o"),
        ("down", 128, 160, "gate_up"),
    ]
    assert program.merged == (("q", "k", "v"),)
    assert (
        program.weight_bytes(1)
        == linear_program(WIDE.linear_sizes()).weight_bytes(1)
        == sum(m * k for m, k in WIDE.linear_sizes())
    )


def test_programs_without_a_model() -> None:
    assert [node.op for node in linear_epilogue_program(9).layer] == [Op.GEMM, Op.BIAS, Op.RELU]
    assert [node.op for node in elementwise_program(9).layer] == [Op.BIAS, Op.RELU, Op.SCALE]
    assert {(node.m, node.k) for node in elementwise_program(9).layer} == {(9, 9)}
    assert (linear_epilogue_program(9).weight_bytes(1), elementwise_program(9).weight_bytes(1)) == (90, 18)
    assert LAYER.weight_bytes(1) == sum(node.m * node.k for node in LAYER.layer if node.op is Op.GEMM) + 2 * 64


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_node_is_found_by_its_name(name: str) -> None:
    program = PROGRAMS[name](9)
    for node in (*program.prologue, *program.layer):
        assert program.node(node.name) is node


def without(name: str) -> Program:
    return replace(LAYER, layer=tuple(node for node in LAYER.layer if node.name != name))


def changed(name: str, **fields: object) -> Program:
    layer = tuple(replace(node, **fields) if node.name == name else node for node in LAYER.layer)
    return replace(LAYER, layer=layer)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Program((), 8), "must give hidden=8"),
        (lambda: Program((replace(GEMM, m=9),), 8), "must give hidden=8"),
        (lambda: Program((GEMM, replace(GEMM, b="gemm")), 8), "its name is taken"),
        (lambda: Program((replace(GEMM, name=INPUT),), 8), "its name is taken"),
        (lambda: Program((replace(GEMM, name=SLOTS),), 8), "its name is taken"),
        (lambda: Program((replace(GEMM, b="later"),), 8), "no node before it gives later"),
        (lambda: Program((replace(GEMM, k=9),), 8), "it takes 9 features and x gives 8"),
        (lambda: Program((replace(GEMM, m=0), GEMM), 8), "cannot give 0 features"),
        (lambda: Program((replace(GEMM, a=INPUT),), 8), "its A follows from its op"),
        (lambda: Program((Node("bias", Op.BIAS, 4, 4, INPUT),), 8), "it takes 4 features and x gives 8"),
        (lambda: Program((Node("bias", Op.BIAS, 9, 8, INPUT),), 8), "cannot give 9 features from 8"),
        (lambda: Program((Node("mul", Op.SILU_MUL, 8, 8, INPUT),), 8), "it gives half of 8"),
        (lambda: Program((Node("add", Op.ADD, 8, 8, INPUT),), 8), "what it adds, None, must have 8"),
        (lambda: Program((replace(GEMM, m=9), Node("add", Op.ADD, 8, 8, INPUT, "gemm")), 8), "adds, gemm, must"),
        (lambda: Program((GEMM,), 8, prologue=(MAP,)), "once a step there is only the slot map"),
        (lambda: Program((GEMM,), 8, prologue=(replace(MAP, name="map"),), attention=HEADS), "once a step"),
        (lambda: replace(LAYER, attention=None, prologue=()), "it needs heads, and the program has none"),
        (lambda: replace(LAYER, attention=HEADS, prologue=()), "it writes at the slots that a slot map gives"),
        (lambda: changed("kv_write", a="qkv"), "it writes at the slots that a slot map gives"),
        (lambda: without("kv_write"), "a cache that nothing in its layer writes"),
        (lambda: without("rope"), "no node before it gives rope"),
        (lambda: changed("qk", b="qkv"), "it must read what ROPE gives"),
        (lambda: changed("kv_write", b="qkv"), "it must read what ROPE gives"),
        (lambda: changed("softmax", b="kv_write"), "no node before it gives kv_write"),
        (lambda: changed("qk", m=41), "41 features from 128: its heads ask for 40 from 128"),
        (lambda: replace(LAYER, attention=replace(HEADS, ctx=11)), "its heads ask for 44 from 128"),
        (lambda: replace(qkv_program(WIDE), merged=(("q",),)), "two nodes or more"),
        (lambda: replace(qkv_program(WIDE), merged=(("q", "w"),)), "two nodes or more"),
        (lambda: replace(qkv_program(WIDE), merged=(("k", "q"),)), "GEMMs in a row"),
        (lambda: replace(qkv_program(WIDE), merged=(("v", "o"),)), "GEMMs in a row that read the same"),
        (lambda: replace(qkv_program(WIDE), merged=(("gate_up", "down"),)), "GEMMs in a row that read the same"),
        (
            lambda: Program((GEMM, replace(GEMM, name="other")), 8, merged=(("gemm", "other"),)),
            "a layer's output cannot be merged",
        ),
        (lambda: replace(layer_program(GATED, 10, merged=False), merged=()), "it takes 128 features and q gives 64"),
        (lambda: AttentionShape(3, 2, 16, 9), "multiple of kv_heads=2"),
        (lambda: AttentionShape(4, 2, 15, 9), "must be even"),
    ],
)
def test_what_does_not_fit_together_is_refused(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=text):
        make()


def test_a_name_is_no_op() -> None:
    name: Any = "gemm"
    with pytest.raises(ConfigError, match=r"^program\.a=gemm: no op; allowed: GEMM, "):
        Program((Node("a", name, 8, 8, INPUT),), 8)
