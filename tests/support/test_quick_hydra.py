"""`quicken` changes no composition."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from runner.config.schema import register
from support.config import quick_hydra
from support.paths import ROOT

WORDS = ["mode=graph", "workload=decode", "experiment=strategies", "table=gemv_micro", "sampling=greedy"]


def composed(*words: str) -> Any:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.to_container(compose("config", list(words), return_hydra_config=True))


@pytest.mark.parametrize("word", WORDS)
def test_files_parsed_once_give_the_same(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [composed(word), composed(word)]
    monkeypatch.setattr(quick_hydra, "KEPT", ())
    assert kept == [composed(word)] * 2


def test_files_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: dict[tuple[str, str], Any] = {}
    monkeypatch.setattr(quick_hydra, "_parsed", parsed)
    composed()
    first = dict(parsed)
    composed()
    assert (str(ROOT / "conf"), "config") in first
    assert all(parsed[key] is found for key, found in first.items())


def test_the_composition_that_is_left_out_finds_no_mode() -> None:
    assert composed()["hydra"]["mode"] is None


def test_only_experiments_set_a_mode() -> None:
    setting = {path for path in (ROOT / "conf").rglob("*.yaml") if "MULTIRUN" in path.read_text()}
    assert setting
    assert setting <= set((ROOT / "conf/experiment").glob("*.yaml"))
