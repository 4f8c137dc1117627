"""Options of modes: set on the command line, read from the text of their files, and refused beyond their limits."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from support.config.composing import composed, configured, planned

from launchopt.errors import ConfigError
from launchopt.modes import MODES, mode_class
from launchopt.modes.base import Mode
from launchopt.modes.options import ModeOptions, options_of
from launchopt.modes.stack import conflict, stack_of
from launchopt.options import help_of
from launchopt.stack import LOOPS, Submit
from runner.config.modes import mode_settings
from runner.plan import plan as plan_module

# Options that a stack has with a value of mode.submit, beside its choices.
OPTIONS_OF = {
    Submit.graph: {"cached"},
    Submit.graph_loop: {"cached", "tokens"},
    Submit.graph_device: {"cached", "tokens"},
}
SMALL = ("workload=gemv_256", "workload.commands=64", "workload.cache=hot")


def test_settings_reach_the_mode() -> None:
    config = configured("mode=multistream", "mode.streams=8", *SMALL)
    assert (config.mode.name, config.mode.options) == ("multistream", {"streams": 8})
    assert plan_module._arms(config)[-1].options == {"streams": 8}
    plan = planned("mode=graph", "mode.cached=7", "against=[batched]", *SMALL)
    assert [(arm.mode, arm.options) for arm in plan.arms] == [("batched", {}), ("graph", {"cached": 7})]
    stack = {"coalesce": True, "fuse": [], "submit": "graph", "pdl": False, "kernels": "cublaslt"}
    assert plan.composed["mode"] == {"name": "graph", "cached": 7, "tokens": None, **stack}, "the manifest says so"


def test_choices_of_a_stack_reach_the_mode_and_name_its_arm() -> None:
    words = ("workload=layer", "model=tiny", "mode=graph", "mode.fuse=[norm,attention]", "against=[graph,engine-norm]")
    config = configured(*words, "mode.submit=stream")
    assert config.mode.label == "graph+norm+attention+stream"
    assert config.mode.options == {"fuse": ["norm", "attention"], "submit": "stream"}, "launches keep no graphs"
    plan = planned(*words)
    assert [arm.label for arm in plan.arms] == ["graph", "engine-norm", "graph+norm+attention"]
    assert [mode_class(arm.mode, arm.options).label() for arm in plan.arms] == [arm.label for arm in plan.arms]
    assert configured("workload=layer", "model=tiny", "mode=graph", "mode.fuse=[]").mode.label == "graph"


def test_other_stacks_of_the_mode_have_its_options() -> None:
    words = ("workload=layer", "model=tiny", "mode=graph_loop", "mode.tokens=2", "workload.tokens=9")
    plan = planned(*words, "against=[graph,graph_loop+norm,graph_loop-coalesce]")
    tokens = {arm.label: arm.options.get("tokens") for arm in plan.arms}
    assert tokens == {"graph": None, "graph_loop+norm": 2, "graph_loop-coalesce": 2, "graph_loop": 2}


def test_another_submit_brings_its_options_also_to_other_stacks_of_the_mode() -> None:
    words = ("workload=layer", "model=tiny", "mode=engine", "mode.submit=graph_loop", "mode.tokens=2")
    plan = planned(*words, "against=[engine,engine+graph,engine+graph_loop-norm,graph_loop]", "workload.replicas=1")
    options = {arm.label: (arm.options.get("cached"), arm.options.get("tokens"), arm.together) for arm in plan.arms}
    assert options == {
        "engine": (None, None, 1),
        "engine+graph": (None, None, 1),
        "engine+graph_loop-norm": (None, 2, 2),
        "graph_loop": (64, 64, 64),
        "engine+graph_loop": (None, 2, 2),
    }


@pytest.mark.parametrize("submit", Submit)
@pytest.mark.parametrize("name", MODES)
def test_a_mode_has_the_options_of_its_submit_and_no_others(name: str, submit: Submit) -> None:
    """All presets and values of mode.submit: a rule refuses the stack, or it has exactly these options."""
    preset = mode_settings(name)
    if conflict(name, stack_of(name, {"submit": submit})) is not None:
        with pytest.raises(ConfigError, match=r"^mode="):
            replace(preset, submit=str(submit))  # type: ignore[call-arg]
        return
    own = OPTIONS_OF.get(submit, set())
    for key in {"cached", "tokens"} & {each.name for each in fields(preset)}:
        given = {"submit": str(submit), key: 3}
        if key in own or (submit == preset.stack.submit and key in preset.taken):
            options = replace(preset, **given).options  # type: ignore[arg-type]
            assert options[key] == 3
            mode = mode_class(name, options)(**options)
            assert getattr(mode.options, key) == 3
            assert mode.together == (3 if key == "tokens" else 64 if submit in LOOPS else 1)
        else:
            with pytest.raises(ConfigError, match=f"mode.{key}=3: mode.{key} belongs to mode.submit=graph"):
                replace(preset, **given)  # type: ignore[arg-type]
    if submit != preset.stack.submit:
        assert own <= {each.name for each in fields(preset)}
        options = replace(preset, submit=str(submit)).options  # type: ignore[call-arg]
        assert isinstance(mode_class(name, options)(**options), Mode), "also with its defaults"


def test_those_it_is_compared_with_have_their_defaults() -> None:
    options = {arm.mode: arm.options for arm in planned("mode=batched", "against=[graph]", *SMALL).arms}
    assert options == {"batched": {}, "graph": {"cached": 64}}
    assert mode_settings("multistream").options == {"streams": 4}
    assert {name for name in MODES if mode_settings(name).options} == {
        *("multistream", "graph", "graph_device", "graph_loop", "torch_compile", "torch_graph", "megakernel"),
        "persistent",
    }


@pytest.mark.parametrize("name", MODES)
def test_options_read_from_the_text_are_those_of_the_class(name: str) -> None:
    def declared(options: type[ModeOptions]) -> list[tuple[object, ...]]:
        kinds = get_type_hints(options)
        return [(each.name, kinds[each.name], each.default, dict(each.metadata)) for each in fields(options)]

    assert declared(options_of(name)) == declared(type(mode_class(name).options))
    assert all(help_of(each) for each in fields(options_of(name)))


@pytest.mark.parametrize("name", MODES)
def test_every_mode_can_be_asked_for(name: str) -> None:
    config = configured(f"mode={name}", *SMALL)
    assert config.mode.name == name
    assert isinstance(mode_class(name)(**config.mode.options), Mode)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mode=multistream", "mode.streams=3"], "mode.streams=3: not a power of two; allowed: powers of two"),
        (["mode=multistream", "mode.streams=1"], "mode.streams=1: out of range; allowed: from 2 to 64"),
        (["mode=multistream", "mode.streams=128"], "mode.streams=128: out of range; allowed: from 2 to 64"),
        (["mode=graph", "mode.cached=0"], "mode.cached=0: out of range; allowed: from 1 to 4096"),
        (["mode=torch_graph", "mode.cached=4097"], "mode.cached=4097: out of range; allowed: from 1 to 4096"),
        (["mode=persistent", "mode.patience_s=0.09"], "mode.patience_s=0.09: out of range; allowed: from 0.1 to 86400"),
        (
            ["mode=persistent", "mode.patience_s=86401"],
            "mode.patience_s=86401.0: out of range; allowed: from 0.1 to 86400",
        ),
        (["mode=persistent", "mode.patience_s=nan"], "mode.patience_s=nan: out of range; allowed: from 0.1 to 86400"),
        (
            ["mode=graph", "mode.submit=stream", "mode.cached=5"],
            "mode.cached=5: mode.cached belongs to mode.submit=graph, graph_device, graph_loop; did you mean to add",
        ),
        (["mode=engine", "mode.submit=graph_loop", "mode.tokens=0"], "mode.tokens=0: out of range; allowed: from 1"),
        (
            ["against=[all,batched]", "mode=baseline"],
            "against=all: all goes alone; allowed: all alone, or modes other than",
        ),
        (
            ["against=[baseline]", "mode=baseline"],
            "against=baseline: is the mode itself; allowed: all alone, or modes other than",
        ),
        (
            ["against=[nope]", "mode=baseline"],
            "against=nope: no such mode; allowed: all alone, or modes other than",
        ),
    ],
)
def test_a_bad_setting_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(*overrides, *SMALL)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("override", ["mode.streams=4", "mode.cached=4", "mode.patience_s=4", "mode.bogus=1"])
def test_a_setting_of_another_mode_is_unknown(override: str) -> None:
    with pytest.raises((HydraException, OmegaConfBaseException)):
        composed("mode=batched", override)
