"""Options as they are declared: their limits are checked, and `--help` shows them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from launchopt.errors import ConfigError
from launchopt.options import REQUIRED, Limits, check_options, help_of, option


@dataclass(slots=True)
class Options:
    count: int = option(4, "things", low=2, high=64, is_power_of_two=True)
    rate_per_s: float = option(REQUIRED, "things a second", is_above_zero=True)
    size: int | None = option(None, "bytes; null: any", low=1)
    kind: str = option("a", "which", choices=("b", "a"))
    plain: bool = False


def test_help_has_the_limits() -> None:
    assert [help_of(each) for each in fields(Options)] == [
        "things (from 2 to 64, a power of two)",
        "things a second (above 0)",
        "bytes; null: any (from 1)",
        "which (a, b)",
        "",
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"count": 1}, "group.count=1: out of range; allowed: from 2 to 64"),
        (
            {"count": 6},
            "group.count=6: not a power of two; allowed: powers of two; did you mean group.count=4 or group.count=8?",
        ),
        ({"rate_per_s": 0.0}, "group.rate_per_s=0.0: out of range; allowed: finite numbers above 0"),
        ({"rate_per_s": float("nan")}, "group.rate_per_s=nan: out of range; allowed: finite numbers above 0"),
        ({"size": 0}, "group.size=0: out of range; allowed: from 1 to 2147483647"),
        ({"kind": "c"}, "group.kind=c: not one of its values; allowed: a, b"),
    ],
)
def test_a_value_beyond_its_limits_is_named_with_what_is_allowed(values: dict[str, Any], text: str) -> None:
    options = Options(**{"rate_per_s": 1.0, **values})
    with pytest.raises(ConfigError) as caught:
        check_options("group", options)
    assert str(caught.value) == text


def test_defaults_are_within_their_limits_and_none_always_is() -> None:
    check_options("group", Options(rate_per_s=1.0))
    check_options("group", Options(count=64, rate_per_s=1e-9, size=1, kind="b"))


@pytest.mark.parametrize(("value", "meant"), [(70, "did you mean key=64?"), (3, "did you mean key=4?")])
def test_no_power_of_two_beyond_the_limits_is_proposed(value: int, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(low=3, high=100, is_power_of_two=True).check("key", value)
    assert str(caught.value) == f"key={value}: not a power of two; allowed: powers of two; {meant}"
