"""Launchers and sweepers other than Hydra's basic ones are refused before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.config.override_sets import taken

from launchopt.errors import ConfigError
from runner.config.launchers import PLUGINS, check_plugins

LAUNCHERS = (
    "joblib",
    "submitit_local",
    "submitit_slurm",
    "ray",
    "ray_aws",
    "rq",
    "nothing_known",
    "basic,joblib",
    "null",
)
OTHERS = [*(f"hydra/launcher={name}" for name in LAUNCHERS), "hydra/sweeper=optuna", "+hydra/launcher=joblib"]


@pytest.mark.parametrize("words", [["-m", "hydra/launcher=basic", "hydra/sweeper=basic"], ["hydra/launcher=basic"]])
def test_the_basic_launcher_is_accepted(words: list[str], tmp_path: Path) -> None:
    outcome = taken([*words, "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code) == (None, 0)
    assert len(outcome.plans) == 1


@pytest.mark.parametrize("word", OTHERS)
@pytest.mark.parametrize("options", [["-m"], [], ["--cfg", "job"]])
def test_another_plugin_is_refused_in_one_line(word: str, options: list[str], tmp_path: Path) -> None:
    outcome = taken([*options, word, "device=cpu"], tmp_path)
    assert (outcome.fault, outcome.exit_code, outcome.plans, outcome.left) == (None, 2, [], [])
    key, _, value = word.lstrip("+").partition("=")
    kind = key.partition("/")[2]
    expected = f"jobs run one after another, in this process; allowed: the {kind} basic, which is the default"
    assert outcome.stderr.startswith(f"error: {key}={value}: {expected}")
    assert outcome.stderr.count("\n") == 1


def composed(group: str, option: str, node: object) -> Any:
    """Return the part of the node `hydra` that names launcher and sweeper, with `node` as that of `group`."""
    choices = {each: plugin.option for each, plugin in PLUGINS.items()} | {group: option}
    nodes = {each.partition("/")[2]: {"_target_": plugin.target} for each, plugin in PLUGINS.items()}
    return OmegaConf.create({"runtime": {"choices": choices}, **nodes, group.partition("/")[2]: node})


@pytest.mark.parametrize("group", PLUGINS)
def test_a_composed_plugin_counts_by_its_class_and_settings(group: str) -> None:
    fine = {"_target_": PLUGINS[group].target} | dict.fromkeys(PLUGINS[group].settings)
    check_plugins(composed(group, "basic", fine))
    for option, node in (
        ("joblib", fine),
        ("basic", {"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"}),
        ("basic", fine | {"n_jobs": 4}),
        ("basic", {}),
        ("basic", None),
    ):
        with pytest.raises(ConfigError, match="one after another"):
            check_plugins(composed(group, option, node))
