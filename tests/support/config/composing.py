"""Configs and plans as the command line makes them, without a run."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_dir

from runner.config.objects import to_config
from runner.config.schema import Config, register
from runner.plan.plan import Plan, make_plan
from support.paths import ROOT

CONF = ROOT / "conf"


def composed(*overrides: str) -> Any:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def configured(*overrides: str) -> Config:
    return to_config(composed(*overrides))


def planned(*overrides: str) -> Plan:
    """Plan a run on the cpu device, unless the overrides name another."""
    config = composed("device=cpu", *overrides)
    return make_plan(to_config(config), config)
