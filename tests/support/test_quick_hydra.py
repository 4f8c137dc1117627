"""`quicken` changes no composition."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import defaults_list
from hydra.types import RunMode
from omegaconf import OmegaConf

from runner.config.loading import hydra_of
from runner.config.schema import register
from support.config import quick_hydra
from support.paths import ROOT

WORDS = ["mode=graph", "workload=decode", "experiment=strategies", "table=gemv_micro", "sampling=greedy"]
CREATE_MAP = inspect.getclosurevars(defaults_list._create_interpolation_map).nonlocals["create_map"]  # Hydra's own


def composed(*words: str) -> Any:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.to_container(compose("config", list(words), return_hydra_config=True))


@pytest.mark.parametrize("word", WORDS)
def test_files_parsed_once_give_the_same(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [composed(word), composed(word)]
    monkeypatch.setattr(quick_hydra, "KEPT", ())
    monkeypatch.setattr(defaults_list, "_create_interpolation_map", CREATE_MAP)
    assert kept == [composed(word)] * 2


def test_files_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: dict[tuple[str, str], Any] = {}
    monkeypatch.setattr(quick_hydra, "_parsed", parsed)
    composed()
    first = dict(parsed)
    composed()
    assert (str(ROOT / "conf"), "config") in first
    assert all(parsed[key] is found for key, found in first.items())


def test_a_job_runs_with_the_config_that_was_checked_and_the_next_composes_its_own() -> None:
    with hydra_of() as hydra:
        master = hydra.compose_config("config", [], RunMode.MULTIRUN)
        first, second, third = (hydra.config_loader.load_sweep_config(master, ["seed=7"]) for _ in range(3))
    assert second is first
    assert third is not first
    assert OmegaConf.to_container(third) == OmegaConf.to_container(first)
    assert third.seed == 7


def test_the_composition_that_is_left_out_finds_no_mode() -> None:
    assert composed()["hydra"]["mode"] is None


def test_only_experiments_set_a_mode() -> None:
    setting = {path for path in (ROOT / "conf").rglob("*.yaml") if "MULTIRUN" in path.read_text()}
    assert setting
    assert setting <= set((ROOT / "conf/experiment").glob("*.yaml"))
