from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import thorough


@pytest.fixture(params=[False, True])
def is_thorough(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = thorough.is_thorough()
    thorough.select(request.param)
    yield request.param
    thorough.select(before)


def test_a_sample_is_the_same_each_time_and_never_empty(is_thorough: bool) -> None:
    found = thorough.some(range(100))
    assert found == thorough.some(range(100)) == sorted(found)
    assert len(found) == (100 if is_thorough else 25)
    assert thorough.some("a") == ["a"]
    assert thorough.some([]) == []


def test_a_property_draws_a_share_of_its_examples_but_enough(is_thorough: bool) -> None:
    found = [thorough.examples(number) for number in (10, 60, 400)]
    assert found == ([10, 60, 400] if is_thorough else [10, 25, 100])
    assert settings().max_examples == (100 if is_thorough else 25)


drawn: list[int] = []


@settings(max_examples=200, deadline=None)
@given(st.integers())
def test_draws(number: int) -> None:
    drawn.append(number)


def test_hypothesis_keeps_to_it() -> None:
    drawn.clear()
    test_draws()
    assert 0 < len(drawn) <= thorough.examples(200)
