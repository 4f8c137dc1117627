"""The experts of each token: drawn from a seed, or read from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.errors import DataError
from launchopt.streams.experts.routing import Routing, RoutingKind, draw, read_experts

DRAWN = [RoutingKind.balanced, RoutingKind.power_law]


@settings(deadline=None)
@given(st.data(), st.sampled_from(DRAWN), st.integers(1, 20), st.sampled_from([0.0, 1.2, 16.0]))
def test_a_column_has_different_experts_in_ascending_order(
    data: st.DataObject, kind: RoutingKind, experts: int, exponent: float
) -> None:
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, experts)))
    chosen = draw(kind, exponent, shape, experts, seed=1)
    assert chosen.shape == shape
    assert chosen.dtype == np.int32
    assert (np.diff(chosen, axis=2) > 0).all()
    assert 0 <= chosen.min() <= chosen.max() < experts
    counts = Routing("", experts, chosen).counts
    assert (counts.sum(axis=1) == shape[1] * shape[2]).all()
    if kind is RoutingKind.balanced:
        assert (np.ptp(counts, axis=1) <= 1).all()


@pytest.mark.parametrize("kind", DRAWN)
def test_a_seed_gives_the_same_experts_again_and_another_seed_others(kind: RoutingKind) -> None:
    one, again, other = (draw(kind, 1.2, (8, 16, 4), 16, seed) for seed in (3, 3, 4))
    assert (one == again).all()
    assert (one != other).any()


def test_with_one_expert_a_token_shares_follow_the_power_law() -> None:
    chosen = draw(RoutingKind.power_law, 1.2, (1, 200_000, 1), 16, seed=0)
    shares = np.sort(np.bincount(chosen.reshape(-1), minlength=16) / chosen.size)[::-1]
    wanted = np.arange(1, 17) ** -1.2
    np.testing.assert_allclose(shares, wanted / wanted.sum(), atol=0.005)


def test_the_exponent_0_makes_all_experts_alike() -> None:
    chosen = draw(RoutingKind.power_law, 0.0, (1, 100_000, 2), 8, seed=0)
    np.testing.assert_allclose(np.bincount(chosen.reshape(-1)) / chosen.size, 1 / 8, atol=0.005)


def test_a_file_is_replayed_from_its_beginning_after_its_end(tmp_path: Path) -> None:
    path = tmp_path / "experts.csv"
    path.write_text("3,1\n0,2\n5,4\n1,0\n")
    chosen = read_experts(path, (3, 2, 2), 6)
    assert chosen.tolist() == [[[1, 3], [0, 2]], [[4, 5], [0, 1]], [[1, 3], [0, 2]]]
    assert read_experts(path, (1, 2, 2), 6).tolist() == [[[1, 3], [0, 2]]]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("0,1\n0,6\n", 2, "expert is 6; allowed: 0 to 5, as model.experts=6"),
        ("0,-1\n0,1\n", 1, "expert is -1, must be at least 0"),
        ("0,1\n2,2\n", 2, "the same expert twice: '2,2'"),
        ("0,1,2\n0,1\n", 1, "3 experts; expected 2, as many as model.experts_per_token: '0,1,2'"),
        ("0,1\n0\n", 2, "1 experts; expected 2, as many as model.experts_per_token: '0'"),
        ("a,b\n", 1, "expert is 'a', not a 64-bit integer"),
        ("0,1\n1,2\n2,3\n", None, "3 lines, one per token; expected a multiple of workload.tokens=2, or 8"),
        ("", None, "0 lines, one per token; expected a multiple of workload.tokens=2"),
        ("0,1\n\n", 2, "1 experts; expected 2"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int | None, problem: str) -> None:
    path = tmp_path / "experts.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_experts(path, (4, 2, 2), 6)
    assert caught.value.line == line
    assert caught.value.problem.startswith(problem)


def test_a_file_with_more_lines_than_a_run_may_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchopt.streams.experts.routing.MOST_COLUMNS", 4)
    path = tmp_path / "experts.csv"
    path.write_text("0,1\n" * 6)
    assert read_experts(path, (2, 2, 2), 6).shape == (2, 2, 2), "lines that are not used do not count"
    with pytest.raises(DataError, match="more than 4 lines, one per token") as caught:
        read_experts(path, (4, 2, 2), 6)
    assert caught.value.line == 5


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_experts(tmp_path / "none", (1, 1, 1), 1)
