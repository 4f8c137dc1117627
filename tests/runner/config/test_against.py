"""Modes that run in turn with `mode`: labels of stacks in `against` and `waterfall`, and the answer to a mistake."""

from __future__ import annotations

import pytest
from support.config.composing import composed

from launchopt.errors import ConfigError
from runner.config.against import checked_against, checked_orders
from runner.config.modes import mode_settings
from runner.config.objects import to_config
from runner.plan.plan import plan_of

LAYER = ("workload=layer", "model=tiny", "mode=engine", "device=cpu", "against=[]")


def test_labels_are_those_of_tables() -> None:
    assert checked_orders([["graph+coalesce", "graph+pdl+norm"]]) == [["graph", "graph+norm+pdl"]]
    assert checked_orders(None) == []
    assert checked_against(["engine-norm", "graph+norm"], mode_settings("engine")) == ["engine-norm", "graph+norm"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("graph", "waterfall=graph: not a list of lists; allowed: lists of modes, such as waterfall=[[baseline,engine"),
        (
            ["graph", "engine"],
            "waterfall=[graph,engine]: a list of modes, not of lists; allowed: lists of modes, such as",
        ),
        (["graph", "engine"], "; did you mean waterfall=[[graph,engine]]?"),
        (["graph", ["engine"]], "waterfall=graph: not a list of two or more modes; allowed: lists of modes, such as"),
        ([["graph"]], "not a list of two or more modes"),
        ([[]], "not a list of two or more modes"),
        ([["graph", 3]], "waterfall=3: no such mode; allowed: baseline, batched,"),
        ([["graph", None]], "waterfall=null: no such mode"),
        ([[["graph", "engine"]]], "waterfall=[[graph,engine]]: not a list of two or more modes; allowed: "),
        ({"a": ["graph", "engine"]}, "waterfall={a:[graph,engine]}: not a list of lists; allowed: "),
        ([["graph", "grph"]], "waterfall=grph: no such mode; allowed: "),
        ([["graph", "grph"]], "did you mean graph"),
        ([["graph", "graph+nrm"]], "waterfall=graph+nrm: nrm is no choice; allowed: "),
        ([["graph", "graph+nrm"]], "did you mean waterfall=graph+norm?"),
        ([["graph", "graph+silu"]], "waterfall=graph+silu: cuBLASLt has no epilogue for SiLU"),
        ([["graph", "graph"]], "waterfall=graph: is named twice in one order; name each mode once"),
        (
            [["graph", "graph+coalesce"]],
            "waterfall=graph+coalesce: is graph, which has these choices, and is named twice in one order",
        ),
        (
            [["graph", "engine", "coalesced+graph"]],
            "waterfall=coalesced+graph: is the same stack as graph, and each stack of an order has one choice more: "
            "leave one out",
        ),
        ([["coalesced+qkv", "fused_qkv"]], "waterfall=fused_qkv: is the same stack as coalesced+qkv, and each"),
        (
            [["graph", "engine"], ["coalesced", "graph"], ["graph+coalesce", "engine"]],
            "waterfall=[graph+coalesce,engine]: is named twice; name each order once",
        ),
        ([["engine"]], "waterfall=[engine]: not a list of two or more modes"),
    ],
)
def test_a_mistake_in_an_order_is_one_line(value: object, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_orders(value)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_modes_that_batch_in_ways_of_their_own_are_no_equal_stacks() -> None:
    order = ["baseline", "batched", "pointer_array", "coalesced-coalesce"]
    assert checked_orders([order]) == [order]


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("engine", "against=engine: is the mode itself; allowed: all alone, or modes other than mode=engine: "),
        ("engine+norm", "against=engine+norm: is mode=engine itself, which has these choices; allowed: "),
        ("graph-norm", "against=graph-norm: graph has no norm to leave out; did you mean against=graph?"),
        ("engine+norm+nor", "did you mean against=engine+norm+norm?"),
    ],
)
def test_a_mistake_in_against_names_what_was_typed(label: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_against([label], mode_settings("engine"))
    assert text in str(refused.value)


def test_every_mode_of_an_order_runs_once_and_one_that_cannot_is_left_out() -> None:
    orders = "waterfall=[[baseline,engine-norm,engine,engine+graph+own+pdl],[baseline,engine+graph,engine]]"
    plan = plan_of(composed(*LAYER, orders, "repeats=1"))
    assert [arm.label for arm in plan.arms] == ["baseline", "engine-norm", "engine+graph", "engine"]
    assert plan.orders == (
        ("baseline", "engine-norm", "engine", "engine+graph+own+pdl"),
        ("baseline", "engine+graph", "engine"),
    )
    assert list(plan.refused) == ["engine+graph+own+pdl"]
    assert any(
        notice.startswith("1 mode is left out: engine+graph+own+pdl (mode.pdl needs a GPU") for notice in plan.notices
    )


def test_a_mode_that_against_names_must_run() -> None:
    with pytest.raises(ConfigError, match=r"against=graph\+own\+pdl: mode.pdl needs a GPU"):
        plan_of(composed(*LAYER, "against=[graph+own+pdl]", "waterfall=[[engine,graph,graph+own+pdl]]", "repeats=1"))


def test_an_order_of_which_fewer_than_two_modes_run_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"waterfall=.*fewer than two of its modes run here: 1 mode is left out: mega"
    ):
        plan_of(composed(*LAYER, "waterfall=[[engine,megakernel]]", "repeats=1"))


def test_an_open_loop_has_no_waterfall() -> None:
    words = (
        "mode=batched",
        "arrival=poisson",
        "arrival.rate_per_s=5",
        "waterfall=[[baseline,batched]]",
        "repeats=1",
        "against=[]",
    )
    with pytest.raises(ConfigError, match="arrival=poisson: waterfall compares wall times"):
        to_config(composed(*words))
