"""Settings of Python become words that Hydra reads as the same values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launchopt.errors import ConfigError
from runner.calling.words import words_of

PARSER = OverridesParser.create()
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.text(
    "aTr1_/.+@%-'\\\" =,:[]{}()~$*?|"
)
NUMBERS = st.integers() | st.floats(allow_nan=False)
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)  # a list that holds itself
VALUES = st.recursive(
    TEXTS | NUMBERS | st.booleans() | st.none(), lambda each: st.lists(each, max_size=3), max_leaves=6
)


def read(value: object) -> object:
    """Return a value as Hydra reads its word, and as a config then has it."""
    text = value.text if isinstance(value, QuotedString) else value
    if isinstance(text, str):
        return OmegaConf.create({"key": text}).key
    return list(map(read, value)) if isinstance(value, list) else value


@given(VALUES)
def test_hydra_reads_the_value_that_was_given(value: object) -> None:
    (word,) = words_of({"key": value})
    found = read(PARSER.parse_override(word).value())
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "a\\${key} 'b", "\\\\${", "[${key}]"])
def test_text_is_no_reference_to_another_value(text: str) -> None:
    (word,) = words_of({"key": text})
    assert read(PARSER.parse_override(word).value()) == text


def test_paths_and_numbers_of_numpy_are_values() -> None:
    given = {"a": Path("/a b/c"), "b": np.int64(3), "c": np.float32(0.5), "d": math.nan}
    assert words_of(given) == ["a='/a b/c'", "b=3", "c=0.5", "d=nan"]
    assert words_of({"model": Path("/m/config.json")}) == ["model=/m/config.json"]


def test_the_first_of_a_list_of_modes_is_the_base_and_the_second_is_measured() -> None:
    words = ["mode=coalesced", "against=[graph,engine]", "repeats=5"]
    assert words_of({"mode": ["graph", "coalesced", "engine"]}) == words
    assert words_of({"mode": ("graph", "coalesced"), "repeats": "auto"})[-1] == "repeats=auto"
    assert words_of({"mode": "graph"}) == ["mode=graph"]


def test_a_changed_stack_is_a_mode() -> None:
    assert words_of({"mode": "coalesced+norm"}) == ["mode=coalesced", "mode.fuse=[norm]"]
    assert words_of({"mode": ["graph+coalesce", "coalesced"]})[1] == "against=[graph]"


def test_a_folder_that_hydra_would_read_as_a_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"folder=new\$\{x: has \$\{ in its name"):
        words_of({}, Path("new${x"))


def test_a_folder_is_that_of_a_run_and_of_a_sweep() -> None:
    assert words_of({}, Path("a b")) == ["hydra.run.dir='a b'", "hydra.sweep.dir='a b'"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"-m": "x"}, "-m=x: no setting; allowed: GROUP, and GROUP.NAME such as workload.requests"),
        ({"a=b": 1}, "a=b=1: no setting; allowed: GROUP, and GROUP.NAME such as workload.requests"),
        ({"seed": {1}}, "seed={1}: of type set; allowed: text, numbers, True, False, None, paths, and lists of these"),
        (
            {"seed": b"1"},
            "seed=b'1': of type bytes; allowed: text, numbers, True, False, None, paths, and lists of these",
        ),
        ({"seed": "a\0b"}, "seed=a\\x00b: holds a NUL character, which no setting can"),
        ({"seed": "a\ud800"}, "seed='a\\ud800': holds half of a surrogate pair, which is no text"),
        ({"mode": ["graph"]}, "mode=[graph]: a list needs two or more modes, each named once"),
        ({"mode": ["graph", "engine", "graph"]}, "mode=[graph,engine,graph]: a list needs two or more modes, each"),
        ({"mode": ["auto", "graph"]}, "mode=[auto,graph]: auto is no base: it can stand second, as the measured mode"),
        ({"mode": []}, "mode=[]: a list needs two or more modes, each named once"),
        ({"mode": b"graph"}, "mode=b'graph': allowed: the name of a mode, or a list of names"),
        ({3: 4}, "3=4: no setting; allowed: GROUP, and GROUP.NAME such as workload.requests"),
        ({"seed": -(10**5000)}, "seed=-(a number of over 1024 digits): no setting takes such a number"),
        ({"seed": ENDLESS}, "seed=[...]: has lists within 8 lists; no setting takes them"),
        ({"mode": ENDLESS}, "mode=[[[[[[[[[...]]]]]]]]]: allowed: the name of a mode, or a list of names"),
        ({"mode": 3}, "mode=3: allowed: the name of a mode, or a list of names"),
        ({"mode": ["a", "b"], "against": "all"}, "against=all: the first of a list of modes is the base: give one"),
        ({"mode": "graph+nrom"}, "mode=graph+nrom: nrom is no choice; allowed: "),
    ],
)
def test_what_cannot_be_a_word_is_refused(settings: dict[Any, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        words_of(settings)
    assert str(refused.value).startswith(said)
