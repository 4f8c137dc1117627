"""The probability that a random sample holds a wrong command."""

import numpy as np
import pytest

from launchopt.verify.chance import chance_to_find


@pytest.mark.parametrize(("wrong", "expected"), [(0, 0.0), (1, 0.25), (20, 1.0), (100, 1.0)])
def test_known_chances(wrong: int, expected: float) -> None:
    found = chance_to_find(wrong, 20, 5)
    assert found == pytest.approx(expected)


def test_everything_checked_finds_everything() -> None:
    assert chance_to_find(1, 7, 7) == 1.0


def test_it_is_the_share_of_samples_that_hold_one() -> None:
    generator = np.random.default_rng(0)
    held = [(generator.permutation(50)[:10] < 3).any() for _ in range(20_000)]
    assert np.mean(held) == pytest.approx(chance_to_find(3, 50, 10), abs=0.015)
